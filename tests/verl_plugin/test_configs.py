"""The recipes in configs/: they compose as on the command line, hold the recipe's numbers, and veRL accepts them."""

import asyncio
import subprocess
import sys
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

ROOT = Path(__file__).resolve().parents[2]
USER_SUPPLIED = [
    "data.train_files=train.parquet",
    "data.val_files=val.parquet",
    "actor_rollout_ref.model.path=model",
]

COMMON = {
    "algorithm.adv_estimator": "ktae",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 3072,
    "actor_rollout_ref.rollout.prompt_length": 1024,
    "actor_rollout_ref.rollout.response_length": 3072,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 128,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    # No KL anywhere, and no entropy bonus.
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    # The three places that veRL's workers require to agree; sequence packing needs padding removed.
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 4 * (1024 + 3072),
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 4 * (1024 + 3072),
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 4 * (1024 + 3072),
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.use_v1": True,
}
RECIPES = {
    "ktae_grpo": COMMON
    | {
        "actor_rollout_ref.actor.clip_ratio_high": 0.2,
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,
        "algorithm.filter_groups.enable": False,
        "reward.reward_manager.name": "naive",
    },
    "ktae_dapo": COMMON
    | {
        "actor_rollout_ref.actor.clip_ratio_high": 0.24,
        "actor_rollout_ref.actor.clip_ratio_c": 10.0,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
        "algorithm.filter_groups.max_inflight_gen_batches": 1,
        "algorithm.ktae.correct_key": "acc",
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.max_resp_len": 3072,
        "reward.reward_kwargs.overlong_buffer_cfg.enable": True,
        "reward.reward_kwargs.overlong_buffer_cfg.len": 512,
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0,
    },
}

# The keys that veRL's own schema lacks; everything else in the files must override a key that exists.
ADDED_KEYS = {
    "ktae_grpo": set(),
    "ktae_dapo": {
        "algorithm.ktae.correct_key",
        "reward.reward_kwargs.max_resp_len",
        "reward.reward_kwargs.overlong_buffer_cfg.enable",
        "reward.reward_kwargs.overlong_buffer_cfg.len",
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        "reward.reward_kwargs.overlong_buffer_cfg.log",
    },
}


def compose(name: str, *overrides: str) -> DictConfig:
    """What `python -m verl.trainer.main_ppo --config-dir configs --config-name NAME OVERRIDES` trains with."""
    # The other way round (veRL's directory first, `configs` added) does not work: Hydra looks up the file that it
    # is asked for before it reads `hydra.searchpath`.
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base=None):
        return hydra.compose(name, overrides=["hydra.searchpath=[pkg://verl.trainer.config]", *overrides])


def leaves(node: object, prefix: str = "") -> set[str]:
    """Dotted names of all values below a node."""
    if not isinstance(node, dict) or not node:
        return {prefix}
    return {name for key, child in node.items() for name in leaves(child, f"{prefix}.{key}" if prefix else key)}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name):
    config = compose(name)
    assert {key: OmegaConf.select(config, key) for key in RECIPES[name]} == RECIPES[name]


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_exists_in_verl(name):
    # A misspelled key in a file is accepted in silence, unlike one on the command line.
    ours = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / f"{name}.yaml"))
    assert ours.pop("defaults") == ["ppo_trainer", "_self_"]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        known = leaves(OmegaConf.to_container(hydra.compose("ppo_trainer")))
    assert leaves(ours) - known == ADDED_KEYS[name]


@pytest.mark.parametrize("name", RECIPES)
def test_verl_validates(name, capsys):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = compose(name, *USER_SUPPLIED)
    # veRL warns so for every estimator other than gae.
    with pytest.warns(UserWarning, match="Disabled critic"):
        use_critic = need_critic(config)
    use_reference_policy = need_reference_policy(config)
    assert not use_critic
    assert not use_reference_policy
    validate_config(config, use_reference_policy=use_reference_policy, use_critic=use_critic)
    assert "All configuration checks passed" in capsys.readouterr().out


# The first import of veRL's reward managers imports ray.experimental.state, which Ray deprecates.
@pytest.mark.filterwarnings("ignore:Ray state API is no longer experimental:DeprecationWarning")
@pytest.mark.parametrize(
    ("answer", "length", "score", "acc"),
    [
        ("42", 2560, 1.0, True),
        ("42", 2816, 0.5, True),
        # Correct, yet `score > 0` says incorrect: the reason for correct_key.
        ("42", 3072, 0.0, True),
        ("41", 2560, -1.0, False),
        ("41", 3072, -2.0, False),
    ],
)
def test_dapo_reward_manager_is_configured(answer, length, score, acc):
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    class Tokenizer:
        def decode(self, ids, skip_special_tokens):
            assert len(ids) == length
            assert skip_special_tokens
            return f"Answer: {answer}"

    attention_mask = torch.zeros(1, 3072, dtype=torch.long)
    attention_mask[:, :length] = 1
    rollout = DataProto.from_dict(
        tensors={"responses": torch.ones(1, 3072, dtype=torch.long), "attention_mask": attention_mask},
        non_tensors={
            "data_source": np.array(["math_dapo"], dtype=object),
            "reward_model": np.array([{"ground_truth": "42"}], dtype=object),
        },
    )

    async def reward():
        return await load_reward_manager(compose("ktae_dapo"), Tokenizer()).run_single(rollout)

    result = asyncio.run(reward())
    assert float(result["reward_score"]) == score
    assert result["reward_extra_info"]["acc"] is acc


@pytest.mark.parametrize("name", RECIPES)
def test_command_line(name):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", "configs", "--config-name", name]
    done = subprocess.run(
        [*command, *USER_SUPPLIED, "--cfg", "job"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "\n  adv_estimator: ktae\n" in done.stdout
    # The other tests compose what the command line composes.
    assert OmegaConf.create(done.stdout) == compose(name, *USER_SUPPLIED)

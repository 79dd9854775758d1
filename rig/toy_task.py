"""A task small enough for a CPU: the model gets a sentence and is to answer with digits.

`python toy_task.py DIRECTORY` writes a randomly initialised model with a byte-level tokenizer and the data. The same
file holds the reward function that veRL loads, and `training_command`.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

VERL = tuple(int(part) for part in version("verl").split(".")[:2])
RIG = Path(__file__).resolve().parent
RESPONSE_LENGTH = 12


def compute_score(solution_str, **_):
    """Correct when at least one character in eight is a digit; the extras are what veRL's reward managers pass on."""
    correct = sum(character in "0123456789" for character in solution_str) * 8 >= max(len(solution_str), 1)
    return {"score": float(correct), "acc": correct}


def contains_digit(solution_str, **_):
    """An easier task, which the untrained model solves in one of three rollouts: it can get better and worse."""
    correct = any(character in "0123456789" for character in solution_str)
    return {"score": float(correct), "acc": correct}


def make_assets(directory):
    """Write DIRECTORY/model (config, random weights, tokenizer), train.parquet and val.parquet."""
    import pandas
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    special = ["<pad>", "<user>", "<end>"]
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(special + characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}<user>{{ m['content'] }}<end>{% endfor %}"

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    directory = Path(directory)
    tokenizer.save_pretrained(directory / "model")
    Qwen2ForCausalLM(config).save_pretrained(directory / "model")
    rows = [
        {
            "data_source": "digits",
            "prompt": [{"role": "user", "content": f"digits, please ({i})"}],
            "ability": "digits",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": i},
        }
        for i in range(64)
    ]
    pandas.DataFrame(rows).to_parquet(directory / "train.parquet")
    pandas.DataFrame(rows[:4]).to_parquet(directory / "val.parquet")


def training_command(assets, steps, *overrides, prompts=8, rollouts=8, module="verl.trainer.main_ppo"):
    """The command line of a training run for this task, for the installed veRL."""
    return [
        sys.executable,
        "-m",
        module,
        f"data.train_files={assets}/train.parquet",
        f"data.val_files={assets}/val.parquet",
        f"data.train_batch_size={prompts}",
        "data.max_prompt_length=48",
        f"data.max_response_length={RESPONSE_LENGTH}",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={assets}/model",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.strategy=fsdp2",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={prompts * rollouts}",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.rollout.name=hf_cpu",
        f"actor_rollout_ref.rollout.n={rollouts}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={prompts * rollouts}",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[console]",
        "trainer.val_before_train=False",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=100",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
        "ray_kwargs.ray_init.num_cpus=8",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.object_store_memory=500000000",
        *settings_of_version(),
        *overrides,
    ]


def settings_of_version():
    """What differs from one veRL to the next. Before 0.9 the device "cuda" makes it ask Ray for a GPU, no more."""
    reward = f"custom_reward_function.path={RIG}/toy_task.py"
    if VERL < (0, 7):
        return ["trainer.device=cuda", reward]
    reward = [f"reward.{reward}", "reward.num_workers=1"]
    if VERL < (0, 8):
        engine = ["trainer.use_legacy_worker_impl=disable", "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2"]
        return ["trainer.device=cuda", *reward, *engine]
    device = "cuda" if VERL < (0, 9) else "cpu"
    return [f"trainer.device={device}", *reward, "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]


def training_environment(*modules, plug_in=True, **variables):
    """Environment of a run: the CPU device, further modules for every process to import, with ktae's plug-in or not."""
    path = [str(RIG), *filter(None, [variables.pop("PYTHONPATH", None), os.environ.get("PYTHONPATH")])]
    modules = ["verl_cpu", *modules]
    if VERL < (0, 9):
        modules += ["ktae.integrations.verl"] * plug_in
    elif not plug_in:
        variables = {"VERL_USE_EXTERNAL_PLUGINS": "none", **variables}
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        **variables,
    }


if __name__ == "__main__":
    make_assets(sys.argv[1])

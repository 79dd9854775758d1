"""Real training runs of TRL's GRPOTrainer with token-level credit, on the CPU."""

import inspect
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy
from trl import GRPOTrainer

from ktae import KTAEConfig, metrics, reference
from ktae.integrations.trl import KTAEGRPOTrainer, KTAEMixin

OLD_SAPO = hasattr(GRPOTrainer, "get_sapo_token_loss")
LOSS_TYPES = [
    loss_type
    for loss_type in ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")
    if f'"{loss_type}"' in inspect.getsource(GRPOTrainer._compute_loss)  # the last ones came with later versions
]
REFUSED = {"vespo", "luspo"} | ({"sapo"} if OLD_SAPO else set())
METRICS = ["mixed_group_share", "single_rollout_group_share", "nonzero_token_share", "mean_abs_value"]


def trl_advantages(rewards, num_generations):
    """Those of TRL's default, scale_rewards="group"."""
    grouped = rewards.view(-1, num_generations)
    return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()


def key_token_values(ids, mask, correct, num_generations):
    """The values [B, T] of the reference implementation, groups one after the other."""
    values = torch.zeros(mask.shape, dtype=torch.float64)
    rollouts = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    for first in range(0, len(ids), num_generations):
        group = range(first, first + num_generations)
        of_token = reference.key_token_values([rollouts[i] for i in group], [bool(correct[i]) for i in group])
        for i in group:
            values[i, mask[i].bool()] = torch.tensor([of_token[token] for token in rollouts[i]], dtype=torch.float64)
    return values


class Watched(KTAEGRPOTrainer):
    """Keeps what is generated, and what the loss gets."""

    def __init__(self, *args, **kwargs):
        self.generated, self.learnt = [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.generated.append({**batch, "rewards": self._rewards})
        return batch

    def _compute_loss(self, model, inputs):
        self.learnt.append(inputs)
        return super()._compute_loss(model, inputs)


def assert_values(batch, num_generations, mask=None, column=0):
    """The batch's advantages are TRL's plus the reference's values; returns the values."""
    mask = batch["completion_mask"] if mask is None else mask
    correct = batch["rewards"][:, column] > 0
    values = key_token_values(batch["completion_ids"], mask, correct, num_generations)
    added = batch["advantages"].double() - trl_advantages(batch["rewards"][:, 0], num_generations)[:, None]
    torch.testing.assert_close(added * mask, values, rtol=0, atol=1e-6)
    return values


@pytest.mark.parametrize("loss_type", [loss_type for loss_type in LOSS_TYPES if loss_type not in REFUSED])
def test_values_of_0_are_trl_to_the_bit(tmp_path, loss_type):
    settings = {"loss_type": loss_type, "num_iterations": 2, "beta": 0.02}

    def trained(trainer_class, **arguments):
        trainer = toy.make(trainer_class, tmp_path, settings=settings, **arguments)
        trainer.train()
        return toy.weights(trainer)

    plain = trained(GRPOTrainer)
    without = trained(KTAEGRPOTrainer, ktae_config=KTAEConfig(scale=0))
    with_values = trained(KTAEGRPOTrainer)
    assert torch.equal(plain, without)
    assert (plain - with_values).abs().max() > 1e-4


def test_advantages_of_0_change_nothing(tmp_path):
    trainer = toy.make(KTAEGRPOTrainer, tmp_path, reward_funcs=lambda completion_ids, **_: [1.0] * len(completion_ids))
    before = toy.weights(trainer)
    trainer.train()
    assert torch.equal(toy.weights(trainer), before)


def test_the_gradient_is_that_of_token_level_advantages(tmp_path):
    trainer = toy.make(Watched, tmp_path, settings={"loss_type": "dr_grpo", "max_steps": 1})
    examples = [{"prompt": prompt} for prompt in "aaaabbbb"]
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions(examples)
    ids, mask = batch["completion_ids"], batch["completion_mask"]
    values = assert_values(trainer.generated[0], 4)
    assert values.abs().max() > 0.5
    trainer.compute_loss(trainer.model, batch).backward()
    actual = [parameter.grad.clone() for parameter in trainer.model.parameters()]

    trainer.model.zero_grad()
    tokens = torch.cat([batch["prompt_ids"], ids], 1)
    attention_mask = torch.cat([batch["prompt_mask"], mask], 1)
    logits = trainer.model(tokens, attention_mask=attention_mask).logits[:, batch["prompt_ids"].shape[1] - 1 : -1]
    log_prob = logits.log_softmax(-1).gather(2, ids[:, :, None]).squeeze(2)
    advantages = (trl_advantages(trainer._rewards[:, 0], 4)[:, None] + values).float()
    (-(advantages * log_prob * mask).sum() / (len(ids) * trainer.max_completion_length)).backward()
    for gradient, parameter in zip(actual, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-6)


def asked_and_said(batch):
    """Prompt and completion of each row, as lists."""
    return list(zip(batch["prompt_ids"].tolist(), batch["completion_ids"].tolist(), strict=True))


def test_rows_stay_aligned_when_they_are_shuffled_split_and_reused(tmp_path):
    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "max_steps": 8,
    }
    trainer = toy.make(Watched, tmp_path, settings=settings)
    trainer.train()
    assert len(trainer.generated) == 2
    assert len(trainer.learnt) == 16
    in_order = True
    for number, batch in enumerate(trainer.generated):
        assert_values(batch, 4)
        rows = [(*row, of_row) for row, of_row in zip(asked_and_said(batch), batch["advantages"], strict=True)]
        learnt = trainer.learnt[8 * number : 8 * number + 8]
        taken = [row for part in learnt for row in asked_and_said(part)]
        for (prompt, ids), actual in zip(taken, torch.cat([part["advantages"] for part in learnt]), strict=True):
            assert any(torch.equal(actual, of_row) for *row, of_row in rows if row == [prompt, ids])
        in_order &= taken[:16] == asked_and_said(batch)
    assert not in_order


def test_several_rewards_their_weights_and_the_one_that_is_correctness(tmp_path):
    trainer = toy.make(
        Watched,
        tmp_path,
        reward_funcs=[toy.is_short, toy.writes_one],
        settings={"reward_weights": [0.5, 1.0]},
        correct_key="writes_one",
    )
    trainer.train()
    for batch in trainer.generated:
        batch["rewards"] = torch.stack([batch["rewards"] @ torch.tensor([0.5, 1.0]), batch["rewards"][:, 1]], 1)
        assert_values(batch, 4, column=1)


def test_a_threshold(tmp_path):
    trainer = toy.make(Watched, tmp_path, reward_funcs=toy.is_short, ktae_config=KTAEConfig(correct_threshold=-0.55))
    trainer.train()
    lengths = [batch["completion_mask"].sum(1) for batch in trainer.generated]
    assert any(0 < (length < 6).sum() < len(length) for length in lengths)
    for batch in trainer.generated:
        batch["rewards"] = torch.cat([batch["rewards"], batch["rewards"] + 0.55], 1)
        assert_values(batch, 4, column=1)


def test_a_completion_without_a_label_is_left_out(tmp_path):
    def sometimes(completion_ids, **_):
        return [None if i % 4 == 1 else reward for i, reward in enumerate(toy.writes_one(completion_ids))]

    rewards = [toy.is_short, sometimes]
    settings = {"reward_weights": [1.0, 0.0]}
    trainer = toy.make(Watched, tmp_path, reward_funcs=rewards, settings=settings, correct_key="sometimes")
    trainer.train()
    for batch in trainer.generated:
        known = ~batch["rewards"][:, 1].isnan()
        assert known.sum() == 6
        assert_values(batch, 4, mask=batch["completion_mask"] * known[:, None], column=1)


def test_truncated_completions_are_not_counted(tmp_path):
    trainer = toy.make(Watched, tmp_path, settings={"mask_truncated_completions": True, "max_steps": 6})
    trainer.train()
    kept = torch.cat([batch["completion_mask"].any(1) for batch in trainer.generated])
    assert 0 < kept.sum() < len(kept)
    for batch in trainer.generated:
        assert_values(batch, 4)


class MasksTools(GRPOTrainer):
    """Says of every second token that a tool wrote it."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch["tool_mask"] = (
            (torch.arange(batch["completion_ids"].shape[1]) % 2 == 0).long().expand_as(batch["completion_ids"])
        )
        return batch


class WatchedWithTools(Watched, MasksTools):
    pass


def test_what_a_tool_wrote_is_not_counted(tmp_path):
    trainer = toy.make(WatchedWithTools, tmp_path)
    trainer.train()
    for batch in trainer.generated:
        assert_values(batch, 4, mask=batch["completion_mask"] * batch["tool_mask"])


@pytest.mark.skipif("env_mask" not in inspect.getsource(GRPOTrainer), reason="this TRL has no env_mask")
def test_what_an_environment_wrote_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    generator = torch.Generator().manual_seed(0)

    def rollout(prompts, trainer):  # noqa: ARG001
        completions = torch.randint(2, len(toy.WORDS), (len(prompts), 5), generator=generator).tolist()
        ids = [toy.tokenizer()(prompt)["input_ids"] for prompt in prompts]
        env_mask = [[1, 1, 0, 0, 1]] * len(prompts)
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None, "env_mask": env_mask}

    trainer = toy.make(Watched, tmp_path, rollout_func=rollout)
    trainer.train()
    for batch in trainer.generated:
        assert batch["tool_mask"].tolist() == [[1, 1, 0, 0, 1]] * 8
        assert_values(batch, 4, mask=batch["tool_mask"])


def test_evaluation_has_groups_of_its_own_size(tmp_path):
    settings = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    trainer = toy.make(Watched, tmp_path, settings=settings, eval_dataset=toy.DATASET.select(range(4)))
    trainer.train()
    trainer.generated.clear()
    trainer.evaluate()
    assert len(trainer.generated) == 2
    for batch in trainer.generated:
        assert_values(batch, 2)
    logged = next(entry for entry in trainer.state.log_history[::-1] if "eval_loss" in entry)
    for name in METRICS:
        assert 0 <= logged[f"eval_ktae/{name}"] <= 1


def test_metrics_are_logged_in_every_step(tmp_path):
    trainer = toy.make(Watched, tmp_path)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 3
    for entry, batch in zip(steps, trainer.generated, strict=True):
        values = assert_values(batch, 4)
        n_tokens = batch["completion_mask"].sum().item()
        assert entry["ktae/mean_abs_value"] == pytest.approx((values.abs().sum() / n_tokens).item())
        assert entry["ktae/nonzero_token_share"] == pytest.approx(((values != 0).sum() / n_tokens).item())
        mixed = [0 < group.sum() < 4 for group in batch["rewards"].view(-1, 4)]
        assert entry["ktae/mixed_group_share"] == sum(mixed) / 2


def test_one_sided_labels_are_warned_of_once(tmp_path, caplog):
    metrics._warn_one_sided.cache_clear()
    trainer = toy.make(KTAEGRPOTrainer, tmp_path, ktae_config=KTAEConfig(correct_threshold=1))
    with caplog.at_level(logging.WARNING, logger="ktae"):
        trainer.train()
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("ktae")]
    assert len(messages) == 1
    assert "A rollout is correct if the reward 'writes_one' > 1." in messages[0]
    assert "set correct_key or correct_threshold" in messages[0]


def test_groups_that_straddle_processes(tmp_path):
    """Three rows a process, groups of two: the second group has a row on each."""
    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run([*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    widths = set()
    for first, second in zip(*ranks, strict=True):
        assert torch.equal(first["rewards"], second["rewards"])
        widths.add((first["advantages"].shape[1], second["advantages"].shape[1]))
        width = max(batch["advantages"].shape[1] for batch in (first, second))
        joined = {"rewards": first["rewards"]}
        for name in ("completion_ids", "completion_mask", "advantages"):
            rows = [torch.nn.functional.pad(x[name], (0, width - x[name].shape[1])) for x in (first, second)]
            joined[name] = torch.cat(rows)
        assert_values(joined, 2)
    assert any(a != b for a, b in widths)


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({"importance_sampling_level": "sequence"}, {}, 'importance_sampling_level="sequence": one ratio'),
        *(({"loss_type": name}, {}, f'loss_type="{name}": ') for name in REFUSED.intersection(LOSS_TYPES)),
        *(
            ({name: 0.5}, {}, f"{name}: it keeps or drops")
            for name in ("off_policy_mask_threshold",)
            if name in inspect.signature(toy.GRPOConfig).parameters
        ),
        ({}, {"ktae_config": {"scale": 1}}, "config is a dict"),
        ({}, {"ktae_config": KTAEConfig(norm_adv_by_std=False)}, "norm_adv_by_std=False.* has no effect in TRL"),
        ({}, {"ktae_config": KTAEConfig(epsilon=0)}, r"KTAEConfig\(epsilon=0\) has no effect in TRL"),
        ({}, {"correct_key": "acc"}, r"correct_key='acc': KTAE needs one .* out of \['writes_one'\]"),
        ({}, {"reward_funcs": [toy.writes_one, toy.is_short]}, "correct_key=None: KTAE needs one reward function"),
        ({}, {"reward_funcs": [toy.writes_one] * 2, "correct_key": "writes_one"}, "out of .'writes_one', 'writes_one'"),
    ],
)
def test_refused_at_construction(tmp_path, settings, arguments, message):
    with pytest.raises(ValueError, match=message):
        toy.make(KTAEGRPOTrainer, tmp_path, settings=settings, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda patch: patch.setattr("trl.__version__", "0.25.1"), "TRL 0.25.1: its loss takes advantages .*; 0.26 is"),
        (lambda patch: patch.delattr(GRPOTrainer, "_calculate_rewards"), "no longer has the methods that KTAE extends"),
    ],
)
def test_refused_trainers(monkeypatch, tmp_path, change, message):
    change(monkeypatch)
    with pytest.raises(ValueError, match=message):
        toy.make(KTAEGRPOTrainer, tmp_path)


class SaysLiger(GRPOTrainer):
    """The kernel itself is not installed here: the trainer is made without it, and says that it has it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.use_liger_kernel = True


class KTAEWithLiger(KTAEMixin, SaysLiger):
    pass


def test_ligers_fused_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="use_liger_kernel: its fused loss does not split advantages"):
        toy.make(KTAEWithLiger, tmp_path)


def test_another_class_that_gives_credit_to_tokens_is_refused(tmp_path):
    class TokenLevel(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            batch["advantages"] = batch["advantages"][:, None].expand(batch["completion_ids"].shape)
            return batch

    class Both(KTAEMixin, TokenLevel):
        pass

    with pytest.raises(ValueError, match=r"Both has advantages of shape .* before KTAE adds to them"):
        toy.make(Both, tmp_path).train()


def test_a_loss_of_trls_own_for_another_trainer_is_refused(tmp_path):
    class Experimental(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, inputs)

    class Both(KTAEMixin, Experimental):
        pass

    assert toy.make(Both, tmp_path) is not None  # one of the user's own may take [B, T]
    Experimental.__module__ = "trl.experimental.some.trainer"
    with pytest.raises(ValueError, match="Experimental of TRL: a loss of its own"):
        toy.make(Both, tmp_path)


def test_a_trainer_that_is_no_grpo_trainer_is_refused():
    class Other:
        pass

    class Both(KTAEMixin, Other):
        pass

    with pytest.raises(ValueError, match="Both is no GRPOTrainer of TRL"):
        Both()


def test_evaluation_is_evaluation_though_generation_switches_the_model_to_training(tmp_path):
    class Switches(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            self.model.train()
            return batch

    class WatchedSwitches(Watched, Switches):
        pass

    settings = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    dataset = toy.DATASET.select(range(2))
    trainer = toy.make(WatchedSwitches, tmp_path, settings=settings, eval_dataset=dataset)
    trainer.model.eval()
    trainer._generate_and_score_completions([{"prompt": prompt} for prompt in "aabb"])
    assert_values(trainer.generated[0], 2)
    assert "ktae/mean_abs_value" in trainer._metrics["eval"]


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom:UserWarning")  # of TRL 0.26, over one reward
def test_evaluation_of_one_completion_a_prompt(tmp_path, caplog):
    settings = {"num_generations_eval": 1, "per_device_eval_batch_size": 4}
    dataset = toy.DATASET.select(range(2))
    trainer = toy.make(Watched, tmp_path, settings=settings, eval_dataset=dataset)
    trainer.model.eval()
    batch = trainer._generate_and_score_completions([{"prompt": prompt} for prompt in "ab"])
    assert batch["advantages"].shape == batch["completion_ids"].shape
    assert not batch["advantages"].nan_to_num().any()  # TRL 0.26 divides by the deviation of one reward
    assert "ktae" not in caplog.text


@pytest.mark.parametrize("change", [lambda rows: rows.roll(1, 0), lambda rows: rows[:-1]])
def test_rows_that_are_exchanged_or_dropped_after_they_were_rewarded_are_refused(tmp_path, change):
    class Replays(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            rows = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
            return {name: change(value) if name in rows else value for name, value in batch.items()}

    class Both(KTAEMixin, Replays):
        pass

    with pytest.raises(ValueError, match="Both learns from other completions than those that it has just rewarded"):
        toy.make(Both, tmp_path).train()


def test_the_example_learns():
    example = Path(__file__).resolve().parents[2] / "examples" / "trl_grpo.py"
    process = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    shares = [float(share) for share in re.findall(r"([\d.]+) correct", process.stdout)]
    assert len(shares) == 6
    assert shares[0] < 0.8
    assert shares[-1] > 0.9


def test_importing_one_integration_needs_no_other():
    code = "import json, sys; import ktae.integrations.trl; print(json.dumps(list(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    modules = json.loads(output.splitlines()[-1])
    assert "trl" in modules
    assert not [name for name in modules if name.split(".")[0] == "verl" or name.startswith("ktae.integrations.verl")]

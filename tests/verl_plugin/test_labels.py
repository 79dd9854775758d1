"""Which rollouts are correct: rewards made by veRL's own reward managers, handed on as its trainer does."""

import logging

import numpy as np
import pytest
import torch
from batches import advantages, assert_same
from omegaconf import OmegaConf
from protos import compute
from verl import DataProto
from verl.trainer.ppo.core_algos import FixedKLController
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.workers.reward_manager import get_reward_manager_cls

from ktae import metrics
from ktae.integrations.verl import labels

# Two prompts; the answer follows "=", the right one is 7, and "#" is the format asked for. Token ids are characters.
RESPONSES = ["#6+1=7", "#1=1", "2=9", "#=7", "#9=9", "#9=8", "9+9+9+9=7", "=8"]
UIDS = ["p", "p", "p", "p", "q", "q", "q", "q"]
CORRECT = [response.endswith("=7") for response in RESPONSES]
WIDTH = max(map(len, RESPONSES))


class Characters:
    """A tokenizer whose token ids are the characters' codes."""

    eos_token = "\n"

    def decode(self, ids, skip_special_tokens=True):  # noqa: ARG002
        return "".join(map(chr, ids.tolist()))


def judged(compute_score, manager="naive", **settings):
    """A batch with the scores and reward extras that the reward manager gives it."""
    lengths = torch.tensor([len(response) for response in RESPONSES])
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    responses = torch.tensor([[ord(character) for character in response.ljust(WIDTH)] for response in RESPONSES])
    prompts = torch.full((len(RESPONSES), 2), ord("?"))
    data = DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "response_mask": mask,
            "attention_mask": torch.cat([torch.ones_like(prompts), mask], 1),
        },
        non_tensors={
            "uid": np.array(UIDS, dtype=object),
            "reward_model": np.array([{"ground_truth": "7"}] * len(RESPONSES), dtype=object),
            "data_source": np.array(["sums"] * len(RESPONSES), dtype=object),
            "extra_info": np.array([{} for _ in RESPONSES], dtype=object),
        },
    )
    judge = get_reward_manager_cls(manager)(Characters(), num_examine=0, compute_score=compute_score, **settings)
    result = judge(data, return_dict=True)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = result["reward_tensor"]
    data.non_tensor_batch.update({name: np.array(values) for name, values in result["reward_extra_info"].items()})
    return data


def is_right(solution_str):
    return solution_str.endswith("=7")


def expected(data, correct=CORRECT):
    return advantages(
        token_level_rewards=data.batch["token_level_rewards"],
        response_mask=data.batch["response_mask"],
        responses=data.batch["responses"],
        index=UIDS,
        is_correct=correct,
    )


def assert_labels(data, ktae=None, correct=CORRECT, **algorithm):
    actual = compute(data, ktae=ktae, **algorithm).batch["advantages"]
    assert_same(actual, expected(data, correct))
    if correct != CORRECT:
        assert (actual - expected(data)).abs().max() > 0.1


@pytest.mark.parametrize("manager", ["naive", "dapo"])
@pytest.mark.parametrize(("right", "wrong"), [(1.0, 0.0), (1.0, -1.0), (True, False), (1, -1)])
def test_a_reward_function_that_returns_a_number_only(manager, right, wrong):
    of_dapo = {"max_resp_len": WIDTH, "overlong_buffer_cfg": OmegaConf.create({"enable": False, "len": 4})}
    settings = of_dapo if manager == "dapo" else {}
    data = judged(lambda solution_str, **_: right if is_right(solution_str) else wrong, manager, **settings)
    assert_labels(data)
    if manager == "dapo":  # which notes the number as `acc`
        assert_labels(data, {"correct_key": "acc"})


def format_reward(solution_str, **_):
    """0.1 for the format, whatever the answer."""
    acc = is_right(solution_str)
    return {"score": acc + 0.1 * solution_str.startswith("#"), "acc": acc}


def test_a_format_reward_makes_wrong_rollouts_correct_unless_the_label_is_named():
    data = judged(format_reward)
    assert_labels(data, correct=[response.startswith("#") or is_right(response) for response in RESPONSES])
    assert_labels(data, {"correct_key": "acc"})
    assert_labels(data, {"correct_threshold": 0.5})


@pytest.mark.parametrize("label", [bool, float, np.bool_, np.float32, np.int64])
def test_labels_of_any_type(label):
    data = judged(lambda solution_str, **_: {"score": 0.3, "acc": label(is_right(solution_str))})
    assert_labels(data, {"correct_key": "acc"})


@pytest.mark.parametrize(
    "label",
    [
        float,
        np.float32,
        lambda x: np.array([x], dtype=np.float32),
        lambda x: torch.tensor(x, dtype=torch.float32),
        lambda x: torch.tensor([x], dtype=torch.bfloat16),
    ],
)
def test_a_label_is_compared_in_its_own_precision(label):
    def is_greater(value, threshold):
        return labels._is_greater(label(value), threshold, 0, "acc")

    assert not is_greater(0.1, 0.1)
    assert is_greater(0.11, 0.1)
    assert not is_greater(0.7, 0.7)


@pytest.mark.parametrize("value", ["1", None, [], 1j, float("nan"), torch.zeros(2), np.array("1"), 2**70])
def test_a_label_that_is_not_a_number(value):
    with pytest.raises(ValueError, match="which is neither a number nor a boolean"):
        labels._is_greater(value, 0.0, 0, "acc")


def test_a_rollout_without_a_label_stops_the_run():
    data = judged(lambda solution_str, **_: {"score": 0.0, "acc": None if "+" in solution_str else True})
    with pytest.raises(ValueError, match="correct_key=acc: row 0 of the batch has None"):
        compute(data, ktae={"correct_key": "acc"})


def test_a_number_only_has_no_label_to_name():
    data = judged(lambda solution_str, **_: float(is_right(solution_str)))
    with pytest.raises(
        ValueError, match=r"the batch has no such reward extra. .*Let the reward function return a dict"
    ):
        compute(data, ktae={"correct_key": "acc"})


def test_dapos_overlong_penalty_makes_a_correct_rollout_incorrect_unless_the_label_is_named():
    overlong = OmegaConf.create({"enable": True, "len": 4, "penalty_factor": 2.0, "log": True})
    data = judged(format_reward, "dapo", max_resp_len=WIDTH, overlong_buffer_cfg=overlong)
    scores = data.batch["token_level_scores"].sum(1)
    assert CORRECT[6]
    assert scores[6] <= 0
    assert_labels(data, {"correct_key": "acc"})
    assert_labels(data, correct=(scores > 0).tolist())


def test_kl_in_the_reward():
    data = judged(lambda solution_str, **_: float(is_right(solution_str)))
    data.batch["old_log_probs"] = torch.zeros(len(RESPONSES), WIDTH)
    data.batch["ref_log_prob"] = torch.full((len(RESPONSES), WIDTH), -1.0)
    data, _ = apply_kl_penalty(data, FixedKLController(0.5), kl_penalty="kl")
    assert (data.batch["token_level_rewards"].sum(1) < 0).all()
    assert_labels(data, use_kl_in_reward=True)


class TestOneSided:
    @pytest.fixture(autouse=True)
    def forget(self):
        metrics._warn_one_sided.cache_clear()

    def test_a_warning_once(self, caplog):
        shifted = judged(lambda solution_str, **_: 2.0 if is_right(solution_str) else 1.0)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                compute(shifted)
        assert len(caplog.records) == 1
        message = caplog.records[0].getMessage()
        assert "No group of this batch has both correct and incorrect rollouts" in message
        assert "A rollout is correct if the score before the KL term > 0." in message
        assert "+algorithm.ktae.correct_key" in message

    def test_the_label_is_named(self, caplog):
        data = judged(lambda solution_str, **_: {"score": float(is_right(solution_str)), "acc": True})
        compute(data, ktae={"correct_key": "acc"})
        assert "A rollout is correct if the reward extra 'acc' > 0." in caplog.text

    @pytest.mark.parametrize("uids", [UIDS, [f"prompt-{row}" for row in range(8)]], ids=["mixed", "single rollouts"])
    @pytest.mark.filterwarnings("ignore:Each of the 8 groups of this batch has one rollout")
    def test_no_warning(self, caplog, uids):
        data = judged(lambda solution_str, **_: float(is_right(solution_str)))
        data.non_tensor_batch["uid"] = np.array(uids, dtype=object)
        compute(data)
        assert not caplog.records

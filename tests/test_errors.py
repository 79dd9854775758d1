"""Every error message: what came, the rule, the usual cause, the fix."""

import re
from fractions import Fraction

import numpy as np
import pandas
import pytest
import torch
from batches import advantages, random_batch

from ktae import KTAEConfig, key_token_table


def batch_with(**changes):
    return random_batch() | changes


def with_value(name, row, column, value):
    batch = random_batch()
    batch[name] = batch[name].double()
    batch[name][row, column] = value
    return batch


B, T = 24, 9
BAD_BATCHES = {
    "prompt left in": (
        batch_with(responses=torch.zeros(B, T + 3, dtype=torch.long)),
        r"one shape, got:\n  token_level_rewards: torch.float64 \[24, 9\] on cpu\n(.*\n)*.*\[24, 12\](.*\n)*.*drop the",
    ),
    "reward per rollout": (batch_with(token_level_rewards=torch.zeros(B)), "A reward per rollout goes to one position"),
    "float ids": (batch_with(responses=torch.zeros(B, T)), "token ids, which are integers, got torch.float32"),
    "bool ids": (batch_with(responses=torch.zeros(B, T, dtype=torch.bool)), "integers, got torch.bool"),
    "array": (batch_with(responses=np.zeros((B, T), dtype=int)), r"responses: ndarray \(24, 9\)(.*\n)*.*as_tensor"),
    "nested": (
        batch_with(responses=torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)),
        "three dense torch tensors",
    ),
    "another device": (batch_with(responses=torch.zeros(B, T, dtype=torch.long, device="meta")), "one device, got"),
    "weights as a mask": (
        with_value("response_mask", 2, 1, 0.5),
        r"response_mask\[2, 1\] is 0.5: a mask holds 0 and 1",
    ),
    "negative mask": (with_value("response_mask", 2, 1, -1), r"response_mask\[2, 1\] is -1.0"),
    "NaN in the mask": (with_value("response_mask", 2, 1, np.nan), r"response_mask\[2, 1\] is nan"),
    "NaN reward": (with_value("token_level_rewards", 3, 8, np.nan), "rewards of row 3 sum to nan.*finite.*KL term"),
    "infinite reward": (with_value("token_level_rewards", 3, 8, -np.inf), "rewards of row 3 sum to -inf"),
    "complex reward": (
        batch_with(token_level_rewards=torch.zeros(B, T, dtype=torch.cfloat)),
        "token_level_rewards is torch.complex64: rewards are real numbers",
    ),
    "index of another length": (batch_with(index=["p"] * 23), "index has 23 labels for a batch of 24 rows"),
    "index of two dimensions": (batch_with(index=np.zeros((B, 1))), r"index has shape \[24, 1\]"),
    "lists as labels": (
        batch_with(index=[["p"]] * B),
        r"index\[0\] is \['p'\], a list: a label is a string or a number.*unhashable",
    ),
    "tensors as labels": (batch_with(index=[torch.tensor([1])] * B), r"index\[0\] is \[1\], a list"),
    "a label among many": (batch_with(index=[*"abc", ["p"], *"d" * 20]), r"index\[3\] is \['p'\], a list"),
    "a set": (batch_with(index=set(range(B))), "index is a set"),
    "a dict": (batch_with(index=dict.fromkeys(range(B))), "index is a dict"),
    "a data frame": (batch_with(index=pandas.DataFrame({"uid": ["p"] * B})), r"index has shape \[24, 1\]"),
    "objects": (batch_with(index=[object() for _ in range(B)]), r"index\[0\] is <object.*tells no group from another"),
    "pandas' NA": (batch_with(index=["p"] * 23 + [pandas.NA]), r"index\[23\] is <NA>"),
    "one string": (batch_with(index="p" * B), "index is a str"),
    "no index": (batch_with(index=None), "index is a NoneType"),
    "missing label": (
        batch_with(index=["p"] * 5 + [None] * 19),
        r"index\[5\] is None, which tells no group from another",
    ),
    "NaN label": (batch_with(index=[1.0] * 5 + [float("nan")] * 19), r"index\[5\] is nan"),
    "session label": (batch_with(rollout_index=[0] * 23), "rollout_index has 23 labels"),
    "missing session": (batch_with(rollout_index=[0] * 23 + [None]), r"rollout_index\[23\] is None"),
    "outcomes of another length": (
        batch_with(is_correct=[True] * 23),
        "is_correct is list of length 23 for 24 rows: KTAE needs one outcome a row",
    ),
    "scores as outcomes": (batch_with(is_correct=[0.0] * 23 + [0.5]), r"is_correct\[23\] is 0.5.*`score > threshold`"),
    "NaN outcome": (batch_with(is_correct=[0.0] * 23 + [float("nan")]), r"is_correct\[23\] is nan"),
    "missing outcome": (
        batch_with(is_correct=[True] * 23 + [None]),
        r"is_correct\[23\] is None: outcomes are.*decide a missing label yourself",
    ),
    "almost an outcome": (batch_with(is_correct=[1 - 1e-12] * B), r"is_correct\[0\] is 0.99999"),
    "outcomes of two dimensions": (batch_with(is_correct=torch.ones(B, 1)), r"is_correct is torch.float32 \[24, 1\]"),
    "one outcome": (batch_with(is_correct=True), "is_correct is bool for 24 rows"),
    "unsigned ids": (batch_with(responses=torch.zeros(B, T, dtype=torch.uint64)), "integers, got torch.uint64"),
    "unsigned mask": (
        batch_with(response_mask=torch.ones(B, T, dtype=torch.uint16)),
        "response_mask is torch.uint16: a mask holds 0 and 1",
    ),
    "sparse advantages": (batch_with(rollout_advantages=torch.eye(B, T).to_sparse()), "torch.sparse_coo on cpu for a"),
    "complex advantages": (batch_with(rollout_advantages=torch.zeros(B, dtype=torch.cfloat)), "a real tensor"),
    "a dict as config": (batch_with(config={}), "config is a dict: pass KTAEConfig"),
    "the class as config": (batch_with(config=KTAEConfig), "config is a type"),
    "column of advantages": (
        batch_with(rollout_advantages=torch.zeros(B, 1)),
        r"rollout_advantages.*\[24, 1\].*squeeze",
    ),
    "advantages as a list": (batch_with(rollout_advantages=[0.0] * B), "rollout_advantages: list"),
    "infinite advantage": (
        batch_with(rollout_advantages=torch.full((B,), torch.inf)),
        "rollout-level advantage of row 0 is inf.*standard deviation of 0",
    ),
}


@pytest.mark.parametrize(("batch", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
@pytest.mark.parametrize("function", [advantages, key_token_table])
def test_bad_batch(function, batch, message):
    with pytest.raises(ValueError, match=re.compile(message)):
        function(**batch)


BAD_CONFIGS = {
    "negative weight": ({"fisher_weight": -1}, r"fisher_weight=-1: KTAE needs a number from 0 to 1e\+30"),
    "NaN weight": ({"information_gain_weight": float("nan")}, "information_gain_weight=nan"),
    "infinite weight": ({"term_frequency_weight": float("inf")}, "term_frequency_weight=inf"),
    "negative scale": ({"scale": -0.5}, "scale=-0.5"),
    "negative epsilon": ({"epsilon": -1e-6}, "epsilon=-1e-06"),
    "string weight": ({"fisher_weight": "1"}, r"fisher_weight='1' \(str\): KTAE needs a number"),
    "bool weight": ({"fisher_weight": True}, r"fisher_weight=True \(bool\)"),
    "huge weight": (
        {"term_frequency_weight": 1e300},
        r"term_frequency_weight=1e\+300: KTAE needs a number from 0 to 1e",
    ),
    "fraction": ({"scale": Fraction(1, 2)}, r"scale=Fraction\(1, 2\) \(Fraction\): KTAE needs a number"),
    "id of 65 bits": ({"ignore_token_ids": (2**64,)}, "token ids are integers of 64 bits"),
    "no strength": ({"fisher_weight": 0, "information_gain_weight": 0}, "both 0.*Set scale=0"),
    "NaN threshold": ({"correct_threshold": float("nan")}, "correct_threshold is NaN"),
    "string threshold": ({"correct_threshold": "0.5"}, "correct_threshold='0.5'"),
    "unknown preset": ({"preset": "papre"}, "preset='papre' is unknown. Known presets: published, paper"),
    "one id": ({"ignore_token_ids": 151643}, r"ignore_token_ids=151643: give a tuple, also for one id: \(151643,\)"),
    "float id": ({"ignore_token_ids": (1.5,)}, "ignore_token_ids contains 1.5"),
    "string flag": ({"norm_adv_by_std": "yes"}, r"norm_adv_by_std='yes': give True \(GRPO\) or False \(Dr.GRPO\)"),
}


@pytest.mark.parametrize(("settings", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_bad_config(settings, message):
    with pytest.raises(ValueError, match=message):
        KTAEConfig(**settings)


def test_unknown_setting():
    with pytest.raises(TypeError, match="unexpected keyword argument 'top'"):
        KTAEConfig(top=1)


def test_the_preset_sets_the_scale_unless_it_is_given():
    assert KTAEConfig(preset="paper").scale == 0.5
    assert KTAEConfig(preset="paper", scale=2).scale == 2
    assert KTAEConfig(scale=0).scale == 0


def test_config_is_frozen_and_hashable():
    with pytest.raises(AttributeError):
        KTAEConfig().scale = 2
    assert hash(KTAEConfig(ignore_token_ids=[1, 2])) == hash(KTAEConfig(ignore_token_ids=(1, 2)))


def test_rewards_without_a_finite_variance():
    batch = random_batch()
    batch["token_level_rewards"][0, 0] = 1e200
    with pytest.raises(ValueError, match=r"Rewards between 0.0 and 1e\+200 have no finite variance.*a failed reward"):
        advantages(**batch)


def test_advantages_beyond_float32():
    batch = random_batch()
    batch["token_level_rewards"] = batch["token_level_rewards"].float()
    batch["token_level_rewards"][0, :3] = 3e38
    with pytest.raises(ValueError, match=r"rollout-level advantage of row 0 is inf.*rewards beyond float32"):
        advantages(**batch, config=KTAEConfig(norm_adv_by_std=False))

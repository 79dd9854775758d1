"""`+algorithm.ktae.base_estimator`: KTAE on top of every estimator of veRL."""

import numpy as np
import pytest
import torch
from batches import advantages, assert_same, random_batch
from omegaconf import OmegaConf
from protos import WIDTH, compute, data_proto
from verl.trainer.ppo import core_algos

from ktae import KTAEConfig
from ktae.integrations.verl.base import base_advantages, find_base

CAN_BE_BASE = {
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
}
MISSING = {
    "gae": r"`values`, a critic's, which veRL trains for gae only; `gamma`; `lam`",
    "remax": "`reward_baselines`, of greedy rollouts, which veRL samples for remax only",
    "gdpo": "`non_tensor_batch`, the reward extras, which veRL passes to gdpo only; `batch`",
    "optimal_token_baseline": "`old_log_probs`; `sum_pi_squared`, which veRL's actor computes",
    "tir_optimal_token_baseline": "`old_log_probs`; `sum_pi_squared`, which veRL's actor computes",
}
REGISTERED = sorted(set(core_algos.ADV_ESTIMATOR_REGISTRY) - {"ktae"})


@pytest.fixture
def register(monkeypatch):
    """A function that registers an estimator of one's own, for one test."""
    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", dict(core_algos.ADV_ESTIMATOR_REGISTRY))
    return core_algos.register_adv_est


def key_part(batch, **arguments):
    """The key-token values of the batch, [B, T]."""
    with_scale, without = (advantages(**batch, **arguments, config=config) for config in (None, KTAEConfig(scale=0)))
    return with_scale - without


def test_every_estimator_of_verl_is_covered():
    assert set(REGISTERED) <= CAN_BE_BASE | set(MISSING)


@pytest.mark.parametrize("norm_adv_by_std_in_grpo", [True, False])
@pytest.mark.parametrize("name", [name for name in REGISTERED if name in CAN_BE_BASE])
def test_ktae_minus_base_is_the_key_part(name, norm_adv_by_std_in_grpo):
    algorithm = {"gamma": 0.9, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo}
    data, batch = data_proto()
    # veRL never tells grpo_vectorized, which computes in float32, about norm_adv_by_std_in_grpo.
    base = compute(data_proto()[0], "grpo" if name == "grpo_vectorized" else name, **algorithm)
    actual = compute(data, **algorithm, ktae={"base_estimator": name}).batch["advantages"]
    expected = key_part(batch)
    assert expected.abs().max() > 0.5
    tolerance = 1e-6 if name == "grpo_vectorized" else 1e-12
    torch.testing.assert_close(actual - base.batch["advantages"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in REGISTERED if name in MISSING])
def test_what_the_trainer_does_not_give_is_named(name):
    with pytest.raises(ValueError, match=f"base_estimator={name} cannot be built on: it needs {MISSING[name]}"):
        compute(data_proto()[0], gdpo_reward_keys=["acc"], ktae={"base_estimator": name})


@pytest.mark.parametrize("name", ["rlo", "ktae"])
def test_no_such_estimator(name):
    with pytest.raises(ValueError, match=f"base_estimator={name}: no such estimator.*Registered: .*rloo"):
        compute(data_proto()[0], ktae={"base_estimator": name})


@pytest.mark.parametrize("option", ["norm_adv_by_std", "epsilon"])
def test_an_option_about_the_grpo_advantage_that_the_base_replaces(option):
    with pytest.raises(ValueError, match=rf"ktae.{option} is about the GRPO advantage that .*=rloo replaces"):
        compute(data_proto()[0], ktae={"base_estimator": "rloo", option: 0})


@pytest.mark.parametrize("value", [3, "", ["rloo"]])
def test_not_a_name(value):
    with pytest.raises(ValueError, match=r"base_estimator=.*: give the name of an estimator of veRL, such as rloo"):
        compute(data_proto()[0], ktae={"base_estimator": value})


def test_an_estimator_of_ones_own_gets_what_it_declares(register):
    seen = {}

    @register("mine")
    def mine(token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=None):
        seen.update(index=index, norm=norm_adv_by_std_in_grpo)
        advantages = token_level_rewards.sum(1, keepdim=True) * response_mask
        return advantages, advantages

    @register("any")
    def any_arguments(**kwargs):
        seen["names"] = set(kwargs)
        return kwargs["response_mask"] * 1.0, None

    data, batch = data_proto()
    actual = compute(data, ktae={"base_estimator": "mine"}, norm_adv_by_std_in_grpo=False).batch["advantages"]
    assert_same(actual, batch["token_level_rewards"].sum(1, keepdim=True) * batch["response_mask"] + key_part(batch))
    assert seen["index"].tolist() == batch["index"]
    assert seen["index"].dtype == object
    assert seen["norm"] is False
    actual = compute(data, ktae={"base_estimator": "any"}).batch["advantages"]
    assert_same(actual, batch["response_mask"] + key_part(batch))
    assert seen["names"] == {"token_level_rewards", "response_mask", "index", "config"}


def test_an_estimator_that_writes_in_place_leaves_the_batch_alone(register):
    @register("in_place")
    def in_place(token_level_rewards, response_mask):
        advantages = token_level_rewards.sub_(1).mul_(response_mask)
        response_mask.zero_()
        return advantages, advantages

    data, batch = data_proto()
    actual = compute(data, ktae={"base_estimator": "in_place"}).batch["advantages"]
    assert torch.equal(data.batch["token_level_rewards"], batch["token_level_rewards"])
    assert torch.equal(data.batch["response_mask"], batch["response_mask"])
    assert_same(actual, (batch["token_level_rewards"] - 1) * batch["response_mask"] + key_part(batch))


@pytest.mark.parametrize("label", [torch.tensor, lambda uid: ("a tuple", uid), np.int64])
def test_the_base_groups_by_the_same_labels(label):
    _, batch = data_proto()
    uids = [["p0", "p1", "p2", "p3"].index(f"p{i}") for i in [0, 1, 2, 3] * 6]
    arguments = (batch["token_level_rewards"], batch["response_mask"])
    actual = base_advantages("rloo", *arguments, [label(uid) for uid in uids], None, None)
    assert torch.equal(actual, base_advantages("rloo", *arguments, uids, None, None))
    assert actual.abs().max() > 0


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "index is a NoneType"),
        (["p"] * 23, "index has 23 labels for a batch of 24 rows"),
        (np.full((24, 1), "p"), r"index has shape \[24, 1\]"),
    ],
)
def test_uids_are_checked_before_the_base_sees_them(index, message):
    _, batch = data_proto()
    with pytest.raises(ValueError, match=message):
        base_advantages("rloo", batch["token_level_rewards"], batch["response_mask"], index, None, None)


def test_no_rows():
    empty = torch.zeros(0, 5)
    assert base_advantages("rloo", empty, empty, [], [], None).shape == (0, 5)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(24, 1), "returned torch.float32 \\[24, 1\\] on cpu for a batch of shape \\[24, 9\\]"),
        (None, "returned NoneType"),
        ((torch.full((24, WIDTH), torch.nan), None), "rollout-level advantage of row 0 is nan"),
    ],
)
def test_an_estimator_that_returns_something_else(register, result, message):
    register("other")(lambda **_: result)
    with pytest.raises(ValueError, match=message):
        compute(data_proto()[0], ktae={"base_estimator": "other"})


def test_a_future_estimator_that_reads_the_batch_is_refused(register):
    register("reads")(lambda token_level_rewards, response_mask, batch=None: None)  # noqa: ARG005
    with pytest.raises(ValueError, match="base_estimator=reads cannot be built on: it needs `batch`"):
        find_base("reads")


def test_an_estimator_with_positional_arguments_is_refused(register):
    register("positional")(lambda token_level_rewards, /, response_mask: None)  # noqa: ARG005
    with pytest.raises(ValueError, match=r"cannot be built on: it needs `token_level_rewards`.* by name"):
        find_base("positional")


SESSIONS = ["s0", "s1", "s0", "s2", "s3", "s1", "s4", "s5"]  # s0 and s1 have two rows each
UIDS = ["p", "p", "p", "p", "q", "p", "q", "q"]


def sessions_batch():
    """Rows of sessions, and the same sessions joined by hand: [6, T + T]."""
    batch = random_batch(groups=2, size=4, seed=3)
    rewards, mask = batch["token_level_rewards"].float(), batch["response_mask"]
    rewards += 0.1 * torch.rand(rewards.shape, generator=torch.Generator().manual_seed(0))
    rewards *= mask
    mask[0, 1] = 0  # a tool's output
    rewards[5, -1] = 2.0  # a reward where nothing is trained on
    joined_rewards, joined_mask = torch.zeros(6, 2 * WIDTH), torch.zeros(6, 2 * WIDTH, dtype=torch.long)
    for session in range(6):
        row = [i for i, name in enumerate(SESSIONS) if name == f"s{session}"]
        start = 0
        for i in row:
            n = WIDTH if i == 5 else int(mask[i].nonzero().max()) + 1
            joined_mask[session, start : start + n] = mask[i, :n]
            if i == row[-1]:
                joined_rewards[session, start : start + n] = rewards[i, :n]
            start += n
    return rewards, mask, joined_rewards, joined_mask


@pytest.mark.parametrize("name", [name for name in REGISTERED if name in CAN_BE_BASE])
def test_a_session_is_one_rollout_to_the_base(name):
    rewards, mask, joined_rewards, joined_mask = sessions_batch()
    config = OmegaConf.create({"gamma": 0.9})
    before = rewards.clone()
    actual = base_advantages(name, rewards, mask, UIDS, SESSIONS, config)
    uids = np.array(["p", "p", "p", "q", "q", "q"], dtype=object)
    arguments = {"index": uids, "config": config} if name != "reinforce_plus_plus" else {"config": config}
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=joined_rewards, response_mask=joined_mask, **arguments
    )
    assert torch.equal(rewards, before)
    for session in range(6):
        rows = [i for i, label in enumerate(SESSIONS) if label == f"s{session}"]
        values = torch.cat([actual[i][mask[i].bool()] for i in rows])
        torch.testing.assert_close(values, expected[session][joined_mask[session].bool()])
    assert (actual[mask == 0] == 0).all()

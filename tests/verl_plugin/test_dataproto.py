"""The V0 seam: veRL's own `compute_advantage` and `compute_data_metrics` on a DataProto."""

import itertools

import numpy as np
import pytest
import torch
from batches import advantages, random_batch
from omegaconf import OmegaConf
from protos import WIDTH, compute, data_proto
from verl import DataProto
from verl.trainer.ppo import core_algos, metric_utils, ray_trainer

from ktae import KTAEConfig
from ktae.integrations.verl import estimator


def test_advantages_and_returns():
    data, batch = data_proto()
    data = compute(data)
    assert torch.equal(data.batch["advantages"], advantages(**batch))
    assert torch.equal(data.batch["returns"], data.batch["advantages"])


def test_options_reach_the_estimator():
    data, batch = data_proto()
    data = compute(data, norm_adv_by_std_in_grpo=False, ktae={"alpha": 2, "preset": "paper"})
    config = KTAEConfig(preset="paper", fisher_weight=2, norm_adv_by_std=False)
    assert torch.equal(data.batch["advantages"], advantages(**batch, config=config))


def test_the_label_is_decided_before_the_kl_term():
    data, batch = data_proto()
    data.batch["token_level_rewards"] = batch["token_level_rewards"] + 0.01 * torch.randn(24, WIDTH).double().abs()
    actual = compute(data).batch["advantages"]
    correct = batch["token_level_rewards"].sum(1) > 0
    expected = advantages(**batch | {"token_level_rewards": data.batch["token_level_rewards"]}, is_correct=correct)
    assert torch.equal(actual, expected)
    assert not (data.batch["token_level_rewards"].sum(1) > 0).equal(correct)  # or the test shows nothing


def test_without_scores_before_the_kl_term_a_label_is_needed():
    data, batch = data_proto()
    data.batch.pop("token_level_scores")
    assert torch.equal(compute(data).batch["advantages"], advantages(**batch))
    with pytest.raises(ValueError, match="use_kl_in_reward=True, and this trainer's batch has no `token_level_scores`"):
        compute(data, use_kl_in_reward=True)


@pytest.mark.parametrize("values", [[True, False] * 12, [1.0, 0.2] * 12, [np.float32(1), 0] * 12], ids=repr)
def test_correct_key(values):
    data, batch = data_proto(acc=np.array(values, dtype=object))
    actual = compute(data, ktae={"correct_key": "acc", "correct_threshold": 0.5}).batch["advantages"]
    assert torch.equal(actual, advantages(**batch, is_correct=[True, False] * 12))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([True] * 23 + [None], "correct_key=acc: row 23 of the batch has None"),
        (["True"] * 24, "row 0 of the batch has 'True', which is neither a number nor a boolean"),
        ([float("nan")] * 24, "row 0 of the batch has nan"),
    ],
)
def test_labels_that_are_none(values, message):
    data, _ = data_proto(acc=np.array(values, dtype=object))
    with pytest.raises(ValueError, match=message):
        compute(data, ktae={"correct_key": "acc"})


def test_missing_correct_key():
    data, _ = data_proto(accuracy=np.ones(24))
    with pytest.raises(
        ValueError, match=r"correct_key=acc: the batch has no such reward extra. It has \['accuracy', 'uid'\]"
    ):
        compute(data, ktae={"correct_key": "acc"})


def test_metrics_reach_the_tracker():
    data, batch = data_proto()
    value = advantages(**batch) - advantages(**batch, config=KTAEConfig(scale=0))
    key_part = value.abs()
    tokens = batch["response_mask"].sum()
    metrics = metric_utils.compute_data_metrics(compute(data), use_critic=False)
    assert metrics["ktae/mixed_group_share"] == 1
    assert metrics["ktae/single_rollout_group_share"] == 0
    assert metrics["ktae/mean_value"] == pytest.approx((value.sum() / tokens).item())
    assert metrics["ktae/mean_abs_value"] == pytest.approx((key_part.sum() / tokens).item())
    assert metrics["ktae/nonzero_token_share"] == pytest.approx(((key_part > 0).sum() / tokens).item())
    assert metrics["ktae/saturated_token_share"] == pytest.approx(((key_part > 0.9).sum() / tokens).item())
    assert 0 < metrics["timing_s/ktae"] < 60
    assert "critic/score/mean" in metrics


def test_every_so_many_steps_the_metrics_of_permuted_outcomes(monkeypatch):
    monkeypatch.setattr(estimator, "_steps", itertools.count())
    seen = []
    for _ in range(4):
        data, _ = data_proto()
        before = torch.get_rng_state()
        metrics = metric_utils.compute_data_metrics(compute(data, ktae={"chance_every": 2}), use_critic=False)
        assert torch.equal(torch.get_rng_state(), before)  # a run goes on as it would without
        seen.append({name: metrics[name] for name in metrics if name.startswith("ktae/chance/")})
    assert [bool(metrics) for metrics in seen] == [True, False, True, False]
    assert seen[0]["ktae/chance/mean_abs_value"] != seen[2]["ktae/chance/mean_abs_value"]
    assert 0 < seen[0]["ktae/chance/saturated_token_share"] < 1
    assert "ktae/chance/mixed_group_share" not in seen[0]  # the same by chance


def test_no_metrics_of_permuted_outcomes(monkeypatch):
    monkeypatch.setattr(estimator, "_steps", itertools.count())
    data, _ = data_proto()
    metrics = metric_utils.compute_data_metrics(compute(data, ktae={"chance_every": 0}), use_critic=False)
    assert not [name for name in metrics if "chance" in name]


def test_metrics_of_one_sided_and_single_groups():
    data, _ = data_proto()
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] = torch.zeros(24, WIDTH)
    data.non_tensor_batch["uid"] = np.array(["lonely"] + ["p", "q", "r"] * 7 + ["p", "q"], dtype=object)
    metrics = metric_utils.compute_data_metrics(compute(data), use_critic=False)
    assert metrics["ktae/mixed_group_share"] == 0
    assert metrics["ktae/single_rollout_group_share"] == 0.25
    assert metrics["ktae/nonzero_token_share"] == 0


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_other_estimators_are_left_alone(estimator):
    data, _ = data_proto()
    theirs, _ = data_proto()
    actual = compute(data, estimator)
    expected = ray_trainer.compute_advantage.__ktae_wraps__(
        theirs, adv_estimator=estimator, config=OmegaConf.create({}), num_repeat=6
    )
    assert torch.equal(actual.batch["advantages"], expected.batch["advantages"])
    assert "ktae/mean_abs_value" not in metric_utils.compute_data_metrics(actual, use_critic=False)


def test_metrics_are_reported_once_and_only_after_ktae():
    data, _ = data_proto()
    collect = metric_utils.compute_data_metrics
    assert "ktae/mean_abs_value" in collect(compute(data), use_critic=False)
    assert "ktae/mean_abs_value" not in collect(data, use_critic=False)
    compute(data)
    assert "ktae/mean_abs_value" not in collect(compute(data, "grpo"), use_critic=False)


def test_batches_can_still_be_joined():
    first, second = data_proto()[0], data_proto()[0]
    second.batch["token_level_rewards"] = second.batch["token_level_scores"] = torch.zeros(24, WIDTH)
    assert len(DataProto.concat([compute(first), compute(second)])) == 48


def test_a_batch_without_ids_stops_the_run():
    data, _ = data_proto()
    data.batch.pop("responses")
    with pytest.raises(ValueError, match="KTAE cannot reach the token ids of the responses"):
        compute(data)


def test_a_loan_does_not_outlive_its_step():
    data, batch = data_proto()
    compute(data)
    estimator = core_algos.get_adv_estimator_fn("ktae")
    with pytest.raises(ValueError, match="KTAE cannot reach the token ids"):
        estimator(batch["token_level_rewards"], batch["response_mask"], index=batch["index"], config={})


def test_a_verl_that_passes_the_batch_needs_no_loan():
    data, batch = data_proto(acc=np.array([1, 0] * 12))
    estimator = core_algos.get_adv_estimator_fn("ktae")
    actual, _ = estimator(
        token_level_rewards=batch["token_level_rewards"],
        response_mask=batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config={"ktae": {"correct_key": "acc"}},
        batch=data.batch,
        non_tensor_batch=data.non_tensor_batch,
        reward_baselines=None,
    )
    assert torch.equal(actual, advantages(**batch, is_correct=[1, 0] * 12))


@pytest.mark.parametrize("norm_adv_by_std", [True, False])
def test_with_scale_0_it_is_verls_grpo(norm_adv_by_std):
    """veRL's own estimator, fed float64 rewards, is the rollout-level part."""
    batch = random_batch()
    batch["token_level_rewards"] = torch.randn(24, WIDTH, dtype=torch.float64)
    expected, _ = core_algos.compute_grpo_outcome_advantage(
        batch["token_level_rewards"].clone(),
        batch["response_mask"],
        np.array(batch["index"], dtype=object),
        norm_adv_by_std_in_grpo=norm_adv_by_std,
    )
    actual = advantages(**batch, config=KTAEConfig(scale=0, norm_adv_by_std=norm_adv_by_std))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)

"""What a tracker shows: against numpy, and against the reference with outcomes that are permuted."""

import numpy as np
import pytest
import torch
from batches import advantages, make_batch, random_batch

from ktae import KTAEConfig
from ktae.counting import Rollouts
from ktae.estimator import estimate


def value_of(batch):
    return advantages(**batch) - advantages(**batch, config=KTAEConfig(scale=0))


def test_sums_of_the_groups():
    batch = random_batch(groups=5, size=8, seed=3)
    value, mask = value_of(batch), batch["response_mask"]
    result = estimate(**batch)
    groups = list(dict.fromkeys(batch["index"]))
    of_group = [
        value[[row for row, label in enumerate(batch["index"]) if label == group]].sum().item() for group in groups
    ]
    assert result.value.tolist() == pytest.approx(of_group)
    assert result.metrics()["ktae/mean_value"] == pytest.approx((value.sum() / mask.sum()).item())


def test_correlation_with_the_accuracy_is_over_groups_with_both_outcomes():
    batch = random_batch(groups=9, size=7, seed=1)
    batch["token_level_rewards"][::9] = 0  # the first group has one outcome
    value, mask = value_of(batch), batch["response_mask"]
    means, accuracies = [], []
    for group in range(1, 9):
        rows = range(group, len(mask), 9)
        means.append((value[rows].sum() / mask[rows].sum()).item())
        accuracies.append((batch["token_level_rewards"][rows].sum(1) > 0).double().mean().item())
    assert 0 < min(accuracies) < max(accuracies) < 1
    expected = np.corrcoef(means, accuracies)[0, 1]
    assert estimate(**batch).metrics()["ktae/value_accuracy_correlation"] == pytest.approx(expected)


@pytest.mark.parametrize("config", [KTAEConfig(), KTAEConfig(scale=0)])
def test_no_correlation_where_the_accuracy_or_the_value_is_constant(config):
    one = [[5, 7], [5, 8], [6, 7], [6, 9]]
    rewards = [1, 1, 0, 0] if config.scale else [1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0]
    batch = make_batch(one * 3, rewards * (3 if config.scale else 1), [label for label in "abc" for _ in one])
    assert "ktae/value_accuracy_correlation" not in estimate(**batch, config=config).metrics()


@pytest.mark.parametrize(("groups", "told"), [(2, False), (3, True)])
def test_no_correlation_of_two_points(groups, told):
    batch = random_batch(groups=groups, size=9, seed=12)
    accuracy = {batch["token_level_rewards"][group::groups].sum().item() for group in range(groups)}
    assert len(accuracy) > 1
    assert ("ktae/value_accuracy_correlation" in estimate(**batch).metrics()) == told


def test_outcomes_are_permuted_within_groups_among_rollouts_with_tokens():
    group = torch.tensor([0, 1] * 30)
    row_length = torch.ones(60, dtype=torch.long)
    row_length[:4] = 0
    correct = torch.arange(60) % 3 == 0
    rollouts = Rollouts(torch.arange(60), row_length, group, correct, n_groups=2)
    permuted = rollouts.with_permuted_outcomes(torch.Generator().manual_seed(0))
    assert permuted.totals().rollouts.equal(rollouts.totals().rollouts)
    assert permuted.correct[:4].equal(correct[:4])
    changed = permuted.correct != correct
    assert changed[group == 0].any()
    assert changed[group == 1].any()
    assert rollouts.correct is correct
    assert correct.equal(torch.arange(60) % 3 == 0)


def test_by_chance_the_values_are_those_of_some_other_outcomes():
    """One correct rollout of three: permuted, it is one of the three, each as often."""
    batch = make_batch([[1], [2, 2], [3, 3, 3]], [1, 0, 0], ["p"] * 3)
    expected = []
    for correct in np.eye(3, dtype=bool):
        expected.append(
            (advantages(**batch, is_correct=correct) - advantages(**batch, config=KTAEConfig(scale=0))).sum()
        )
    generator = torch.Generator().manual_seed(0)
    drawn = [estimate(**batch, permutation=generator).value.item() for _ in range(300)]
    which = [int(np.argmin([abs(value - one) for one in expected])) for value in drawn]
    assert all(value == pytest.approx(expected[k].item()) for value, k in zip(drawn, which, strict=True))
    assert min(np.bincount(which, minlength=3)) > 70

"""What the actor is given decides what it learns: real runs of V1, deselected unless asked for (make test-learning).

The task is rig/toy_task.py's `contains_digit`, of which the untrained model solves about a third.
"""

import pytest
from real_run import logged, train

pytestmark = pytest.mark.learning

STEPS = 30


def rewards(assets, tmp_path, alteration):
    """Mean reward of each step when what the estimator returns is altered so, see altered.py."""
    returncode, output, _ = train(
        assets,
        tmp_path,
        "reward.custom_reward_function.name=contains_digit",
        steps=STEPS,
        load="altered",
        KTAE_TEST_ALTERATION=alteration,
    )
    assert returncode == 0, output[-5000:]
    rewards = logged(output, "critic/score/mean")
    assert len(rewards) == STEPS
    print(f"{alteration}: {rewards}")
    return rewards


def mean(rewards):
    return sum(rewards) / len(rewards)


def test_it_learns(assets, tmp_path):
    assert mean(rewards(assets, tmp_path, "none")[-5:]) > 0.8


def test_it_unlearns_when_negated(assets, tmp_path):
    assert mean(rewards(assets, tmp_path, "negated")[-5:]) < 0.15


def test_it_stays_when_given_nothing(assets, tmp_path):
    """32 rollouts a step: the mean of all steps is off by 0.015 (one standard deviation)."""
    assert 0.25 < mean(rewards(assets, tmp_path, "zero")) < 0.5


def test_the_key_part_alone_learns(assets, tmp_path):
    assert mean(rewards(assets, tmp_path, "key part alone")[-5:]) > 0.8

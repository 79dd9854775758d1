"""A real run of configs/ktae_dapo.yaml, the shipped file, with nothing overridden but what a toy on a CPU needs."""

from pathlib import Path

import pytest
from real_run import METRICS, PROMPTS, ROLLOUTS, STEPS, logged, mixed_group_share, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_task import RESPONSE_LENGTH

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BUFFER = 8


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory):
    """The run, and the directory of its event file."""
    directory = tmp_path_factory.mktemp("run")
    events = directory / "events"
    overrides = [
        f"reward.reward_kwargs.overlong_buffer_cfg.len={BUFFER}",
        # Several updates a step: in the first one every ratio is 1, and there is nothing to clip.
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "trainer.logger=[console,tensorboard]",
        *("--config-dir", str(CONFIGS), "--config-name", "ktae_dapo"),
    ]
    returncode, output, calls = train(assets, directory, *overrides, TENSORBOARD_DIR=str(events))
    assert returncode == 0, output[-5000:]
    return output, calls, events


def test_the_recipe_is_what_ran(run):
    """The configuration as the trainer printed it: what the recipe sets and the toy leaves alone."""
    output, calls, _ = run
    for setting in [
        "'clip_ratio_low': 0.2",
        "'clip_ratio_high': 0.24",
        "'clip_ratio_c': 10.0",
        "'loss_agg_mode': 'token-mean'",
        "'use_dynamic_bsz': True",
        "'ktae': {'correct_key': 'acc'}",
    ]:
        assert setting in output
    assert len(calls) == STEPS
    assert all(call["process"].endswith("TaskRunnerV1.run") for call in calls)
    assert any(logged(output, "actor/pg_clipfrac"))


def test_groups_of_one_outcome_never_reach_the_estimator(run):
    output, calls, _ = run
    assert sum(logged(output, "training/filter_groups/evicted_samples")) > 0, "nothing was filtered: shows nothing"
    for call in calls:
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == PROMPTS * ROLLOUTS
        assert call["groups"] == PROMPTS
        assert mixed_group_share(call) == 1
        assert call["nonzero_values"] > 0


def test_overlong_shaping_changes_the_reward_and_not_the_label(run):
    _, calls, _ = run
    penalised = {True: 0, False: 0}
    for call in calls:
        for ids, score, correct in zip(call["rollouts"], call["scores"], call["is_correct"], strict=True):
            penalty = min(0, -(len(ids) - (RESPONSE_LENGTH - BUFFER)) / BUFFER)
            assert score == pytest.approx(correct + penalty)
            penalised[correct] += penalty < 0
    # A correct rollout at the limit scores 0: `score > 0` would call it incorrect, correct_key does not.
    assert penalised[True] > 0
    assert penalised[False] > 0


def test_metrics(run):
    output, _, _ = run
    for name in METRICS:
        assert len(logged(output, name)) == STEPS, name
    assert logged(output, "ktae/mixed_group_share") == [1.0] * STEPS
    assert logged(output, "ktae/single_rollout_group_share") == [0.0] * STEPS
    assert min(logged(output, "ktae/nonzero_token_share")) > 0


def test_the_event_file_holds_every_metric_of_every_step(run):
    output, _, events = run
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    for name in METRICS:
        points = accumulator.Scalars(name)
        assert [point.step for point in points] == list(range(1, STEPS + 1)), name
        # The event file holds float32.
        assert [point.value for point in points] == pytest.approx(logged(output, name), rel=1e-6), name
    tags = {tag for tag in accumulator.Tags()["scalars"] if "ktae" in tag}
    of_values = ("nonzero_token_share", "mean_value", "mean_abs_value", "saturated_token_share")
    by_chance = {f"ktae/chance/{name}" for name in of_values}
    # A correlation is there where the groups of a step differ in accuracy.
    assert {tag for tag in tags if not tag.endswith("correlation")} == {*METRICS, *by_chance}
    assert [point.step for point in accumulator.Scalars("ktae/chance/mean_value")] == [1]

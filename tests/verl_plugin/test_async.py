"""Real runs of veRL 0.9.1's other asynchronous trainers; V1's `separate_async` runs in test_sessions.py.

Every trainer here runs whole, by its own entry point, with the rig's rollout servers; those with servers apart from
the trainer get weights through the rig's checkpoint engine. What the runs lack: a trajectory that is interrupted for
new weights and goes on with them (the rig's servers finish what they have begun), fully_async's hybrid servers, a
reward model, a critic.

fully_async has a gap: its main never calls `validate_config`, so that a mistyped +algorithm.ktae option stops it in the
first advantage step, after rollouts, and not before it starts. That was run by hand and is no test. The others call it.
"""

import pytest
from real_run import METRICS, PROMPTS, ROLLOUT_APART, ROLLOUTS, STEPS, logged, mixed_group_share, train


def assert_calls(calls, process, number):
    assert len(calls) == number
    for call in calls:
        assert call["process"].endswith(process)
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == PROMPTS * ROLLOUTS
        assert call["groups"] == PROMPTS
        assert len(call["ids_under_the_mask"]) > 20  # sampled ids, not padding
    shares = [mixed_group_share(call) for call in calls]
    assert any(shares), "no group had both outcomes: the run shows nothing"
    assert [call["nonzero_values"] > 0 for call in calls] == [share > 0 for share in shares]
    return shares


@pytest.mark.parametrize(
    ("entry_point", "process", "overrides"),
    [
        ("verl.trainer.main_ppo", "TaskRunnerV1.run", ["trainer.v1.trainer_mode=colocate_async"]),
        (
            "verl.experimental.one_step_off_policy.main_ppo",
            "OneStepTaskRunner.run",
            [
                "hydra.searchpath=[pkg://verl.trainer.config]",  # veRL's own is relative to a checkout of it
                "actor_rollout_ref.hybrid_engine=False",
                "rollout.n_gpus_per_node=1",
                *ROLLOUT_APART,
            ],
        ),
    ],
    ids=["colocate_async", "one_step_off"],
)
def test_one_advantage_step_a_training_step(assets, tmp_path, entry_point, process, overrides):
    returncode, output, calls = train(assets, tmp_path, *overrides, module=entry_point)
    assert returncode == 0, output[-5000:]
    shares = assert_calls(calls, process, STEPS)
    for name in METRICS:
        assert len(logged(output, name)) == STEPS, name
    assert logged(output, "ktae/mixed_group_share") == shares


def test_fully_async(assets, tmp_path):
    returncode, output, calls = train(
        assets,
        tmp_path,
        "actor_rollout_ref.hybrid_engine=False",
        "rollout.n_gpus_per_node=1",
        f"rollout.total_rollout_steps={6 * PROMPTS}",
        "data.train_batch_size=0",
        "data.gen_batch_size=1",
        "async_training.trigger_parameter_sync_step=2",
        "trainer.test_freq=10",
        *ROLLOUT_APART,
        module="verl.experimental.fully_async_policy.fully_async_main",
    )
    assert returncode == 0, output[-5000:]
    shares = assert_calls(calls, "FullyAsyncTrainer.fit", 6)
    # It logs at every second update, before it adds that update's own figures, and once more at the end.
    cycles = [shares[:1], shares[1:3], shares[3:5], shares[5:]]
    assert logged(output, "ktae/mixed_group_share") == pytest.approx([sum(cycle) / len(cycle) for cycle in cycles])
    for name in METRICS:
        assert len(logged(output, name)) == len(cycles), name

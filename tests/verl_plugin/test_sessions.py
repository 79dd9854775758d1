"""A real run of an agent whose sessions have one or two outputs: to V1 these are rows, to KTAE one rollout.

The trainer is V1's `separate_async`, whole: servers beside the trainer and others apart from it, and several local
updates a step, each of which has its own advantage step and its own padding.
"""

import itertools
import json
from collections import Counter

import pytest
from real_run import METRICS, PROMPTS, ROLLOUT_APART, ROLLOUTS, STEPS, logged, mixed_group_share, train

from ktae.reference import group_relative_advantages, key_token_values

UPDATES = 2  # a step
GROUPS = PROMPTS // UPDATES  # an update
# Sessions 0, 3 and 6 of a group of 8 have two outputs; a batch is padded to a multiple of the actor's mini-batch.
ROWS = GROUPS * (ROLLOUTS + 3)
PADDED = 2 * GROUPS * ROLLOUTS


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory):
    """The console output, the estimator's calls, and of each update key -> advantages as written to TransferQueue."""
    directory = tmp_path_factory.mktemp("run")
    loops, advantages = directory / "agent_loops.yaml", directory / "advantages.jsonl"
    loops.write_text("[{name: second_try, _target_: agent_loops.SecondTryAgentLoop}]")
    returncode, output, calls = train(
        assets,
        directory,
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=second_try",
        "trainer.v1.trainer_mode=separate_async",
        f"trainer.v1.separate_async.parameter_sync_step={UPDATES}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={GROUPS * ROLLOUTS}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={GROUPS * ROLLOUTS}",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        *ROLLOUT_APART,
        KTAE_TEST_ADVANTAGES=str(advantages),
    )
    assert returncode == 0, output[-5000:]
    written = [json.loads(line) for line in advantages.read_text().splitlines()]
    assert len(calls) == len(written) == STEPS * UPDATES
    return output, calls, written


@pytest.fixture
def updates(run):
    _, calls, written = run
    return list(zip(calls, written, strict=True))


def sessions_of(call):
    """uid -> session -> its outputs in order, each as (token ids, score, correct)."""
    groups = {}
    columns = ("index", "rollout_index", "rollouts", "scores", "is_correct")
    for uid, session, *output in zip(*(call[name] for name in columns), strict=True):
        groups.setdefault(uid, {}).setdefault(session, []).append(output)
    return groups


def expected_values(sessions):
    """By the slow reference: session -> A_i, and token id -> key-token value, each session one rollout."""
    joined = [list(itertools.chain.from_iterable(ids for ids, _, _ in outputs)) for outputs in sessions.values()]
    _, scores, correct = zip(*(outputs[-1] for outputs in sessions.values()), strict=True)
    rollout_advantages = dict(zip(sessions, group_relative_advantages(scores), strict=True))
    return rollout_advantages, key_token_values(joined, correct)


def test_padding_rows_are_left_out_and_get_nothing(updates):
    for call, advantages in updates:
        padding = [row for key, row in advantages.items() if key.startswith("pad")]
        assert len(advantages) == PADDED
        assert len(padding) == PADDED - ROWS
        assert not any(itertools.chain.from_iterable(padding))
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == ROWS
        assert not any(uid.startswith("pad") for uid in call["index"])


def test_a_session_of_two_outputs_is_one_rollout(updates):
    for call, _ in updates:
        groups = sessions_of(call)
        assert len(groups) == GROUPS
        for uid, sessions in groups.items():
            assert all(session.rpartition("_")[0] == uid for session in sessions)
            assert Counter(len(outputs) for outputs in sessions.values()) == {1: ROLLOUTS - 3, 2: 3}


def test_metrics_are_averaged_over_the_updates_of_a_step(run):
    output, calls, _ = run
    for name in METRICS:
        assert len(logged(output, name)) == STEPS, name
    shares = [mixed_group_share(call) for call in calls]
    by_step = [sum(shares[start : start + UPDATES]) / UPDATES for start in range(0, len(shares), UPDATES)]
    assert logged(output, "ktae/mixed_group_share") == pytest.approx(by_step)


def test_the_actor_is_trained_on_what_the_reference_computes(updates):
    mixed = 0
    for call, advantages in updates:
        for sessions in sessions_of(call).values():
            rollout_advantages, values = expected_values(sessions)
            mixed += any(values.values())
            for session, outputs in sessions.items():
                for number, (ids, _, _) in enumerate(outputs):
                    key_part = [values[token] for token in ids]
                    actual = [a - value for a, value in zip(advantages[f"{session}_{number}"], key_part, strict=True)]
                    # float32; what is left is the same for every token of every row of the session.
                    assert actual == pytest.approx([rollout_advantages[session]] * len(ids), abs=1e-6)
    assert mixed, "no group had both outcomes: the run shows nothing"


def test_rows_counted_as_rollouts_would_have_other_values(updates):
    """Else the test above would pass without sessions."""
    differ = 0
    for call, _ in updates:
        for sessions in sessions_of(call).values():
            rows = list(itertools.chain.from_iterable(sessions.values()))
            by_row = key_token_values([ids for ids, _, _ in rows], [correct for _, _, correct in rows])
            differ += by_row != pytest.approx(expected_values(sessions)[1], abs=1e-3)
    assert differ

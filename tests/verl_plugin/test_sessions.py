"""A real run of an agent whose sessions have one or two outputs: to V1 these are rows, to KTAE one rollout."""

import itertools
import json
from collections import Counter

import pytest
from real_run import PROMPTS, ROLLOUTS, STEPS, logged, train

from ktae.reference import group_relative_advantages, key_token_values

# Sessions 0, 3 and 6 of a group of 8 have two outputs; the actor's mini-batch is 4 prompts x 8.
ROWS = PROMPTS * (ROLLOUTS + 3)
PADDED = 64


@pytest.fixture(scope="module")
def steps(assets, tmp_path_factory):
    """Of each step: what reached the estimator, and key -> advantages as the trainer wrote them to TransferQueue."""
    directory = tmp_path_factory.mktemp("run")
    loops, advantages = directory / "agent_loops.yaml", directory / "advantages.jsonl"
    loops.write_text("[{name: second_try, _target_: agent_loops.SecondTryAgentLoop}]")
    returncode, output, calls = train(
        assets,
        directory,
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=second_try",
        KTAE_TEST_ADVANTAGES=str(advantages),
    )
    assert returncode == 0, output[-5000:]
    assert len(logged(output, "ktae/mixed_group_share")) == STEPS
    written = [json.loads(line) for line in advantages.read_text().splitlines()]
    assert len(calls) == len(written) == STEPS
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


def test_padding_rows_are_left_out_and_get_nothing(steps):
    for call, advantages in steps:
        padding = [row for key, row in advantages.items() if key.startswith("pad")]
        assert len(advantages) == PADDED
        assert len(padding) == PADDED - ROWS
        assert not any(itertools.chain.from_iterable(padding))
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == ROWS
        assert not any(uid.startswith("pad") for uid in call["index"])


def test_a_session_of_two_outputs_is_one_rollout(steps):
    for call, _ in steps:
        groups = sessions_of(call)
        assert len(groups) == PROMPTS
        for uid, sessions in groups.items():
            assert all(session.rpartition("_")[0] == uid for session in sessions)
            assert Counter(len(outputs) for outputs in sessions.values()) == {1: ROLLOUTS - 3, 2: 3}


def test_the_actor_is_trained_on_what_the_reference_computes(steps):
    mixed = 0
    for call, advantages in steps:
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


def test_rows_counted_as_rollouts_would_have_other_values(steps):
    """Else the test above would pass without sessions."""
    differ = 0
    for call, _ in steps:
        for sessions in sessions_of(call).values():
            rows = list(itertools.chain.from_iterable(sessions.values()))
            by_row = key_token_values([ids for ids, _, _ in rows], [correct for _, _, correct in rows])
            differ += by_row != pytest.approx(expected_values(sessions)[1], abs=1e-3)
    assert differ

"""preset="calibrated" and the offset: against the reference, and what they promise."""

import pytest
import torch
from batches import advantages, assert_same, make_batch, random_batch

from ktae import KTAEConfig, counting, key_token_table, reference
from ktae.estimator import estimate

CALIBRATED = KTAEConfig(preset="calibrated")
GRPO = KTAEConfig(scale=0)


def groups_of(batch):
    """Rows of each group."""
    rows = {}
    for row, label in enumerate(batch["index"]):
        rows.setdefault(label, []).append(row)
    return list(rows.values())


def unmasked(batch, row):
    return batch["responses"][row][batch["response_mask"][row] == 1].tolist()


def expected_values(batch, offset=0.5, scale=1.0):
    """Of the reference, shifted."""
    values = torch.zeros(batch["response_mask"].shape, dtype=torch.float64)
    mask = batch["response_mask"] == 1
    correct = (batch["token_level_rewards"].sum(1) > 0).tolist()
    for rows in groups_of(batch):
        texts = [unmasked(batch, row) for row in rows]
        if len({correct[row] for row, text in zip(rows, texts, strict=True) if text}) < 2:
            continue
        of_tokens = reference.leave_one_out_values(texts, [correct[row] for row in rows], scale=scale)
        for row, text, of_token in zip(rows, texts, of_tokens, strict=True):
            values[row, mask[row]] = torch.tensor([of_token[token] for token in text], dtype=torch.float64)
        words = mask.clone()
        words[[row for row in range(len(mask)) if row not in rows]] = False
        values[words] += offset - values[words].mean()
    return values


@pytest.mark.parametrize(
    ("groups", "size", "vocabulary", "seed"), [(4, 6, 12, 0), (3, 16, 40, 1), (9, 4, 5, 2), (1, 3, 3, 3)]
)
def test_against_the_reference(groups, size, vocabulary, seed):
    batch = random_batch(groups=groups, size=size, vocabulary=vocabulary, seed=seed)
    actual = advantages(**batch, config=CALIBRATED) - advantages(**batch, config=GRPO)
    assert_same(actual, expected_values(batch))
    config = KTAEConfig(preset="calibrated", scale=0.25, offset=-1.5)
    actual = advantages(**batch, config=config) - advantages(**batch, config=GRPO)
    assert_same(actual, expected_values(batch, offset=-1.5, scale=0.25))


def test_a_rollouts_own_outcome_says_nothing_about_its_tokens():
    batch = random_batch(groups=1, size=9, seed=5)
    correct = batch["token_level_rewards"].sum(1) > 0
    for row in range(9):
        flipped = correct.clone()
        flipped[row] = ~flipped[row]
        if flipped.all() or not flipped.any():
            continue
        with_own, without = (
            advantages(**batch, is_correct=outcome, config=CALIBRATED)[row][batch["response_mask"][row] == 1]
            for outcome in (correct, flipped)
        )
        assert_same(with_own - with_own[0], without - without[0])


@pytest.mark.parametrize(
    "config",
    [CALIBRATED, KTAEConfig(offset=0.2), KTAEConfig(preset="paper", offset=-3), KTAEConfig(scale=0, offset=0.5)],
)
def test_the_offset_is_the_mean_of_the_groups_with_both_outcomes(config):
    batch = random_batch(groups=5, size=4, seed=1)
    batch["token_level_rewards"][::5] = 1
    batch["token_level_rewards"][1::5] = 0
    value = advantages(**batch, config=config) - advantages(**batch, config=GRPO)
    mask = batch["response_mask"]
    for number, rows in enumerate(groups_of(batch)):
        expected = 0 if number < 2 else config.offset
        assert (value[rows].sum() / mask[rows].sum()).item() == pytest.approx(expected, abs=1e-12)
    assert not value[mask == 0].any()
    if config.scale == 0:
        assert_same(value[mask == 1].unique(), torch.tensor([0.0, 0.5], dtype=torch.float64))


def test_ignored_ids_get_the_shift_alone():
    batch = random_batch(seed=4)
    plain = KTAEConfig(preset="calibrated", offset=0)
    value = advantages(**batch, config=plain) - advantages(**batch, config=GRPO)
    assert value[batch["responses"] == 3].unique().numel() > 4
    ignoring = KTAEConfig(preset="calibrated", offset=0, ignore_token_ids=(3,))
    value = advantages(**batch, config=ignoring) - advantages(**batch, config=GRPO)
    ignored = (batch["responses"] == 3) & (batch["response_mask"] == 1)
    shifts = {row: value[row][ignored[row]].unique() for row in range(len(value)) if ignored[row].any()}
    assert all(shift.numel() == 1 for shift in shifts.values())  # that of the group


def test_what_is_masked_between_the_tokens_does_not_count():
    batch = make_batch([[1, 2], [1, 3], [2, 4], [3, 4]], [1, 0, 1, 0], ["p"] * 4)
    plain = advantages(**batch, config=CALIBRATED)
    responses = torch.full((4, 4), 9)
    responses[:, [0, 2]] = batch["responses"]
    mask, rewards = torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.float64)
    mask[:, [0, 2]], rewards[:, [0, 2]] = 1, batch["token_level_rewards"]
    changed = {"token_level_rewards": rewards, "response_mask": mask, "responses": responses}
    holes = advantages(**batch | changed, config=CALIBRATED)
    assert_same(holes[:, [0, 2]], plain)
    assert not holes[:, [1, 3]].any()


@pytest.mark.parametrize("chunk_tokens", [1, 40])
def test_chunks_do_not_show(monkeypatch, chunk_tokens):
    batch = random_batch(groups=7, size=5, seed=2)
    whole = advantages(**batch, config=CALIBRATED)
    monkeypatch.setattr(counting, "CHUNK_TOKENS", chunk_tokens)
    assert_same(advantages(**batch, config=CALIBRATED), whole)


def test_rows_of_a_session_are_one_rollout():
    rollouts, rewards = [[1, 2], [3], [1, 4], [2, 5], [5]], [0, 1, 0, 1, 0]
    split = make_batch(rollouts, rewards, ["p"] * 5)
    joined = make_batch([[1, 2, 3], *rollouts[2:]], [1, 0, 1, 0], ["p"] * 4)
    rows = advantages(**split, rollout_index=["s", "s", "t", "u", "v"], config=CALIBRATED)
    whole = advantages(**joined, config=CALIBRATED)
    assert_same(torch.cat([rows[0, :2], rows[1, :1]]), whole[0])
    assert_same(rows[2:, :2], whole[1:, :2])


def test_two_rollouts_are_too_few():
    batch = make_batch([[1, 2], [1, 3]] * 2, [1, 0, 0, 1], ["p", "p", "q", "q"])
    with pytest.warns(UserWarning, match='preset="calibrated" needs three rollouts of a prompt'):
        value = advantages(**batch, config=CALIBRATED) - advantages(**batch, config=GRPO)
    assert_same(value, torch.full_like(value, 0.5))


def test_the_table_has_the_mean_over_a_tokens_occurrences():
    batch = random_batch(groups=3, size=8, seed=6)
    value = advantages(**batch, config=CALIBRATED) - advantages(**batch, config=GRPO)
    mask = batch["response_mask"] == 1
    table = key_token_table(**batch, config=CALIBRATED)
    for rows in groups_of(batch):
        means = {
            token: value[rows][mask[rows] & (batch["responses"][rows] == token)].mean().item()
            for token in batch["responses"][rows][mask[rows]].unique().tolist()
        }
        at = [i for i, label in enumerate(table.index) if label == batch["index"][rows[0]]]
        listed = dict(zip(table.token_id[at].tolist(), table.key_token_value[at].tolist(), strict=True))
        differences = [means[token] - listed[token] for token in means]
        assert differences == pytest.approx([differences[0]] * len(differences))  # that of the shift


def test_metrics_are_those_before_the_shift():
    batch = random_batch(groups=6, size=6, seed=7)
    values = []
    for rows in groups_of(batch):
        texts = [unmasked(batch, row) for row in rows]
        correct = (batch["token_level_rewards"][rows].sum(1) > 0).tolist()
        assert len(set(correct)) == 2
        for text, of_token in zip(texts, reference.leave_one_out_values(texts, correct), strict=True):
            values += [of_token[token] for token in text]
    values = torch.tensor(values, dtype=torch.float64)
    metrics = estimate(**batch, config=CALIBRATED).metrics()
    assert metrics["ktae/mean_value"] == pytest.approx(values.mean().item())
    assert metrics["ktae/mean_abs_value"] == pytest.approx(values.abs().mean().item())
    assert metrics["ktae/nonzero_token_share"] == pytest.approx((values != 0).double().mean().item())
    assert metrics == estimate(**batch, config=KTAEConfig(preset="calibrated", offset=7)).metrics()
    saturated = estimate(**batch, config=KTAEConfig(preset="calibrated", scale=0.01)).metrics()
    assert saturated["ktae/saturated_token_share"] == pytest.approx((values.abs() > 0.9).double().mean().item())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "calibrated", "fisher_weight": 2}, 'fisher_weight=2 has no effect with preset="calibrated"'),
        ({"preset": "calibrated", "term_frequency_weight": 0}, "term_frequency_weight=0 has no effect"),
        ({"offset": 1e31}, "offset=1e.31: KTAE needs a number from -1e"),
        ({"offset": float("nan")}, "offset=nan: KTAE needs a number from -1e"),
        ({"offset": "0.5"}, r"offset='0.5' \(str\): KTAE needs a number"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        KTAEConfig(**settings)


def test_defaults_of_the_presets():
    assert [
        (KTAEConfig(preset=name).scale, KTAEConfig(preset=name).offset) for name in ("published", "paper", "calibrated")
    ] == [(1, None), (0.5, None), (1, 0.5)]
    assert KTAEConfig(preset="calibrated", offset=0).offset == 0

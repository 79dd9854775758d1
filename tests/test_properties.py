"""Properties that hold for every batch."""

import pytest
import torch
from batches import advantages, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae import KTAEConfig, key_token_table

VOCABULARY = 8
settings.register_profile("ktae", deadline=None)
settings.load_profile("ktae")


@st.composite
def batches(draw):
    rows = draw(st.integers(2, 12))
    width = draw(st.integers(1, 6))

    def matrix(elements):
        row = st.lists(elements, min_size=width, max_size=width)
        return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)))

    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, -1] = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0, 0.3]), min_size=rows, max_size=rows)))
    return {
        "token_level_rewards": rewards,
        "response_mask": matrix(st.integers(0, 1)),
        "responses": matrix(st.integers(0, VOCABULARY - 1)),
        # the first two rows share a group, so that not every group has one rollout
        "index": ["a", "a", *draw(st.lists(st.sampled_from("abc"), min_size=rows - 2, max_size=rows - 2))],
        "rollout_index": draw(st.none() | st.lists(st.integers(0, 3), min_size=rows, max_size=rows)),
    }


def row_lists(batch):
    return ("index",) if batch["rollout_index"] is None else ("index", "rollout_index")


pytestmark = pytest.mark.filterwarnings("ignore:Each of the")  # sessions can leave one rollout in every group


@given(batches(), st.randoms())
def test_rows_may_stand_in_any_order(batch, random):
    order = list(range(len(batch["index"])))
    random.shuffle(order)
    if batch["rollout_index"] is not None:  # the last row of a session stays its last row
        session = list(zip(batch["index"], batch["rollout_index"], strict=True))
        places = {key: sorted(i for i, row in enumerate(order) if session[row] == key) for key in set(session)}
        for key, slots in places.items():
            for slot, row in zip(slots, (row for row, s in enumerate(session) if s == key), strict=True):
                order[slot] = row
    moved = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    moved |= {k: [batch[k][i] for i in order] for k in row_lists(batch)}
    assert_same(advantages(**moved), advantages(**batch)[order])


@given(batches(), st.permutations(range(VOCABULARY)), st.sets(st.integers(0, VOCABULARY - 1)))
def test_names_of_token_ids_do_not_matter(batch, new_id, ignored):
    spread = torch.tensor(new_id) * 1_000_003 - 17
    renamed = batch | {"responses": spread[batch["responses"]]}
    config = KTAEConfig(ignore_token_ids=tuple(ignored))
    renamed_config = KTAEConfig(ignore_token_ids=tuple(spread[list(ignored)].tolist()))
    assert_same(advantages(**renamed, config=renamed_config), advantages(**batch, config=config))


@given(batches(), st.integers(-(2**62), 2**62))
def test_ids_under_the_mask_do_not_matter(batch, junk):
    junked = torch.where(batch["response_mask"] == 1, batch["responses"], junk)
    assert torch.equal(advantages(**batch | {"responses": junked}), advantages(**batch))


@given(batches())
def test_a_batch_may_be_split_between_groups(batch):
    whole = advantages(**batch)
    for label in set(batch["index"]):
        rows = [i for i, name in enumerate(batch["index"]) if name == label]
        part = {k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        part |= {k: [batch[k][i] for i in rows] for k in row_lists(batch)}
        assert_same(advantages(**part), whole[rows])


@given(batches(), st.sampled_from(["published", "paper"]))
def test_swapping_the_outcomes_negates_the_key_token_value(batch, preset):
    correct = batch["token_level_rewards"].sum(1) > 0.5
    config = KTAEConfig(preset=preset)
    value = key_token_table(**batch, is_correct=correct, config=config).key_token_value
    swapped = key_token_table(**batch, is_correct=~correct, config=config).key_token_value
    torch.testing.assert_close(swapped, -value, rtol=0, atol=1e-12)


@given(batches())
def test_scale_0_is_the_rollout_level_part(batch):
    flat = advantages(**batch, config=KTAEConfig(scale=0))
    for row, mask in zip(flat, batch["response_mask"].bool(), strict=True):
        assert len(row[mask].unique()) <= 1
    rollout_level = flat.abs().amax(1) * flat.sum(1).sign()
    assert_same(advantages(**batch, rollout_advantages=rollout_level), advantages(**batch))


@given(batches(), st.sampled_from([("published", 1.0), ("paper", 0.5)]))
def test_values_are_bounded_by_the_scale_and_finite(batch, preset):
    value = key_token_table(**batch, config=KTAEConfig(preset=preset[0])).key_token_value
    assert (value.abs() <= preset[1]).all()
    masked = advantages(**batch)[batch["response_mask"] == 0]
    assert (masked == 0).all()

"""The estimator against the slow reference, a worked example, and every row of the table of edge cases."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import pytest
import torch
from batches import advantages, assert_same, make_batch, random_batch

from ktae import KTAEConfig, compute_ktae_advantage, counting, estimator, key_token_table, reference, scoring

CHECK, GUESS, EQUALS, SIX, EIGHT = range(5)
WORKED_EXAMPLE = make_batch(
    [[CHECK, EQUALS, SIX], [CHECK, EQUALS, SIX], [CHECK, EQUALS, EIGHT], [GUESS, EQUALS, EIGHT]],
    rewards=[1, 1, 0, 0],
    index=["6 = ?"] * 4,
)


class TestWorkedExample:
    """The example of the README, with every number worked out by hand."""

    def test_check(self):
        """`check` stands in both correct and one of the incorrect rollouts: a = 2, b = 1, c = 0, d = 1."""
        table = key_token_table(**WORKED_EXAMPLE)
        row = table.token_id.tolist().index(CHECK)
        assert [int(x[row]) for x in (table.a, table.b, table.c, table.d)] == [2, 1, 0, 1]
        # the two tables with these margins, a = 1 and a = 2, have 2 ways each: tied, p = 1, F = 0
        assert table.p_value[row] == pytest.approx(1)
        assert table.fisher_score[row] == 0
        information_gain = 1 - 3 / 4 * (math.log2(3) - 2 / 3)
        assert table.information_gain[row] == pytest.approx(information_gain)
        assert table.effect_size[row] == pytest.approx(math.pi / 4)
        assert table.term_frequency_correct[row] == pytest.approx(2 / 6)
        assert table.saturation_correct[row] == pytest.approx(3 / 7)
        assert table.saturation_incorrect[row] == pytest.approx(3 / 13)
        direction = math.pi / 4 + 3 / 7 / (3 / 13 + 1e-5) - 3 / 13 / (3 / 7 + 1e-5)
        assert table.direction[row] == pytest.approx(direction)
        assert table.key_token_value[row] == pytest.approx(math.tanh(information_gain / 2 * direction / 2))
        assert table.key_token_value[row] == pytest.approx(0.162, abs=5e-4)

    def test_advantages_are_the_sum(self):
        grpo = 0.5 / (math.sqrt(1 / 3) + 1e-6)
        # `guess` stands in one incorrect rollout alone: p = 1, but its term frequencies differ without bound
        check, six, eight, guess = 0.1622, 1.0, -1.0, -1.0
        expected = [
            [grpo + check, grpo, grpo + six],
            [grpo + check, grpo, grpo + six],
            [-grpo + check, -grpo, -grpo + eight],
            [-grpo + guess, -grpo, -grpo + eight],
        ]
        actual = advantages(**WORKED_EXAMPLE)
        torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=0, atol=1e-4)


class TestAgainstTheReference:
    @pytest.mark.parametrize("preset", ["published", "paper"])
    @pytest.mark.parametrize("seed", range(5))
    def test_advantages(self, preset, seed):
        batch = random_batch(groups=5, size=7, seed=seed)
        rollouts = [row[m.bool()].tolist() for row, m in zip(batch["responses"], batch["response_mask"], strict=True)]
        scores = batch["token_level_rewards"].sum(1)
        expected = torch.zeros_like(batch["token_level_rewards"])
        rows = reference.ktae_advantages(
            rollouts, scores.tolist(), batch["index"], (scores > 0).tolist(), paper=preset == "paper"
        )
        for row, advantage in enumerate(rows):
            expected[row, : len(advantage)] = torch.tensor(advantage, dtype=torch.float64)
        actual = advantages(**batch, config=KTAEConfig(preset=preset))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)

    def test_weights_and_scale(self):
        batch = random_batch(groups=1, size=8, seed=3)
        rollouts = [row[m.bool()].tolist() for row, m in zip(batch["responses"], batch["response_mask"], strict=True)]
        correct = (batch["token_level_rewards"].sum(1) > 0).tolist()
        config = KTAEConfig(fisher_weight=0.5, information_gain_weight=2, term_frequency_weight=0.25, scale=3)
        expected = reference.key_token_values(rollouts, correct, h1=0.5, h2=2, h3=0.25, scale=3)
        table = key_token_table(**batch, config=config)
        actual = dict(zip(table.token_id.tolist(), table.key_token_value.tolist(), strict=True))
        assert actual == pytest.approx(expected, abs=1e-12)


class TestRolloutLevelPart:
    @pytest.mark.parametrize(("norm_adv_by_std", "expected"), [(True, 0.7 / (1 + 1e-6)), (False, 0.7)])
    def test_a_group_of_one_has_mean_0_and_std_1(self, norm_adv_by_std, expected):
        batch = make_batch([[1, 2], [1], [2]], rewards=[0.7, 1, 0], index=["alone", "pair", "pair"])
        actual = advantages(**batch, config=KTAEConfig(norm_adv_by_std=norm_adv_by_std))
        assert actual[0].tolist() == pytest.approx([expected, expected], rel=1e-12)

    def test_only_groups_of_one_warn(self):
        batch = make_batch([[1], [1]], rewards=[1, 0], index=["trajectory-1", "trajectory-2"])
        message = "Each of the 2 groups of this batch has one rollout.*uid set per traj"
        with pytest.warns(UserWarning, match=message) as warned:
            compute_ktae_advantage(**batch)
        assert warned[0].filename == __file__  # it points at the caller

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_equal_rewards_give_exactly_0(self, dtype):
        batch = make_batch([[1, 2]] * 8, rewards=[0.7] * 8, index=["p"] * 8)
        batch["token_level_rewards"] = batch["token_level_rewards"].to(dtype)
        assert (advantages(**batch) == 0).all()

    def test_masked_positions_count_in_the_reward(self):
        batch = make_batch([[1], [2]], rewards=[0, 0], index=["p", "p"], width=3)
        batch["token_level_rewards"][0, 2] = 1.0  # behind the mask
        assert advantages(**batch)[0, 0] > advantages(**batch)[1, 0] == -advantages(**batch)[0, 0]

    @pytest.mark.parametrize("per_token", [False, True])
    def test_rollout_advantages_take_its_place(self, per_token):
        batch = random_batch()
        key_part = advantages(**batch) - advantages(**batch, config=KTAEConfig(scale=0))
        shape = batch["response_mask"].shape if per_token else batch["response_mask"].shape[:1]
        rollout_advantages = torch.randn(shape, dtype=torch.float64)
        given = rollout_advantages if per_token else rollout_advantages[:, None]
        actual = advantages(**batch, rollout_advantages=rollout_advantages)
        assert_same(actual, (given + key_part) * batch["response_mask"])


class TestOutcomes:
    def test_threshold_is_strict(self):
        batch = make_batch([[1], [2], [3]], rewards=[0.5, 0.6, 0.5], index=["p"] * 3)
        table = key_token_table(**batch, config=KTAEConfig(correct_threshold=0.5))
        assert (table.a + table.c).unique().tolist() == [1]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.7])
    def test_a_reward_equal_to_the_threshold_is_not_greater(self, dtype, threshold):
        """A float32 reward of 0.1 is 0.100000001 in float64: a format reward would count as correct."""
        batch = make_batch([[1], [2]], rewards=[1.0, threshold], index=["p"] * 2)
        batch["token_level_rewards"] = batch["token_level_rewards"].to(dtype)
        table = key_token_table(**batch, config=KTAEConfig(correct_threshold=threshold))
        assert (table.a.tolist(), table.b.tolist()) == ([1, 0], [0, 1])

    @pytest.mark.parametrize(
        "is_correct",
        [
            [True, False, True],
            (1, 0, 1),
            np.array([1.0, 0.0, 1.0]),
            np.array([True, False, True], dtype=object),
            pandas.Series([0, 1, 0, 1])[[1, 2, 3]],
            torch.tensor([1, 0, 1], dtype=torch.int8),
        ],
        ids=["bools", "ints", "array", "objects", "filtered series", "tensor"],
    )
    def test_is_correct_overrides_the_reward(self, is_correct):
        batch = make_batch([[1], [2], [3]], rewards=[0.1, 0.1, -1], index=["p"] * 3)
        table = key_token_table(**batch, is_correct=is_correct)
        assert table.a.tolist() == [1, 0, 1]
        assert table.b.tolist() == [0, 1, 0]

    @pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0]], ids=["all correct", "all incorrect"])
    def test_one_outcome_has_no_key_part(self, rewards):
        batch = make_batch([[1], [2], [3]], rewards=rewards, index=["p"] * 3)
        assert (advantages(**batch) == 0).all()
        table = key_token_table(**batch)
        assert table.token_id.tolist() == [1, 2, 3]
        for name in ("fisher_score", "information_gain", "effect_size", "direction", "key_token_value"):
            assert getattr(table, name).tolist() == [0, 0, 0], name
        assert table.p_value.tolist() == [1, 1, 1]


class TestMask:
    def test_a_mask_with_holes_equals_the_compacted_sequence(self):
        compact = random_batch(width=6)
        holes = {k: v for k, v in compact.items() if k == "index"}
        keep = torch.tensor([0, 2, 3, 6, 7, 9])
        for name in ("token_level_rewards", "response_mask", "responses"):
            holes[name] = torch.zeros(len(compact["index"]), 11, dtype=compact[name].dtype)
            holes[name][:, keep] = compact[name]
        holes["responses"][:, [1, 4, 5, 8, 10]] = 3  # a tool's output, in the vocabulary of the rollouts
        actual = advantages(**holes)
        assert_same(actual[:, keep], advantages(**compact))
        assert (actual[:, [1, 4, 5, 8, 10]] == 0).all()

    def test_a_fully_masked_row_is_no_rollout_but_enters_the_baseline(self):
        rollouts = [[1, 2], [1, 3], [4, 2], [4, 4]]
        batch = make_batch(rollouts, rewards=[1, 1, 0, 0], index=["p"] * 4)
        without = {k: v[:3] for k, v in batch.items()}
        batch["response_mask"][3] = 0
        actual = advantages(**batch)
        assert (actual[3] == 0).all()
        with_baseline_of_four = advantages(**batch, config=KTAEConfig(scale=0))
        key_part_of_three = advantages(**without) - advantages(**without, config=KTAEConfig(scale=0))
        assert_same(actual[:3] - with_baseline_of_four[:3], key_part_of_three)
        assert with_baseline_of_four[0, 0] == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-6))

    def test_a_group_left_one_sided_by_the_mask_has_no_key_part(self):
        batch = make_batch([[1], [2], [3]], rewards=[1, 1, 0], index=["p"] * 3)
        batch["response_mask"][2] = 0
        assert_same(advantages(**batch), advantages(**batch, config=KTAEConfig(scale=0)))
        assert advantages(**batch)[0, 0] != 0

    def test_ignored_ids_have_no_value_but_count_in_the_lengths(self):
        batch = random_batch()
        table = key_token_table(**batch)
        ignoring = key_token_table(**batch, config=KTAEConfig(ignore_token_ids=(3, 5)))
        ignored = (table.token_id == 3) | (table.token_id == 5)
        assert (table.key_token_value[ignored] != 0).any()
        assert (ignoring.key_token_value[ignored] == 0).all()
        assert_same(ignoring.key_token_value[~ignored], table.key_token_value[~ignored])


class TestIndex:
    @pytest.mark.parametrize(
        "names",
        [
            ["b", "a", "c"],
            [-7, 10**12, 0],
            [0.5, -1.25, 3.0],
            [1, "1", (1, 2)],
        ],
        ids=["strings", "ints", "floats", "mixed"],
    )
    @pytest.mark.parametrize("container", [list, tuple, lambda x: np.fromiter(x, dtype=object)])
    def test_labels_of_any_kind(self, names, container):
        batch = random_batch(groups=3)
        batch["index"], numbers = container([names[int(i[-1])] for i in batch["index"]]), batch["index"]
        assert_same(advantages(**batch), advantages(**batch | {"index": numbers}))

    @pytest.mark.parametrize("convert", [torch.tensor, np.array, lambda x: [torch.tensor(i) for i in x]])
    @pytest.mark.parametrize("dtype", [int, float])
    def test_tensors_and_arrays(self, convert, dtype):
        batch = random_batch(groups=3)
        numbers = convert([dtype(i[-1]) - 1 for i in batch["index"]])
        assert_same(advantages(**batch | {"index": numbers}), advantages(**batch))


class TestSessions:
    """Rows that share a `rollout_index` are one rollout."""

    ROWS = make_batch(
        [[1, 2], [1, 5], [3], [4, 1], [6]],
        rewards=[0, 1, 0.5, 0, 0.2],
        index=["p", "p", "p", "p", "q"],
    )
    SESSION = ["s0", "s0", "s1", "s2", "s0"]  # unique within the prompt only

    def test_one_document_occurrences_and_lengths_summed(self):
        table = key_token_table(**self.ROWS, rollout_index=self.SESSION, config=KTAEConfig(correct_threshold=0.4))
        row = table.token_id.tolist().index(1)
        assert [int(x[row]) for x in (table.a, table.b, table.c, table.d)] == [1, 1, 1, 0]
        assert table.term_frequency_correct[row] == pytest.approx(2 / 5)
        assert table.index[row] == "p"
        assert table.index[-1] == "q"

    def test_equals_the_joined_rollout(self):
        joined = make_batch([[1, 2, 1, 5], [3], [4, 1], [6]], rewards=[1, 0.5, 0, 0.2], index=["p", "p", "p", "q"])
        config = KTAEConfig(correct_threshold=0.4)
        actual = advantages(**self.ROWS, rollout_index=self.SESSION, config=config)
        expected = advantages(**joined, config=config)
        assert_same(actual[0], expected[0, :2])
        assert_same(actual[1], expected[0, 2:])
        assert_same(actual[2:, 0], expected[1:, 0])

    def test_the_last_row_decides_even_if_it_is_masked(self):
        batch = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.ROWS.items()}
        batch["response_mask"][1] = 0
        table = key_token_table(**batch, rollout_index=self.SESSION, is_correct=[0, 1, 0, 0, 0])
        assert table.a[table.token_id == 2].tolist() == [1]

    def test_rows_of_a_session_may_stand_apart(self):
        order = [2, 0, 4, 3, 1]
        moved = {k: v[order] if isinstance(v, torch.Tensor) else [v[i] for i in order] for k, v in self.ROWS.items()}
        actual = advantages(**moved, rollout_index=[self.SESSION[i] for i in order])
        assert_same(actual, advantages(**self.ROWS, rollout_index=self.SESSION)[order])


class TestTypes:
    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.long, torch.bool]
    )
    def test_rewards_of_any_dtype(self, dtype):
        batch = random_batch()
        batch["token_level_rewards"] = batch["token_level_rewards"].to(dtype)
        actual = advantages(**batch)
        assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(actual.double(), advantages(**random_batch()), rtol=0, atol=3e-7)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.long, torch.bfloat16, torch.float64])
    def test_masks_of_any_dtype(self, dtype):
        batch = random_batch()
        assert torch.equal(
            advantages(**batch | {"response_mask": batch["response_mask"].to(dtype)}), advantages(**batch)
        )

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
    def test_ids_of_any_integer_dtype(self, dtype):
        batch = random_batch(vocabulary=200)
        assert torch.equal(advantages(**batch | {"responses": batch["responses"].to(dtype)}), advantages(**batch))

    @pytest.mark.parametrize("ids", [[-3, -(2**62), 5], [2**62, 151_643, 10**9], [0, 2**31, -1]])
    def test_ids_of_any_size(self, ids):
        batch = random_batch(vocabulary=3)
        renamed = batch | {"responses": torch.tensor(ids)[batch["responses"]]}
        assert_same(advantages(**renamed), advantages(**batch))

    def test_views_and_graphs(self):
        batch = random_batch()
        expected = advantages(**batch)
        strided = {k: v.T.contiguous().T if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        strided["token_level_rewards"].requires_grad_()
        actual = advantages(**strided)
        assert not actual.requires_grad
        assert_same(actual, expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_the_default_dtype_does_not_matter(self, dtype):
        batch = random_batch(groups=2, size=8, width=3000, vocabulary=50)
        expected = advantages(**batch)
        torch.set_default_dtype(dtype)
        try:
            assert torch.equal(advantages(**batch), expected)
        finally:
            torch.set_default_dtype(torch.float32)

    def test_the_default_device_does_not_matter(self):
        batch = random_batch() | {"is_correct": [True, False] * 12, "rollout_index": list(range(24))}
        expected = advantages(**batch, config=KTAEConfig(ignore_token_ids=(3,)))
        with torch.device("meta"):
            actual = advantages(**batch, config=KTAEConfig(ignore_token_ids=(3,)))
            key_token_table(**batch)
            calibrated = KTAEConfig(preset="calibrated")
            advantages(**batch, config=calibrated)
            estimator.estimate(**batch, config=calibrated, permutation=torch.Generator("cpu").manual_seed(0))
        assert torch.equal(actual, expected)

    def test_inputs_are_not_modified(self):
        batch = random_batch() | {"rollout_advantages": torch.randn(24, 9), "is_correct": [True, False] * 12}
        before = {k: v.clone() if isinstance(v, torch.Tensor) else list(v) for k, v in batch.items()}
        advantages(**batch)
        for name, value in before.items():
            same = torch.equal(value, batch[name]) if isinstance(value, torch.Tensor) else value == batch[name]
            assert same, name

    def test_advantages_and_returns_as_in_verl(self):
        values, returns = compute_ktae_advantage(**random_batch())
        assert torch.equal(values, returns)
        assert values.is_contiguous()

    @pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
    def test_empty(self, shape):
        batch = make_batch([[1]] * shape[0], [0] * shape[0], ["p"] * shape[0], width=1)
        batch = {
            k: v[:, :0].expand(*shape) if isinstance(v, torch.Tensor) and 0 in shape[1:] else v
            for k, v in batch.items()
        }
        batch = {k: v.new_zeros(shape) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        assert advantages(**batch).shape == shape
        assert len(key_token_table(**batch).token_id) == 0

    def test_same_input_same_bits_from_several_threads(self):
        batches = [random_batch(groups=20, size=16, width=60, vocabulary=90, seed=seed) for seed in range(4)]
        alone = [advantages(**batch) for batch in batches]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda batch: advantages(**batch), batches * 5))
        assert all(torch.equal(actual, alone[i % 4]) for i, actual in enumerate(together))


def test_weights_of_any_size():
    batch = random_batch()
    for weight in (1e-300, 1e30):
        config = KTAEConfig(fisher_weight=weight, information_gain_weight=weight)
        assert_same(advantages(**batch, config=config), advantages(**batch))
    assert advantages(**batch, config=KTAEConfig(term_frequency_weight=1e30, scale=1e30)).isfinite().all()


@pytest.mark.parametrize("chunk_tokens", [1, 40, 10**9])
def test_chunks_do_not_show(monkeypatch, chunk_tokens):
    batch = random_batch(groups=9, size=5) | {"rollout_index": [row // 18 for row in range(45)]}
    expected, table = advantages(**batch), key_token_table(**batch)
    monkeypatch.setattr(counting, "CHUNK_TOKENS", chunk_tokens)
    assert torch.equal(advantages(**batch), expected)
    for name, column in vars(key_token_table(**batch)).items():
        same = column == vars(table)[name]
        assert same if name == "index" else same.all(), name


@pytest.mark.parametrize("sizes", [[300], [2, 300, 1, 40]])
def test_both_ways_of_counting(monkeypatch, sizes):
    """By tables and by sorting, with groups of different sizes."""
    generator = torch.Generator().manual_seed(1)
    index = [f"p{i}" for i, size in enumerate(sizes) for _ in range(size)]
    rollouts = [torch.randint(0, 30, (4,), generator=generator).tolist() for _ in index]
    batch = make_batch(rollouts, [int(7 in rollout) for rollout in rollouts], index)
    values = {}
    for label in set(index):
        group = [rollout for rollout, name in zip(rollouts, index, strict=True) if name == label]
        values[label] = reference.key_token_values(group, [7 in rollout for rollout in group])
    for cells in (0, 16):
        monkeypatch.setattr(counting, "CELLS_PER_VALUE", cells)
        monkeypatch.setattr(counting, "SMALL_TABLE", cells)
        table = key_token_table(**batch)
        expected = [values[label][token] for label, token in zip(table.index, table.token_id.tolist(), strict=True)]
        assert table.key_token_value.tolist() == pytest.approx(expected, abs=1e-12)


def test_more_rollouts_than_a_byte_can_count():
    rollouts = [[5, 1 + row % 2] for row in range(1300)]
    table = key_token_table(**make_batch(rollouts, [row < 700 for row in range(1300)], ["p"] * 1300))
    assert table.token_id.tolist() == [1, 2, 5]
    assert (table.a.tolist(), table.b.tolist()) == ([350, 350, 700], [300, 300, 600])


def test_numpy_and_torch_count_alike(monkeypatch):
    """On a GPU the torch operations run; here they run on the CPU."""
    batch = random_batch(groups=9, size=7)
    batch["response_mask"][3, 0] = 0  # not only padding on the right
    expected = advantages(**batch)
    monkeypatch.setattr(counting, "_on_cpu", lambda _: False)
    assert torch.equal(advantages(**batch), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    batch = random_batch(groups=9, size=7)
    on_gpu = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    actual = advantages(**on_gpu)
    assert actual.is_cuda
    assert_same(actual.cpu(), advantages(**batch))
    calibrated = KTAEConfig(preset="calibrated")
    assert_same(advantages(**on_gpu, config=calibrated).cpu(), advantages(**batch, config=calibrated))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(advantages(**on_gpu), actual)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(key_token_table(**on_gpu).key_token_value.cpu(), key_token_table(**batch).key_token_value)


def test_strength_and_direction_make_the_value():
    for config, weight in ((KTAEConfig(), 0.5), (KTAEConfig(preset="paper"), 1.0)):
        table = key_token_table(**random_batch(), config=config)
        assert_same(table.strength, weight * (table.fisher_score + table.information_gain))
        assert_same(table.key_token_value, 2 * config.scale * (torch.sigmoid(table.strength * table.direction) - 0.5))


def test_all_tables_at_once_or_those_that_occur(monkeypatch):
    batch = random_batch(groups=9, size=7)
    expected = advantages(**batch)
    monkeypatch.setattr(scoring, "FEW_TABLES", 0)
    assert torch.equal(advantages(**batch), expected)


def test_memory_does_not_grow_with_the_range_of_ids():
    """A table of the size of the vocabulary would need 2**62 cells here, and 4 GB for the second batch."""
    batch = random_batch(groups=1, size=2, width=2)
    batch["responses"][0, 0] = 2**62
    advantages(**batch)
    batch["responses"][0, 0] = 2**32
    advantages(**batch)

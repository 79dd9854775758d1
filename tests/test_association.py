"""The association functions against exact integers and scipy."""

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate, combinations

import numpy as np
import pytest
import scipy.stats
import torch

from ktae import effect_size, fisher_exact_pvalue, information_gain, reference, table_probability
from ktae.association import hypergeometric_z


def tables_up_to(n_max, n_min=0):
    """Every table of groups of n_min..n_max rollouts, as cells [4, tables]."""
    grids = []
    for n in range(n_min, n_max + 1):
        a, b, c = np.meshgrid(*[np.arange(n + 1)] * 3, indexing="ij")
        keep = a + b + c <= n
        grids.append(np.stack([a[keep], b[keep], c[keep], n - (a + b + c)[keep]]))
    return torch.from_numpy(np.concatenate(grids, axis=1))


def random_tables(count, n_min, n_max, seed):
    generator = np.random.default_rng(seed)
    n = generator.integers(n_min, n_max + 1, count)
    correct = generator.integers(0, n + 1)
    containing = generator.integers(0, n + 1)
    a = generator.hypergeometric(correct, n - correct, containing)
    a = np.where(generator.random(count) < 0.5, a, generator.integers(0, n + 1))  # not only likely tables
    a = a.clip(np.maximum(0, containing - (n - correct)), np.minimum(containing, correct))
    return torch.from_numpy(np.stack([a, containing - a, correct - a, n - correct - containing + a]))


def exact_statistics(tables):
    """p-value and probability of each table in integers; Python rounds the quotient of two integers correctly."""
    margins = {}
    p, probability = [], []
    for a, b, c, d in tables.T.tolist():
        key = (a + c, b + d, a + b)
        if key not in margins:
            correct, incorrect, containing = key
            ways = [
                math.comb(correct, k) * math.comb(incorrect, containing - k)
                for k in range(max(0, containing - incorrect), min(containing, correct) + 1)
            ]
            ascending = sorted(ways)
            margins[key] = ascending, list(accumulate(ascending)), math.comb(correct + incorrect, containing)
        ascending, cumulative, total = margins[key]
        ways = math.comb(a + c, a) * math.comb(b + d, b)
        p.append(cumulative[bisect_right(ascending, ways) - 1] / total)
        probability.append(ways / total)
    return torch.tensor(p, dtype=torch.float64), torch.tensor(probability, dtype=torch.float64)


def assert_exact(tables):
    p, probability = exact_statistics(tables)
    torch.testing.assert_close(fisher_exact_pvalue(*tables), p, rtol=1e-12, atol=0)
    torch.testing.assert_close(table_probability(*tables), probability, rtol=1e-12, atol=0)


def test_every_table_up_to_64_rollouts_is_exact():
    assert_exact(tables_up_to(64))


def test_random_tables_up_to_1024_rollouts_are_exact():
    assert_exact(random_tables(4000, 65, 1024, seed=0))


# (N, correct, containing, a, the a of the other tail whose table is not tied): the closest pairs there are, found by a
# search over all groups of up to 1024 rollouts.
NEAR_TIES = [
    (521, 90, 249, 41, 45),
    (605, 88, 135, 16, 23),
    (666, 174, 226, 53, 65),
    (676, 104, 222, 3, 71),
    (687, 249, 287, 102, 106),
    (752, 284, 290, 104, 115),
    (772, 162, 367, 74, 80),
    (815, 330, 368, 142, 156),
    (886, 263, 336, 30, 174),
    (943, 172, 354, 31, 100),
    (958, 177, 390, 70, 74),
    (958, 186, 209, 34, 47),
    (976, 256, 429, 108, 117),
    (1024, 240, 297, 68, 71),
]


@pytest.mark.parametrize(("n", "correct", "containing", "lower", "upper"), NEAR_TIES)
def test_near_ties_are_told_from_ties(n, correct, containing, lower, upper):
    pair = [[a, containing - a, correct - a, n - correct - containing + a] for a in (lower, upper)]
    ways = [math.comb(correct, a) * math.comb(n - correct, containing - a) for a in (lower, upper)]
    assert 0 < abs(Fraction(ways[0], ways[1]) - 1) < 1e-9  # the premise
    assert_exact(torch.tensor(pair).T)


@pytest.mark.parametrize(
    ("n", "correct", "containing", "a", "expected"), [(1024, 332, 250, 88, 0.2780), (840, 126, 106, 23, 0.0425)]
)
def test_tables_that_a_looser_tolerance_gets_wrong(n, correct, containing, a, expected):
    table = torch.tensor([[a], [containing - a], [correct - a], [n - correct - containing + a]])
    assert_exact(table)
    assert fisher_exact_pvalue(*table).item() == pytest.approx(expected, abs=5e-5)


def test_a_table_far_in_the_tail_keeps_its_digits():
    assert_exact(torch.tensor([[512, 0, 0, 512], [0, 512, 512, 0]]).T)  # p = 4e-307


@pytest.mark.parametrize("tables", [tables_up_to(24, n_min=1), random_tables(1500, 25, 200, seed=1)], ids=["24", "200"])
def test_p_values_agree_with_scipy(tables):
    ours = fisher_exact_pvalue(*tables).numpy()
    theirs = np.array([scipy.stats.fisher_exact([[a, b], [c, d]]).pvalue for a, b, c, d in tables.T.tolist()])
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=0)


def test_probabilities_agree_with_scipy():
    a, b, c, d = (x.numpy() for x in tables_up_to(24, n_min=1))
    theirs = scipy.stats.hypergeom.pmf(a, a + b + c + d, a + c, a + b)
    np.testing.assert_allclose(table_probability(*tables_up_to(24, n_min=1)).numpy(), theirs, rtol=1e-10, atol=0)


def test_information_gain_agrees_with_scipy():
    tables = tables_up_to(24, n_min=1)
    a, b, c, d = (x.numpy().astype(float) for x in tables)
    n = a + b + c + d
    outcome = scipy.stats.entropy(np.stack([a + c, b + d]), base=2)
    with np.errstate(invalid="ignore"):  # a token in no rollout, or in all: one conditional entropy is 0/0, weight 0
        present, absent = (np.nan_to_num(scipy.stats.entropy(np.stack(x), base=2)) for x in ((a, b), (c, d)))
    expected = outcome - (a + b) / n * present - (c + d) / n * absent
    np.testing.assert_allclose(information_gain(*tables).numpy(), expected, rtol=0, atol=1e-14)


def test_information_gain_of_an_independent_table_is_exactly_0():
    assert information_gain(*torch.tensor([[3, 5], [6, 5], [7, 2], [14, 2]])).tolist() == [0.0, 0.0]


def test_effect_size_agrees_with_the_reference():
    tables = tables_up_to(24)
    a, b, c, d = tables
    two_sided = tables[:, (a + c > 0) & (b + d > 0)]
    expected = torch.tensor([reference.effect_size(*t) for t in two_sided.T.tolist()], dtype=torch.float64)
    torch.testing.assert_close(effect_size(*two_sided), expected, rtol=0, atol=1e-14)
    one_sided = tables[:, (a + c == 0) | (b + d == 0)]
    assert (effect_size(*one_sided) == 0).all()


@pytest.mark.parametrize("function", [fisher_exact_pvalue, table_probability, information_gain, effect_size])
class TestEveryFunction:
    def test_keeps_the_shape(self, function):
        cells = torch.randint(0, 5, (4, 2, 3, 1))
        assert function(*cells).shape == (2, 3, 1)
        assert function(*cells).dtype == torch.float64
        assert function(*cells[:, :0]).shape == (0, 3, 1)

    def test_takes_any_integer_dtype(self, function):
        cells = torch.tensor([[100], [27], [90], [100]])  # products that would overflow 8 bits
        torch.testing.assert_close(function(*cells.to(torch.int8)), function(*cells), rtol=0, atol=0)

    def test_rejects_what_is_no_table(self, function):
        one = torch.ones(2, dtype=torch.long)
        with pytest.raises(ValueError, match=r"four integer tensors of one shape, got .*c: torch.int64 \[3\]"):
            function(one, one, torch.ones(3, dtype=torch.long), one)
        with pytest.raises(ValueError, match=r"four integer tensors of one shape, got .*b: torch.float32 \[2\]"):
            function(one, one.float(), one, one)
        with pytest.raises(ValueError, match="negative cell"):
            function(one, one, one - 2, one)


@pytest.mark.parametrize(("a", "b", "c", "d"), [(2, 0, 1, 3), (1, 2, 2, 1), (0, 3, 2, 1), (3, 0, 0, 3), (4, 1, 2, 5)])
def test_z_is_standardised_over_all_shuffles_of_the_outcomes(a, b, c, d):
    contains = [True] * (a + b) + [False] * (c + d)
    counts = [sum(contains[i] for i in chosen) for chosen in combinations(range(len(contains)), a + c)]
    expected = (a - np.mean(counts)) / np.std(counts)
    assert hypergeometric_z(*torch.tensor([a, b, c, d])).item() == pytest.approx(expected)


def test_z_of_what_shuffles_do_not_change_is_0():
    tables = torch.tensor([(2, 2, 0, 0), (2, 0, 1, 0), (0, 0, 2, 2), (0, 0, 0, 0), (0, 3, 0, 1)], dtype=torch.uint8)
    z = hypergeometric_z(*tables.T)
    assert z.dtype == torch.float64
    assert z.tolist() == [0] * 5


def test_z_of_large_tables():
    m = 3 * 10**9
    a, b, c, d = m, m // 2, m // 3, m
    k, n_correct, n = a + b, a + c, a + b + c + d
    exact = Fraction((n * a - k * n_correct) ** 2 * (n - 1), k * (n - k) * n_correct * (n - n_correct))
    assert hypergeometric_z(*torch.tensor([a, b, c, d])).item() == pytest.approx(math.sqrt(exact))


def test_z_needs_counts():
    with pytest.raises(ValueError, match="four integer tensors"):
        hypergeometric_z(*torch.tensor([2.0, 0, 1, 3]))

r"""Association between a token and the correctness of the rollouts that contain it.

For one token of one prompt's group of N rollouts:

=============  ====================  ===============
rollouts       contain the token     do not
=============  ====================  ===============
correct        a                     c
incorrect      b                     d
=============  ====================  ===============

Every function takes the four cells as integer tensors of one shape and returns float64 of that shape.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ktae.counting import distinct

# A search over all pairs of tables with equal margins in groups of up to 1024 rollouts (5.7e9 comparisons) found the
# weights of tied tables within 4e-15 of each other and those of no two others within 1.03e-10, both relative. The
# closest is (N, correct, containing) = (687, 249, 287), a = 102 and 106.
TIE_TOLERANCE = 1e-12

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

BM25_K1 = 2.0
BM25_B = 0.5

# One-sided and degenerate tables have p = 1 up to rounding.
CERTAIN = 1 - 1e-9


def fisher_exact_pvalue(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Two-sided p-value of Fisher's exact test.

    Given the margins, cell `a` is hypergeometric under independence. The p-value is the total probability of the
    tables that are no likelier than the one observed. Ties are decided correctly in groups of up to 1024 rollouts.

    Args:
        a, b, c, d: cells of the tables, integers >= 0, any shape.

    Returns:
        p-values in [0, 1], float64, of the cells' shape. In groups of over 1024 rollouts a p-value below 1e-300 may
        come out as 0.

    Raises:
        ValueError: a cell is negative or not an integer, or the shapes differ.

    Source:
        R. A. Fisher, "On the Interpretation of chi2 from Contingency Tables", 1922.

    Example:
        >>> fisher_exact_pvalue(*torch.tensor([8, 2, 1, 5])).item()
        0.03496503496...
    """
    return _evaluate_distinct_tables(_two_sided_pvalue, a, b, c, d)


def table_probability(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Probability of the table given its margins, :math:`(a+b)!(c+d)!(a+c)!(b+d)! / (a!b!c!d!N!)`.

    This is the "p-value" that the KTAE paper prints and the `paper` preset uses: the hypergeometric
    probability of the observed table alone.

    Args:
        a, b, c, d: cells of the tables, integers >= 0, any shape.

    Returns:
        Probabilities in [0, 1], float64, of the cells' shape.

    Raises:
        ValueError: a cell is negative or not an integer, or the shapes differ.

    Source:
        Sun et al., arXiv 2505.16826.

    Example:
        >>> table_probability(*torch.tensor([8, 2, 1, 5])).item()  # 270 in 11440
        0.02360139860...
    """
    return _evaluate_distinct_tables(_point_probability, a, b, c, d)


def information_gain(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Information gain :math:`IG = H(Y) - H(Y|X)` in bits: Y correct or not, X token present or not.

    It is computed as the mutual information :math:`\sum_{ij} \frac{n_{ij}}{N} \log_2 \frac{n_{ij} N}{r_i c_j}`, which
    is the same number without the cancellation, and exactly 0 for independent tables.

    Args:
        a, b, c, d: cells of the tables, integers >= 0, any shape.

    Returns:
        Bits in [0, 1], float64, of the cells' shape. 0 for a table of zeros.

    Raises:
        ValueError: a cell is negative or not an integer, or the shapes differ.

    Source:
        Sun et al., arXiv 2505.16826.

    Example:
        >>> information_gain(*torch.tensor([3, 0, 0, 5])).item()  # the token tells all: H(3/8)
        0.954434002924965
    """
    a, b, c, d = _cells(a, b, c, d)
    total = (a + b + c + d).double()
    gain = torch.zeros_like(total)
    for cell, row, column in ((a, a + c, a + b), (b, b + d, a + b), (c, a + c, c + d), (d, b + d, c + d)):
        lift = cell * total / (row.double() * column).clamp(min=1)
        gain += torch.special.xlogy(cell.double(), lift)
    return gain.clamp(min=0) / (total.clamp(min=1) * math.log(2))


def effect_size(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Effect size :math:`h = \arcsin\sqrt{a/(a+c)} - \arcsin\sqrt{b/(b+d)}`, half of Cohen's h.

    Positive when the token is more frequent among correct rollouts. Neither paper nor published code has Cohen's
    factor 2. A table without correct or without incorrect rollouts has effect size 0.

    Args:
        a, b, c, d: cells of the tables, integers >= 0, any shape.

    Returns:
        Radians in [-pi/2, pi/2], float64, of the cells' shape.

    Raises:
        ValueError: a cell is negative or not an integer, or the shapes differ.

    Source:
        J. Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988, chapter 6.

    Example:
        >>> effect_size(*torch.tensor([4, 0, 0, 4])).item()
        1.5707963267948966
    """
    a, b, c, d = _cells(a, b, c, d)
    correct, incorrect = a + c, b + d
    h = torch.asin(torch.sqrt(a / correct.clamp(min=1).double())) - torch.asin(
        torch.sqrt(b / incorrect.clamp(min=1).double())
    )
    return h * ((correct > 0) & (incorrect > 0))


def hypergeometric_z(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Standardised number of correct rollouts with the token: :math:`z = (a - kn_c/N) / \sigma`.

    k = a + b of N rollouts contain the token and :math:`n_c = a + c` are correct. Given these, a is hypergeometric
    under independence, with variance :math:`\sigma^2 = k (N-k) n_c (N-n_c) / (N^2 (N-1))`. Where a is fixed, z is 0.

    Args:
        a, b, c, d: cells of the tables, integers >= 0, any shape.

    Returns:
        z, float64, of the cells' shape.

    Raises:
        ValueError: a cell is negative or not an integer, or the shapes differ.

    Source:
        N. Mantel, "Chi-Square Tests with One Degree of Freedom", 1963.

    Example:
        >>> hypergeometric_z(*torch.tensor([3, 0, 0, 3])).item()  # sqrt(5)
        2.23606797749979
    """
    a, b, c, d = _cells(a, b, c, d)
    k, n_correct, n = (x.double() for x in (a + b, a + c, a + b + c + d))
    excess = n * a - k * n_correct  # exactly 0 where nothing speaks for either outcome
    margins = k * (n - k) * n_correct * (n - n_correct)
    return torch.where(margins > 0, excess * ((n - 1).clamp(min=1) / margins.clamp(min=1)).sqrt(), 0.0)


def fisher_score(p: Tensor) -> Tensor:
    r"""Fisher score :math:`F = \exp(-2p)`, and 0 where p = 1.

    Args:
        p: p-values, float64, any shape.

    Returns:
        Scores in [0, 1], of `p`'s shape.

    Example:
        >>> fisher_score(torch.tensor([0.0, 0.5, 1.0]))
        tensor([1.0000, 0.3679, 0.0000])
    """
    return torch.where(p >= CERTAIN, 0.0, torch.exp(-2 * p))


def bm25(occurrences: Tensor, length: Tensor, saturation_point: Tensor) -> tuple[Tensor, Tensor]:
    r"""Term frequency of a token among rollouts of one outcome and its BM25 saturation.

    .. math:: f = \mathrm{occurrences} / \mathrm{length}, \quad
              S = \frac{f (k_1 + 1)}{f + \mathrm{saturation\ point}}

    Args:
        occurrences: of the token in all rollouts of the outcome together, any shape.
        length: total number of tokens of these rollouts, > 0.
        saturation_point: see :func:`bm25_saturation_point`.

    Returns:
        f and S, float64.

    Source:
        Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
        Beyond", 2009.

    Example:
        >>> length = torch.tensor([4.0])
        >>> f, s = bm25(torch.tensor([2]), length, bm25_saturation_point(length, length))
        >>> f.item(), s.item()
        (0.5, 0.6)
    """
    frequency = occurrences.double() / length
    return frequency, frequency * (BM25_K1 + 1) / (frequency + saturation_point)


def bm25_saturation_point(length: Tensor, mean_length: Tensor) -> Tensor:
    r"""Term frequency at which BM25's saturation is half of its limit: :math:`k_1 (1 - B + B\,l / \bar l)`.

    Args:
        length: total number of tokens l of the rollouts of one outcome, floating point, any shape.
        mean_length: mean of the total lengths of the two outcomes.

    Returns:
        Saturation points with k1 = 2 and B = 0.5, > 0.

    Source:
        Robertson and Zaragoza, 2009; Sun et al., arXiv 2505.16826.

    Example:
        >>> bm25_saturation_point(torch.tensor([2.0, 6.0]), torch.tensor(4.0))
        tensor([1.5000, 2.5000])
    """
    return BM25_K1 * (1 - BM25_B + BM25_B * length / mean_length.clamp(min=1))


def _evaluate_distinct_tables(
    statistic: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, c: Tensor, d: Tensor
) -> Tensor:
    """A statistic of every table, computed once per distinct set of margins.

    `statistic` takes the weights [M, S] of all tables that each of M sets of margins allows, and returns its value
    [M, S] for each of these tables.
    """
    a, b, c, d = _cells(a, b, c, d)
    shape = a.shape
    a, b, c, d = (x.flatten() for x in (a, b, c, d))
    correct, incorrect, containing = a + c, b + d, a + b
    size = int((correct + incorrect).max()) + 1 if a.numel() else 1
    # Numbered in two steps, (correct, incorrect) and then containing, which keeps the numbers small.
    compositions, composition = distinct(correct * size + incorrect)
    margins, margin = distinct(composition * size + containing)
    composition = compositions[margins // size]
    lowest, weights = _table_weights(composition // size, composition % size, margins % size)
    return statistic(weights)[margin, a - lowest[margin]].reshape(shape)


def _table_weights(correct: Tensor, incorrect: Tensor, containing: Tensor) -> tuple[Tensor, Tensor]:
    """Hypergeometric weights of all tables with the given margins [M], 1 at the mode.

    Returns the lowest possible a [M] and weights [M, S], weights[m, s] belonging to a = lowest + s, 0 beyond the
    support. Products of ratios of small integers, from the mode outwards, keep each weight right to about 1e-13 and
    cannot overflow; differences of log-factorials are off by 1e-12 at 1024 rollouts.
    """
    lowest = (containing - incorrect).clamp(min=0)
    highest = torch.minimum(containing, correct)
    mode = (containing + 1) * (correct + 1) // (correct + incorrect + 2)
    span = int((highest - lowest).max()) + 1 if len(lowest) else 1
    a = lowest[:, None] + torch.arange(span, device=lowest.device)  # [M, S]
    correct, incorrect, containing, mode = (x[:, None] for x in (correct, incorrect, containing, mode))

    # Ratio of the weights of a and of the neighbour nearer to the mode; it is 0 just beyond the support.
    up = ((correct - a + 1) * (containing - a + 1)).double() / (a * (incorrect - containing + a)).clamp(min=1)
    down = ((a + 1) * (incorrect - containing + a + 1)).double() / ((correct - a) * (containing - a)).clamp(min=1)
    above = torch.where(a > mode, up, 1.0).cumprod(1)
    below = torch.where(a < mode, down, 1.0).flip(1).cumprod(1).flip(1)
    return lowest, above * below * (a <= highest[:, None])


def _two_sided_pvalue(weights: Tensor) -> Tensor:
    """Share [M, S] of the weight of the tables that are no likelier than each table."""
    ascending = weights.sort(1).values
    cumulative = ascending.cumsum(1)  # smallest first: the tail that matters keeps its digits
    rank = torch.searchsorted(ascending, weights * (1 + TIE_TOLERANCE), right=True) - 1
    return (cumulative.gather(1, rank) / cumulative[:, -1:]).clamp(max=1)


def _point_probability(weights: Tensor) -> Tensor:
    return weights / weights.sum(1, keepdim=True)


def _cells(*cells: Tensor) -> tuple[Tensor, ...]:
    if not all(isinstance(x, Tensor) and x.dtype in INTEGERS for x in cells) or len({x.shape for x in cells}) > 1:
        listing = ", ".join(
            f"{name}: {x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else f"{name}: {type(x).__name__}"
            for name, x in zip("abcd", cells, strict=True)
        )
        raise ValueError(f"A contingency table needs four integer tensors of one shape, got {listing}.")
    if any((x < 0).any() for x in cells):
        raise ValueError("A contingency table holds counts of rollouts: got a negative cell.")
    return tuple(x.long() for x in cells)

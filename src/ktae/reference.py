"""The equations of KTAE (arXiv 2505.16826), slowly: one token at a time, exact fractions for the probabilities.

It shares nothing with the library: the truth that the fast path is tested and measured against. Not for training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction


def table_probability(a: int, b: int, c: int, d: int) -> Fraction:
    """Hypergeometric probability of [[a, b], [c, d]] given its margins: the "p-value" that the paper prints.

    Example:
        >>> table_probability(8, 2, 1, 5)
        Fraction(27, 1144)
    """
    return Fraction(math.comb(a + c, a) * math.comb(b + d, b), math.comb(a + b + c + d, a + b))


def fisher_exact_pvalue(a: int, b: int, c: int, d: int) -> Fraction:
    """Total probability of the tables with these margins that are no likelier than [[a, b], [c, d]].

    Example:
        >>> fisher_exact_pvalue(8, 2, 1, 5)
        Fraction(5, 143)
    """
    observed = math.comb(a + c, a) * math.comb(b + d, b)
    total = 0
    for k in range(max(0, a + b - (b + d)), min(a + b, a + c) + 1):
        ways = math.comb(a + c, k) * math.comb(b + d, a + b - k)
        if ways <= observed:
            total += ways
    return Fraction(total, math.comb(a + b + c + d, a + b))


def entropy(*counts: int) -> float:
    """Entropy in bits of the distribution that the counts describe."""
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts if n)


def information_gain(a: int, b: int, c: int, d: int) -> float:
    """H(Y) - H(Y|X) in bits.

    Example:
        >>> information_gain(4, 0, 0, 4)
        1.0
    """
    n = a + b + c + d
    conditional = sum((x + y) / n * entropy(x, y) for x, y in ((a, b), (c, d)) if x + y)
    return entropy(a + c, b + d) - conditional


def effect_size(a: int, b: int, c: int, d: int) -> float:
    """Difference of the arcsines of the square roots of the two document frequencies."""
    return math.asin(math.sqrt(a / (a + c))) - math.asin(math.sqrt(b / (b + d)))


def bm25(frequency: float, length: int, mean_length: float, k1: float = 2.0, B: float = 0.5) -> float:
    """BM25's saturation of a term frequency."""
    return frequency * (k1 + 1) / (frequency + k1 * (1 - B + B * length / mean_length))


def key_token_values(
    rollouts: Sequence[Sequence[int]],
    correct: Sequence[bool],
    *,
    paper: bool = False,
    h1: float = 1.0,
    h2: float = 1.0,
    h3: float = 1.0,
    scale: float | None = None,
) -> dict[int, float]:
    """Key-token value of every token id of one group of rollouts, each a list of its unmasked token ids.

    Example:
        >>> values = key_token_values([[5, 7], [5, 7], [6, 7], [6, 7]], [True, True, False, False])
        >>> {token: round(value, 6) for token, value in values.items()}
        {5: 1.0, 6: -1.0, 7: 0.0}
    """
    tokens = sorted({token for rollout in rollouts for token in rollout})
    group = [(rollout, label) for rollout, label in zip(rollouts, correct, strict=True) if rollout]
    all_correct = [rollout for rollout, label in group if label]
    all_incorrect = [rollout for rollout, label in group if not label]
    if not all_correct or not all_incorrect:
        return dict.fromkeys(tokens, 0.0)
    if scale is None:
        scale = 0.5 if paper else 1.0

    count_correct = Counter(token for rollout in all_correct for token in rollout)
    count_incorrect = Counter(token for rollout in all_incorrect for token in rollout)
    len_correct, len_incorrect = sum(count_correct.values()), sum(count_incorrect.values())
    len_mean = (len_correct + len_incorrect) / 2
    values: dict[int, float] = {}
    for token in tokens:
        a = sum(token in rollout for rollout in all_correct)
        b = sum(token in rollout for rollout in all_incorrect)
        c, d = len(all_correct) - a, len(all_incorrect) - b

        p = table_probability(a, b, c, d) if paper else fisher_exact_pvalue(a, b, c, d)
        strength = h1 * (0.0 if p == 1 else math.exp(-2 * p)) + h2 * information_gain(a, b, c, d)
        if not paper:
            strength /= h1 + h2

        s_correct = bm25(count_correct[token] / len_correct, len_correct, len_mean)
        s_incorrect = bm25(count_incorrect[token] / len_incorrect, len_incorrect, len_mean)
        contrast = s_correct / (s_incorrect + 1e-5) - s_incorrect / (s_correct + 1e-5)
        direction = effect_size(a, b, c, d) + h3 * contrast

        values[token] = 2 * scale * (sigmoid(strength * direction) - 0.5)
    return values


def leave_one_out_values(
    rollouts: Sequence[Sequence[int]], correct: Sequence[bool], *, scale: float = 1.0
) -> list[dict[int, float]]:
    """preset="calibrated" before the shift: the values of the token ids of each rollout, from the other rollouts.

    Example:
        >>> leave_one_out_values([[5, 7], [5], [5], [6]], [True, True, False, False])[0]
        {5: 0.33..., 7: 0.0}
    """
    values: list[dict[int, float]] = []
    for i, own in enumerate(rollouts):
        others = [(set(rollouts[j]), correct[j]) for j in range(len(rollouts)) if j != i and rollouts[j]]
        n, n_correct = len(others), sum(label for _, label in others)
        values.append({})
        for token in sorted(set(own)):
            k = sum(token in tokens for tokens, _ in others)
            a = sum(token in tokens for tokens, label in others if label)
            z = 0.0
            if 0 < k < n and 0 < n_correct < n:
                variance = Fraction(k * (n - k) * n_correct * (n - n_correct), n * n * (n - 1))
                z = float(a - Fraction(k * n_correct, n)) / math.sqrt(variance)
            values[-1][token] = scale * math.tanh(z / 2)
    return values


def group_relative_advantages(scores: Sequence[float], epsilon: float = 1e-6, norm_by_std: bool = True) -> list[float]:
    """GRPO advantage of each rollout of one group, in exact fractions up to the square root."""
    if len(scores) == 1:
        return [scores[0] / (1 + epsilon) if norm_by_std else scores[0]]
    exact = [Fraction(score) for score in scores]
    centred = [score - sum(exact) / len(exact) for score in exact]
    if not norm_by_std:
        return [float(x) for x in centred]
    std = math.sqrt(sum(x * x for x in centred) / (len(exact) - 1))
    return [0.0 if x == 0 else float(x) / (std + epsilon) for x in centred]


def ktae_advantages(
    rollouts: Sequence[Sequence[int]],
    scores: Sequence[float],
    index: Sequence[Hashable],
    correct: Sequence[bool],
    *,
    paper: bool = False,
) -> list[list[float]]:
    """Advantage of every token of every rollout of a batch, default settings."""
    advantages: list[list[float]] = [[] for _ in rollouts]
    for prompt in set(index):
        rows = [i for i, label in enumerate(index) if label == prompt]
        values = key_token_values([rollouts[i] for i in rows], [correct[i] for i in rows], paper=paper)
        for i, advantage in zip(rows, group_relative_advantages([scores[i] for i in rows]), strict=True):
            advantages[i] = [advantage + values[token] for token in rollouts[i]]
    return advantages


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))

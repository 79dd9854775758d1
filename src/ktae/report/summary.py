"""The analyses of many groups -> one summary, which does not grow with the rollouts, only with the vocabulary."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ktae.metrics import SATURATED
from ktae.report.analysis import Analysis
from ktae.report.display import STATISTICS
from ktae.report.rollouts import Group

BINS = 41  # odd: 0 is in the middle of a bin
KEPT_TOKENS = 200


class Strongest(NamedTuple):
    """A token in the group where it speaks most for an outcome."""

    evidence: float
    group: str
    step: Any
    statistics: np.ndarray  # in the order of STATISTICS

    def record(self) -> dict[str, Any]:
        numbers = dict(zip(STATISTICS.values(), self.statistics.tolist(), strict=True))
        counts = {name: int(numbers[name]) for name in "abcd"}
        return {"group": self.group, "step": self.step, **numbers, **counts}


@dataclass(slots=True)
class TokenSummary:
    """A token over the groups with both outcomes that have it."""

    groups: int = 0
    value: float = 0.0  # V, summed
    evidence: float = 0.0  # V x information gain, summed
    for_correct: Strongest | None = None
    for_incorrect: Strongest | None = None

    @property
    def strongest(self) -> Strongest | None:
        """The group that speaks most for what the token speaks for in all."""
        return self.for_correct if self.evidence > 0 else self.for_incorrect

    def add(self, group: Group, value: float, evidence: float, statistics: np.ndarray) -> None:
        self.groups += 1
        self.value += value
        self.evidence += evidence
        best = self.for_correct if evidence > 0 else self.for_incorrect
        if abs(evidence) <= (abs(best.evidence) if best else 0.0):
            return
        strongest = Strongest(evidence, group.label, group.step, statistics.copy())  # a view would keep its table
        if evidence > 0:
            self.for_correct = strongest
        else:
            self.for_incorrect = strongest


@dataclass
class Summary:
    """Figures of all groups added so far. Each `chance` is the mean of the same figure over permuted outcomes."""

    scale: float
    mixed_share_of_step: float | None = None  # of the groups of a training step, where the file has some of them only
    groups: int = 0
    mixed: int = 0
    sizes: Counter = field(default_factory=Counter)
    rollouts: Counter = field(default_factory=Counter)  # of each outcome
    length: Counter = field(default_factory=Counter)  # of all of these together
    chance_length: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})  # with permuted outcomes
    tokens: int = 0  # of groups with both outcomes, as the figures below
    magnitude: float = 0.0
    saturated: int = 0
    chance_tokens: int = 0
    chance_magnitude: float = 0.0
    chance_saturated: int = 0
    length_difference: list[float] = field(default_factory=list)  # correct minus incorrect, a group each
    chance_length_difference: list[float] = field(default_factory=list)
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS))  # of V over the tokens, -scale to scale
    chance_histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    token: dict[str, TokenSummary] = field(default_factory=lambda: defaultdict(TokenSummary))

    def add(self, analysis: Analysis) -> None:
        """Add a group."""
        correct = analysis.correct
        length = np.array([len(ids) for ids in analysis.tokens.ids])
        self.groups += 1
        self.mixed_share_of_step = analysis.group.mixed_group_share
        self.sizes[len(correct)] += 1
        for outcome in (True, False):
            self.rollouts[outcome] += int((correct == outcome).sum())
            self.length[outcome] += int(length[correct == outcome].sum())
            by_chance = [length[shuffle == outcome].sum() for shuffle in analysis.shuffles or [correct]]
            self.chance_length[outcome] += float(np.mean(by_chance))
        if not analysis.mixed:
            return
        self.mixed += 1
        value, n = analysis.table.key_token_value.numpy(), analysis.occurrences
        self.tokens += int(n.sum())
        self.magnitude += float(n @ np.abs(value))
        self.saturated += int(n[np.abs(value) > SATURATED * self.scale].sum())
        chance, chance_n = analysis.chance, analysis.chance_occurrences
        self.chance_tokens += int(chance_n.sum())
        self.chance_magnitude += float(chance_n @ np.abs(chance))
        self.chance_saturated += int(chance_n[np.abs(chance) > SATURATED * self.scale].sum())
        self.histogram += self._histogram(value, n)
        self.chance_histogram += self._histogram(chance, chance_n)
        self.length_difference.append(_difference(length, correct))
        self.chance_length_difference += [abs(_difference(length, outcome)) for outcome in analysis.shuffles]
        self._add_tokens(analysis)

    def _add_tokens(self, analysis: Analysis) -> None:
        names, table = analysis.tokens.names, analysis.table
        value = table.key_token_value
        evidence = (value * table.information_gain).tolist()
        statistics = np.stack(
            [getattr(table, field).numpy() for field in STATISTICS.values()], axis=1, dtype=np.float64
        )
        ids = table.token_id.tolist()
        for token_id, v, strength, row in zip(ids, value.tolist(), evidence, statistics, strict=True):
            self.token[names[token_id]].add(analysis.group, v, strength, row)

    def _histogram(self, value: np.ndarray, n: np.ndarray) -> np.ndarray:
        bound = self.scale or 1.0
        return np.histogram(value, BINS, (-bound, bound), weights=n)[0]

    @property
    def saturation(self) -> tuple[float, float]:
        """Share of the tokens of mixed groups whose |V| exceeds 0.9 scale; the same with permuted outcomes."""
        return self.saturated / max(self.tokens, 1), self.chance_saturated / max(self.chance_tokens, 1)

    def mean_length(self, outcome: bool) -> tuple[float, float] | tuple[None, None]:
        """Of the rollouts of this outcome; the same with the outcomes permuted among those of each prompt."""
        n = self.rollouts[outcome]
        return (self.length[outcome] / n, self.chance_length[outcome] / n) if n else (None, None)

    def forget_all_but_the_leading_tokens(self) -> None:
        """For a step that is complete: of thousands of steps, only these are needed."""
        kept = sorted(self.token.items(), key=lambda item: -abs(item[1].evidence))[:KEPT_TOKENS]
        self.token = dict(kept)

    def figures(self) -> dict[str, Any]:
        """All of it as numbers, for JSON."""
        tokens, chance_tokens = max(self.tokens, 1), max(self.chance_tokens, 1)
        return {
            "groups": self.groups,
            "mixed_group_share": self.mixed / max(self.groups, 1),
            "rollouts": self.rollouts.total(),
            "group_sizes": {str(size): n for size, n in sorted(self.sizes.items())},
            "mean_length_correct": self.mean_length(True)[0],
            "mean_length_correct_by_chance": self.mean_length(True)[1],
            "mean_length_incorrect": self.mean_length(False)[0],
            "mean_length_incorrect_by_chance": self.mean_length(False)[1],
            "tokens_of_mixed_groups": self.tokens,
            "mean_abs_value": self.magnitude / tokens,
            "mean_abs_value_by_chance": self.chance_magnitude / chance_tokens,
            "saturated_token_share": self.saturation[0],
            "saturated_token_share_by_chance": self.saturation[1],
            "value_histogram": self.histogram.astype(int).tolist(),
            "value_histogram_by_chance": self.chance_histogram.astype(int).tolist(),
            "abs_length_difference": _mean([abs(x) for x in self.length_difference]),
            "abs_length_difference_by_chance": _mean(self.chance_length_difference),
        }

    def top(self, n: int) -> tuple[list[str], list[str]]:
        """The tokens with the most evidence for correct, and those for incorrect, strongest first."""
        evidence = {name: token.evidence for name, token in self.token.items()}
        order = sorted(evidence, key=evidence.__getitem__)
        return [t for t in order[::-1][:n] if evidence[t] > 0], [t for t in order[:n] if evidence[t] < 0]


def _difference(length: np.ndarray, correct: np.ndarray) -> float:
    return float(length[correct].mean() - length[~correct].mean())


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None

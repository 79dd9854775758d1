"""The analyses of many groups -> one summary, which does not grow with the rollouts, only with the vocabulary."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ktae.estimator import SATURATED
from ktae.report.analysis import Analysis

BINS = 41  # odd: 0 is in the middle of a bin
KEPT_TOKENS = 200


@dataclass
class Summary:
    """Figures of all groups added so far. Each `chance` is the mean of the same figure over permuted outcomes."""

    scale: float
    groups: int = 0
    mixed: int = 0
    sizes: Counter = field(default_factory=Counter)
    rollouts: Counter = field(default_factory=Counter)  # of each outcome
    length: Counter = field(default_factory=Counter)  # of all of these together
    tokens: int = 0  # of groups with both outcomes, as the figures below
    magnitude: float = 0.0
    saturated: int = 0
    chance_tokens: int = 0
    chance_magnitude: float = 0.0
    chance_saturated: int = 0
    length_difference: list[float] = field(default_factory=list)  # correct minus incorrect, a group each
    chance_length_difference: list[float] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # V x information gain, summed
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS))  # of V over the tokens, -scale to scale
    chance_histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    groups_of_token: Counter = field(default_factory=Counter)

    def add(self, analysis: Analysis) -> None:
        """Add a group."""
        correct = analysis.correct
        length = np.array([len(ids) for ids in analysis.tokens.ids])
        self.groups += 1
        self.sizes[len(correct)] += 1
        for outcome in (True, False):
            self.rollouts[outcome] += int((correct == outcome).sum())
            self.length[outcome] += int(length[correct == outcome].sum())
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
        text = analysis.text
        gain = analysis.table.information_gain.numpy()
        for token_id, evidence in zip(analysis.table.token_id.tolist(), (value * gain).tolist(), strict=True):
            self.evidence[text[token_id].strip() or text[token_id]] += evidence
            self.groups_of_token[text[token_id].strip() or text[token_id]] += 1

    def _histogram(self, value: np.ndarray, n: np.ndarray) -> np.ndarray:
        bound = self.scale or 1.0
        return np.histogram(value, BINS, (-bound, bound), weights=n)[0]

    @property
    def saturation(self) -> tuple[float, float]:
        """Share of the tokens of mixed groups whose |V| exceeds 0.9 scale; the same with permuted outcomes."""
        return self.saturated / max(self.tokens, 1), self.chance_saturated / max(self.chance_tokens, 1)

    def mean_length(self, outcome: bool) -> float | None:
        return self.length[outcome] / self.rollouts[outcome] if self.rollouts[outcome] else None

    def forget_all_but_the_leading_tokens(self) -> None:
        """For a step that is complete: of thousands of steps, only these are needed."""
        kept = sorted(self.evidence, key=lambda token: -abs(self.evidence[token]))[:KEPT_TOKENS]
        self.evidence = {token: self.evidence[token] for token in kept}
        self.groups_of_token = Counter({token: self.groups_of_token[token] for token in kept})

    def figures(self) -> dict[str, Any]:
        """All of it as numbers, for JSON."""
        tokens, chance_tokens = max(self.tokens, 1), max(self.chance_tokens, 1)
        return {
            "groups": self.groups,
            "mixed_group_share": self.mixed / max(self.groups, 1),
            "rollouts": self.rollouts.total(),
            "group_sizes": {str(size): n for size, n in sorted(self.sizes.items())},
            "mean_length_correct": self.mean_length(True),
            "mean_length_incorrect": self.mean_length(False),
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
        order = sorted(self.evidence, key=self.evidence.__getitem__)
        return [t for t in order[::-1][:n] if self.evidence[t] > 0], [t for t in order[:n] if self.evidence[t] < 0]


def _difference(length: np.ndarray, correct: np.ndarray) -> float:
    return float(length[correct].mean() - length[~correct].mean())


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None

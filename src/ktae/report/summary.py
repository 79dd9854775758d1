"""The analyses of many groups -> one summary, which does not grow with the rollouts, only with the vocabulary."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ktae.estimator import SATURATED
from ktae.report.analysis import Analysis


@dataclass
class Summary:
    """Figures of all groups added so far. Each `chance` is the mean of the same figure over permuted outcomes."""

    scale: float
    groups: int = 0
    mixed: int = 0
    sizes: Counter = field(default_factory=Counter)
    lengths: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    tokens: int = 0  # of groups with both outcomes, as the figures below
    magnitude: float = 0.0
    saturated: int = 0
    chance_tokens: int = 0
    chance_magnitude: float = 0.0
    chance_saturated: int = 0
    length_difference: list[float] = field(default_factory=list)  # correct minus incorrect, a group each
    chance_length_difference: list[float] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # V x information gain, summed
    groups_of_token: Counter = field(default_factory=Counter)

    def add(self, analysis: Analysis) -> None:
        """Add a group."""
        correct = analysis.correct
        length = np.array([len(ids) for ids in analysis.tokens.ids])
        self.groups += 1
        self.sizes[len(correct)] += 1
        for outcome in (True, False):
            self.lengths[outcome] += length[correct == outcome].tolist()
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
        self.length_difference.append(_difference(length, correct))
        self.chance_length_difference += [abs(_difference(length, outcome)) for outcome in analysis.shuffles]
        text = analysis.text
        gain = analysis.table.information_gain.numpy()
        for token_id, evidence in zip(analysis.table.token_id.tolist(), (value * gain).tolist(), strict=True):
            self.evidence[text[token_id].strip() or text[token_id]] += evidence
            self.groups_of_token[text[token_id].strip() or text[token_id]] += 1

    def figures(self) -> dict[str, Any]:
        """All of it as numbers, for JSON."""
        tokens, chance_tokens = max(self.tokens, 1), max(self.chance_tokens, 1)
        return {
            "groups": self.groups,
            "mixed_group_share": self.mixed / max(self.groups, 1),
            "rollouts": sum(size * n for size, n in self.sizes.items()),
            "group_sizes": {str(size): n for size, n in sorted(self.sizes.items())},
            "mean_length_correct": _mean(self.lengths[True]),
            "mean_length_incorrect": _mean(self.lengths[False]),
            "tokens_of_mixed_groups": self.tokens,
            "mean_abs_value": self.magnitude / tokens,
            "mean_abs_value_by_chance": self.chance_magnitude / chance_tokens,
            "saturated_token_share": self.saturated / tokens,
            "saturated_token_share_by_chance": self.chance_saturated / chance_tokens,
            "abs_length_difference": _mean([abs(x) for x in self.length_difference]),
            "abs_length_difference_by_chance": _mean(self.chance_length_difference),
        }

    def top(self, n: int) -> tuple[list[str], list[str]]:
        """The tokens with the most evidence for correct, and those for incorrect, strongest first."""
        order = sorted(self.evidence, key=self.evidence.__getitem__)
        return [t for t in order[::-1][:n] if self.evidence[t] > 0], [t for t in order[:n] if self.evidence[t] < 0]


def _difference(length: np.ndarray, correct: np.ndarray) -> float:
    return float(length[correct].mean() - length[~correct].mean())


def _mean(values: list[float] | list[int]) -> float | None:
    return float(np.mean(values)) if values else None

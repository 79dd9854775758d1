"""Totals and histograms over all groups of a report, and the figures made of them."""

import io
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktae.report.analysis import Analysis

# Seen on black and on white, and told apart by the colour-blind.
POSITIVE, NEGATIVE, NEUTRAL, INK = "#2f7fc1", "#d97706", "#909090", "#010101"
VALUE_BINS, LENGTH_BINS = 41, 30  # odd: 0 is in the middle of a bin
VOLCANO_BINS = (60, 45)
SMALLEST_P = 1e-12  # the volcano's top; 40 rollouts, half of them correct, reach it


@dataclass
class Distributions:
    """What is kept of the groups that were added: its size does not grow with their number."""

    scale: float
    groups: int = 0
    mixed: int = 0
    rollouts: int = 0
    correct: int = 0
    tokens: int = 0
    mixed_tokens: int = 0
    saturated: float = 0.0  # tokens of mixed groups
    saturated_by_chance: float = 0.0
    lengths: dict[bool, Counter] = field(default_factory=lambda: {True: Counter(), False: Counter()})
    values: np.ndarray = field(default_factory=lambda: np.zeros(VALUE_BINS))
    chance: np.ndarray = field(default_factory=lambda: np.zeros(VALUE_BINS))
    volcano: np.ndarray = field(default_factory=lambda: np.zeros(VOLCANO_BINS))

    def add(self, analysis: Analysis) -> None:
        outcomes = [rollout.correct for rollout in analysis.group.rollouts]
        self.groups += 1
        self.rollouts += len(outcomes)
        self.correct += sum(outcomes)
        self.tokens += int(analysis.occurrences.sum())
        for correct, ids in zip(outcomes, analysis.tokens.ids, strict=True):
            self.lengths[correct][len(ids)] += 1
        if analysis.mixed:
            self._add_mixed(analysis)

    def _add_mixed(self, analysis: Analysis) -> None:
        table, tokens = analysis.table, int(analysis.occurrences.sum())
        self.mixed += 1
        self.mixed_tokens += tokens
        observed, chance = analysis.saturation(self.scale)
        self.saturated += observed * tokens
        self.saturated_by_chance += chance * tokens
        self.values += self._histogram(table.key_token_value.numpy(), analysis.occurrences)
        # Each group weighs as much as it does in the observed values.
        permutations = max(analysis.chance_occurrences.sum() / max(tokens, 1), 1)
        self.chance += self._histogram(analysis.chance, analysis.chance_occurrences) / permutations
        log_p = -np.log10(table.p_value.numpy().clip(SMALLEST_P, 1))
        self.volcano += np.histogram2d(table.effect_size.numpy(), log_p, VOLCANO_BINS, _VOLCANO_RANGE)[0]

    @property
    def saturation(self) -> tuple[float, float]:
        """Share of the tokens of mixed groups whose value is saturated; the same with permuted outcomes."""
        return self.saturated / max(self.mixed_tokens, 1), self.saturated_by_chance / max(self.mixed_tokens, 1)

    def mean_length(self, correct: bool) -> float:
        lengths = self.lengths[correct]
        return sum(length * n for length, n in lengths.items()) / max(lengths.total(), 1)

    def figures(self) -> dict[str, Markup]:
        """SVG of each figure, without axes' titles that its caption gives."""
        return {
            "values": _svg(self._draw_values, "values"),
            "lengths": _svg(self._draw_lengths, "lengths"),
            "volcano": _svg(self._draw_volcano, "volcano"),
        }

    def _histogram(self, values: np.ndarray, occurrences: np.ndarray) -> np.ndarray:
        return np.histogram(values, VALUE_BINS, (-self._bound, self._bound), weights=occurrences)[0]

    @property
    def _bound(self) -> float:
        return self.scale or 1.0

    def _draw_values(self, axes: Axes) -> None:
        edges = np.linspace(-self._bound, self._bound, VALUE_BINS + 1)
        observed, chance = (100 * n / max(n.sum(), 1) for n in (self.values, self.chance))
        half = VALUE_BINS // 2
        colours = [NEGATIVE] * half + [NEUTRAL] + [POSITIVE] * half
        axes.bar(edges[:-1], observed, np.diff(edges), align="edge", color=colours, label="observed")
        axes.stairs(chance, edges, color=INK, linewidth=1.4, label="permuted outcomes")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        axes.set(xlabel="key-token value V", ylabel="% of tokens of mixed groups")
        axes.legend()

    def _draw_lengths(self, axes: Axes) -> None:
        longest = max((length for lengths in self.lengths.values() for length in lengths), default=1)
        for correct, colour, style in ((True, POSITIVE, "-"), (False, NEGATIVE, "--")):
            lengths = self.lengths[correct]
            count, edges = np.histogram(
                list(lengths), LENGTH_BINS, (0, max(longest, 1)), weights=list(lengths.values()) or None
            )
            name = "correct" if correct else "incorrect"
            axes.stairs(count, edges, color=colour, linestyle=style, linewidth=1.6, label=f"{name} ({lengths.total()})")
        axes.set(xlabel="tokens of a rollout", ylabel="rollouts")
        axes.legend()

    def _draw_volcano(self, axes: Axes) -> None:
        x, y = (np.linspace(*r, n + 1) for r, n in zip(_VOLCANO_RANGE, VOLCANO_BINS, strict=True))
        column, row = self.volcano.nonzero()
        centre = (x[:-1] + x[1:]) / 2
        colours = [NEGATIVE if h < 0 else POSITIVE for h in centre[column]]
        size = 8 + 16 * np.log10(self.volcano[column, row])
        axes.scatter(centre[column], y[row], s=size, c=colours, alpha=0.75, linewidths=0)
        axes.axhline(-np.log10(0.05), color=NEUTRAL, linestyle=":", label="p = 0.05")
        axes.set(xlabel="effect size h", ylabel="$-\\log_{10}$ p", ylim=(-0.1, None))
        axes.legend()


_VOLCANO_RANGE = ((-np.pi, np.pi), (0.0, -np.log10(SMALLEST_P)))


def _svg(draw, name: str) -> Markup:
    """The figure as text of a page: its ink has the colour of the page's text."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    plain = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 9,
        "legend.frameon": False,
        "axes.spines.top": False,
    }
    with rc_context(ink | plain | {"axes.spines.right": False}):
        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    return Markup(svg[svg.index("<svg") :].replace(INK, "currentColor"))

"""The summary and histograms of all groups of a page, and the figures made of them."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktae.report.analysis import Analysis
from ktae.report.display import NEGATIVE, NEUTRAL, POSITIVE
from ktae.report.summary import BINS, Summary

INK = "#010101"  # becomes the colour of the page's text
LENGTH_BINS = 30
SIGNIFICANT = 0.05
VOLCANO_BINS = (61, 45)  # 0 is in the middle of a bin, and no bin has p on both sides of SIGNIFICANT
SMALLEST_P = SIGNIFICANT**9  # the volcano's top; 40 rollouts, half of them correct, reach it
VOLCANO_RANGE = ((-np.pi / 2, np.pi / 2), (0.0, -np.log10(SMALLEST_P)))


@dataclass
class Distributions:
    """A summary, and the histograms of lengths and associations: their size does not grow with the groups."""

    summary: Summary
    p_name: str
    lengths: dict[bool, Counter] = field(default_factory=lambda: {True: Counter(), False: Counter()})
    volcano: np.ndarray = field(default_factory=lambda: np.zeros(VOLCANO_BINS))

    def add(self, analysis: Analysis) -> None:
        self.summary.add(analysis)
        for rollout, ids in zip(analysis.group.rollouts, analysis.tokens.ids, strict=True):
            self.lengths[rollout.correct][len(ids)] += 1
        if analysis.mixed:
            log_p = -np.log10(analysis.table.p_value.numpy().clip(SMALLEST_P, 1))
            h = analysis.table.effect_size.numpy()
            self.volcano += np.histogram2d(h, log_p, VOLCANO_BINS, VOLCANO_RANGE)[0]

    def figures(self) -> dict[str, Markup]:
        """SVG of each figure, without axes' titles that its caption gives."""
        return {
            "values": _svg(self._draw_values, "values"),
            "lengths": _svg(self._draw_lengths, "lengths"),
            "volcano": _svg(self._draw_volcano, "volcano"),
        }

    def _draw_values(self, axes: Axes) -> None:
        bound = self.summary.scale or 1.0
        edges = np.linspace(-bound, bound, BINS + 1)
        histograms = (self.summary.histogram, self.summary.chance_histogram)
        observed, chance = (100 * n / max(n.sum(), 1) for n in histograms)
        half = BINS // 2
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
        edges = (np.linspace(*r, n + 1) for r, n in zip(VOLCANO_RANGE, VOLCANO_BINS, strict=True))
        x, y = ((edge[:-1] + edge[1:]) / 2 for edge in edges)
        column, row = self.volcano.nonzero()
        middle = VOLCANO_BINS[0] // 2
        colours = [NEGATIVE if i < middle else POSITIVE if i > middle else NEUTRAL for i in column]
        size = 8 + 16 * np.log10(self.volcano[column, row])
        axes.scatter(x[column], y[row], s=size, c=colours, alpha=0.75, linewidths=0)
        if self.p_name == "Fisher p":  # the probability of a table alone has no such level
            axes.axhline(-np.log10(SIGNIFICANT), color=NEUTRAL, linestyle=":", label=f"p = {SIGNIFICANT}")
            axes.legend()
        axes.set(xlabel="effect size h", ylabel=f"$-\\log_{{10}}$ {self.p_name}", ylim=(0, None))


def _svg(draw: Callable[[Axes], None], name: str) -> Markup:
    """The figure as text of a page: its ink has the colour of the page's text."""
    ink: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    plain: Any = {
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

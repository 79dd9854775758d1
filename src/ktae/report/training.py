"""How the key tokens move over the steps of a training run: a figure."""

import warnings
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktae.report.display import NEUTRAL, PALETTE, POSITIVE, visible
from ktae.report.summary import BINS, Summary


def plot_training(steps: dict[int, Summary], path: Path) -> None:
    """Write the figure to the path, as PNG, SVG or what else its suffix says.

    Args:
        steps: the summary of each step, at least one.
        path: of the figure.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    order = sorted(steps)
    figures = [steps[step].figures() for step in order]
    for step, of_step in zip(order, figures, strict=True):
        if steps[step].mixed_share_of_step is not None:  # a side-dump has mixed groups first
            of_step["mixed_group_share"] = steps[step].mixed_share_of_step
    _lines(axes[0, 0], order, figures, "groups with both outcomes", mixed_group_share=POSITIVE)
    _lines(
        axes[0, 1],
        order,
        figures,
        "tokens with |V| > 0.9 scale",
        saturated_token_share=POSITIVE,
        saturated_token_share_by_chance=NEUTRAL,
    )
    _distribution(axes[1, 0], order, [steps[step] for step in order])
    _leading_tokens(axes[1, 1], order, [steps[step] for step in order])
    for axis in axes[1]:
        axis.set_xlabel("step")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a rollout; it shows as a box
        figure.savefig(path, dpi=150)


def _lines(axis: Axes, order: list[int], figures: list[dict], title: str, **colors: str) -> None:
    for name, color in colors.items():
        label = "permuted outcomes" if color == NEUTRAL else "observed"
        axis.plot(order, [figure[name] for figure in figures], "o-", color=color, label=label, markersize=3)
    axis.set(title=title, ylim=(0, None))
    axis.legend(frameon=False)


def _distribution(axis: Axes, order: list[int], summaries: list[Summary]) -> None:
    """Deciles of V over the tokens of groups with both outcomes."""
    deciles = np.array([_quantiles(summary, (0.1, 0.5, 0.9)) for summary in summaries])
    axis.fill_between(order, deciles[:, 0], deciles[:, 2], color=POSITIVE, alpha=0.2, label="10 to 90 % of the tokens")
    axis.plot(order, deciles[:, 1], "o-", color=POSITIVE, label="median", markersize=3)
    axis.set(title="key-token value V")
    axis.legend(frameon=False)


def _quantiles(summary: Summary, shares: tuple[float, ...]) -> np.ndarray:
    total = summary.histogram.sum()
    if total == 0:
        return np.full(len(shares), np.nan)
    centres = summary.scale * (np.arange(BINS) + 0.5) / BINS * 2 - summary.scale
    return centres[np.searchsorted(np.cumsum(summary.histogram), np.array(shares) * total)]


def _leading_tokens(axis: Axes, order: list[int], summaries: list[Summary]) -> None:
    """The tokens with the most evidence for either outcome, over all steps together."""
    total: dict[str, float] = {}
    for summary in summaries:
        for name, token in summary.token.items():
            total[name] = total.get(name, 0.0) + token.evidence
    leading = sorted(total, key=lambda token: -abs(total[token]))[: len(PALETTE)]
    for name, color in zip(leading, PALETTE, strict=False):
        tokens = [(summary.token.get(name), summary.mixed) for summary in summaries]
        values = [token.evidence / mixed if token else np.nan for token, mixed in tokens]
        label = visible(name).replace("$", r"\$")  # no formula
        axis.plot(order, values, "o-", color=color, label=label, markersize=3)
    axis.set(title="leading tokens: V x information gain, a group")
    axis.axhline(0, color=NEUTRAL, linewidth=0.8)
    if leading:
        axis.legend(frameon=False, fontsize="small")

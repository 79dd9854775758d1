"""How the key tokens move over the steps of a training run: a figure."""

from pathlib import Path
from typing import Any

import numpy as np

from ktae.report.summary import BINS, Summary
from ktae.report.terminal import visible

# Okabe and Ito's colours, which colour-blind people tell apart.
OBSERVED, CHANCE = "#0072b2", "#999999"
TOKENS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def plot_training(steps: dict[int, Summary], path: Path) -> None:
    """Write the figure to the path, as PNG, SVG or what else its suffix says.

    Args:
        steps: the summary of each step, at least one.
        path: of the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    order = sorted(steps)
    figures = [steps[step].figures() for step in order]
    _lines(axes[0, 0], order, figures, "groups with both outcomes", mixed_group_share=OBSERVED)
    _lines(
        axes[0, 1],
        order,
        figures,
        "tokens with |V| > 0.9 scale",
        saturated_token_share=OBSERVED,
        saturated_token_share_by_chance=CHANCE,
    )
    _distribution(axes[1, 0], order, [steps[step] for step in order])
    _leading_tokens(axes[1, 1], order, [steps[step] for step in order])
    for axis in axes[1]:
        axis.set_xlabel("step")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _lines(axis: Any, order: list[int], figures: list[dict], title: str, **colors: str) -> None:
    for name, color in colors.items():
        label = "permuted outcomes" if color == CHANCE else "observed"
        axis.plot(order, [figure[name] for figure in figures], "o-", color=color, label=label, markersize=3)
    axis.set(title=title, ylim=(0, None))
    axis.legend(frameon=False)


def _distribution(axis: Any, order: list[int], summaries: list[Summary]) -> None:
    """Deciles of V over the tokens of groups with both outcomes."""
    deciles = np.array([_quantiles(summary, (0.1, 0.5, 0.9)) for summary in summaries])
    axis.fill_between(order, deciles[:, 0], deciles[:, 2], color=OBSERVED, alpha=0.2, label="10 to 90 % of the tokens")
    axis.plot(order, deciles[:, 1], "o-", color=OBSERVED, label="median", markersize=3)
    axis.set(title="key-token value V")
    axis.legend(frameon=False)


def _quantiles(summary: Summary, shares: tuple[float, ...]) -> np.ndarray:
    total = summary.histogram.sum()
    if total == 0:
        return np.full(len(shares), np.nan)
    centres = summary.scale * (np.arange(BINS) + 0.5) / BINS * 2 - summary.scale
    return centres[np.searchsorted(np.cumsum(summary.histogram), np.array(shares) * total)]


def _leading_tokens(axis: Any, order: list[int], summaries: list[Summary]) -> None:
    """The tokens with the most evidence for either outcome, over all steps together."""
    total: dict[str, float] = {}
    for summary in summaries:
        for token, evidence in summary.evidence.items():
            total[token] = total.get(token, 0.0) + evidence
    leading = sorted(total, key=lambda token: -abs(total[token]))[: len(TOKENS)]
    for token, color in zip(leading, TOKENS, strict=False):
        values = [summary.evidence.get(token, np.nan) / max(summary.mixed, 1) for summary in summaries]
        label = visible(token).replace("$", r"\$")  # no formula
        axis.plot(order, values, "o-", color=color, label=label, markersize=3)
    axis.set(title="leading tokens: V x information gain, a group")
    axis.axhline(0, color=CHANCE, linewidth=0.8)
    if leading:
        axis.legend(frameon=False, fontsize="small")

"""The summary and the tables of `ktae report`, for people (rich) and for machines (JSON, CSV)."""

import csv
import json
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ktae.report.analysis import Analysis
from ktae.report.rollouts import Skipped
from ktae.report.summary import Summary

COLUMNS = ("a", "b", "c", "d", "p_value", "information_gain", "effect_size", "direction", "key_token_value")
HEADINGS = ("a", "b", "c", "d", "p", "IG", "h", "D", "V")


def rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """The key tokens of a group as one record each, strongest evidence for correct first."""
    text, table = analysis.text, analysis.table
    columns = {name: getattr(table, name).tolist() for name in COLUMNS}
    for row in _order(analysis):
        token_id = int(table.token_id[row])
        yield {
            "group": analysis.group.label,
            "step": analysis.group.step,
            "token": text[token_id],
            "token_id": token_id,
            "occurrences": int(analysis.occurrences[row]),
            **{name: values[row] for name, values in columns.items()},
        }


def print_group(console: Console, analysis: Analysis, top: int) -> None:
    """The tokens of a group that speak most for correct and for incorrect."""
    group = analysis.group
    n = int(analysis.correct.sum())
    console.print(f"\n[bold]{escape(group.label)}[/bold]  {n} of {len(group.rollouts)} correct")
    if group.prompt:
        console.print(escape(visible(group.prompt[:300])), style="dim", overflow="ellipsis", no_wrap=True)
    table = Table("token", *HEADINGS, box=None, header_style="dim")
    for heading in table.columns[1:]:
        heading.justify = "right"
    records = list(rows(analysis))
    positive = [record for record in records[:top] if record["key_token_value"] > 0]
    negative = [record for record in records[-top:] if record["key_token_value"] < 0]
    for record in [*positive, *negative]:
        counts = [str(record[name]) for name in COLUMNS[:4]]
        figures = [f"{record[name]:.3g}" for name in COLUMNS[4:]]
        style = "blue" if record["key_token_value"] > 0 else "dark_orange"
        table.add_row(repr(record["token"]).replace("[", r"\["), *counts, *figures, style=style)
    console.print(table)


def print_summary(console: Console, summary: Summary, top: int, unit: str, skipped: Skipped) -> None:
    """Figures of all groups, each beside what chance gives, and the leading tokens."""
    figures = summary.figures()
    sizes = ", ".join(f"{n} of {size}" for size, n in figures["group_sizes"].items())
    counts = f"{figures['groups']} groups ({sizes}), {figures['rollouts']} rollouts"
    console.print(f"\n{counts}; tokens: {unit}", soft_wrap=True)
    table = Table("", "observed", "permuted outcomes", box=None, header_style="dim")
    table.add_row("groups with both outcomes", f"{figures['mixed_group_share']:.0%}", "the same")
    for label, name in (
        ("mean |V|", "mean_abs_value"),
        ("tokens with |V| > 0.9 scale", "saturated_token_share"),
        ("length, |correct - incorrect|", "abs_length_difference"),
    ):
        table.add_row(label, _figure(figures[name]), _figure(figures[f"{name}_by_chance"]))
    table.add_row("mean length, correct", _figure(figures["mean_length_correct"]), "")
    table.add_row("mean length, incorrect", _figure(figures["mean_length_incorrect"]), "")
    console.print(table)
    for what, tokens in zip(("correct", "incorrect"), summary.top(top), strict=True):
        listing = ", ".join(f"{visible(token)!r} ({summary.groups_of_token[token]})" for token in tokens)
        console.print(f"for {what} (groups): {escape(listing) or 'none'}", soft_wrap=True)
    if skipped.count:
        console.print(f"[bold red]lines skipped: {skipped.count}[/bold red]")
        for example in skipped.examples:
            console.print(f"  {escape(example)}", soft_wrap=True)


def write_csv(file: IO[str], analysis: Analysis, header: bool) -> None:
    """Append the rows of a group."""
    writer = csv.DictWriter(file, ["group", "step", "token", "token_id", "occurrences", *COLUMNS])
    if header:
        writer.writeheader()
    writer.writerows(rows(analysis))


def write_json(file: IO[str], summary: Summary, skipped: Skipped, unit: str, top: int) -> None:
    """The summary, as one object."""
    positive, negative = summary.top(top)
    record = {
        **summary.figures(),
        "tokens": unit,
        "for_correct": positive,
        "for_incorrect": negative,
        "skipped_lines": skipped.count,
        "skipped_examples": skipped.examples,
    }
    json.dump(record, file, indent=2)
    file.write("\n")


def visible(text: str) -> str:
    """Control and other unprintable characters as escapes: a rollout must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _order(analysis: Analysis) -> np.ndarray:
    """V saturates: among the many ties the information gain shows which tokens discriminate best."""
    evidence = analysis.table.key_token_value * analysis.table.information_gain
    return evidence.argsort(descending=True, stable=True).numpy()


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"

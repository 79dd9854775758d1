"""The summary and the tables of `ktae report`, for people (rich) and for machines (JSON, CSV)."""

import csv
import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ktae.report.analysis import Analysis
from ktae.report.display import STATISTICS, visible
from ktae.report.rollouts import Skipped
from ktae.report.summary import Strongest, Summary

# The Fisher score is a function of p; without it a row has room.
SHOWN = {name: field for name, field in STATISTICS.items() if name != "F"}


def rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """The key tokens of a group as one record each, strongest evidence for correct first; texts as they are shown."""
    names, table, group = analysis.tokens.names, analysis.table, analysis.group
    columns = {field: getattr(table, field).tolist() for field in STATISTICS.values()}
    for row in _order(analysis):
        token_id = int(table.token_id[row])
        yield {
            "group": visible(group.label),
            "step": None if group.step is None else visible(str(group.step)),
            "token": visible(names[token_id]),
            "token_id": token_id,
            "occurrences": int(analysis.occurrences[row]),
            **{field: values[row] for field, values in columns.items()},
        }


def print_group(console: Console, analysis: Analysis, top: int) -> None:
    """The tokens of a group that speak most for correct and for incorrect."""
    group = analysis.group
    n = int(analysis.correct.sum())
    label = Text(visible(group.label), style="bold")
    console.print(Text("\n").append(label).append(f"  {n} of {len(group.rollouts)} correct"), soft_wrap=True)
    if group.prompt:
        console.print(Text(visible(group.prompt[:300]), style="dim"), overflow="ellipsis", no_wrap=True)
    table = _table("token", *SHOWN)
    records = list(rows(analysis))
    positive = [record for record in records[:top] if record["key_token_value"] > 0]
    negative = [record for record in records[-top:] if record["key_token_value"] < 0]
    for record in [*positive, *negative]:
        table.add_row(_quoted(record["token"]), *_cells(record), style=_style(record["key_token_value"] > 0))
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
        ("mean length, correct", "mean_length_correct"),
        ("mean length, incorrect", "mean_length_incorrect"),
    ):
        table.add_row(label, _figure(figures[name]), _figure(figures[f"{name}_by_chance"]))
    console.print(table)
    _print_leading(console, summary, top)
    if skipped.count:
        console.print(Text(f"lines or files skipped: {skipped.count}", style="bold red"))
        for example in skipped.examples:
            console.print(Text(f"  {visible(example)}"), soft_wrap=True)


def _print_leading(console: Console, summary: Summary, top: int) -> None:
    """A token has a table of counts in each group: the one where it is strongest stands beside the mean over all."""
    console.print("\nAll groups, ranked by the sum of V x IG; from a on: where the token is strongest")
    table = _table("token", "groups", "mean V", "strongest in", *SHOWN)
    table.columns[3].justify = "left"
    for name in [name for names in summary.top(top) for name in names]:
        token = summary.token[name]
        strongest = token.strongest
        assert strongest is not None  # as the token has evidence
        first = [_quoted(visible(name)), str(token.groups), f"{token.value / token.groups:.2g}", _place(strongest)]
        table.add_row(*first, *_cells(strongest.record()), style=_style(token.evidence > 0))
    console.print(table if table.row_count else "no token speaks for either outcome")


def write_csv(file: IO[str], analysis: Analysis, header: bool) -> None:
    """Append the rows of a group."""
    writer = csv.DictWriter(file, ["group", "step", "token", "token_id", "occurrences", *STATISTICS.values()])
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
        "key_tokens": [_record(summary, name) for name in (*positive, *negative)],
        "skipped_lines": skipped.count,
        "skipped_examples": skipped.examples,
    }
    json.dump(record, file, indent=2)
    file.write("\n")


def _record(summary: Summary, name: str) -> dict[str, Any]:
    token = summary.token[name]
    return {
        "token": name,
        "groups": token.groups,
        "mean_value": token.value / token.groups,
        "evidence": token.evidence,
        "strongest": token.strongest.record() if token.strongest else None,
    }


def _table(first: str, *headings: str) -> Table:
    table = Table(first, box=None, header_style="dim", padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _cells(record: Mapping[str, float]) -> list[str]:
    return [_number(record[field]) for field in SHOWN.values()]


def _quoted(token: str) -> Text:
    return Text(f"“{token}”")


def _place(strongest: Strongest) -> Text:
    step = "" if strongest.step is None else f"{strongest.step}: "
    return Text(visible(f"{step}{strongest.group}"), overflow="ellipsis", no_wrap=True)


def _style(correct: bool) -> str:
    return "blue" if correct else "dark_orange"


def _order(analysis: Analysis) -> np.ndarray:
    """V saturates: among the many ties the information gain shows which tokens discriminate best."""
    evidence = analysis.table.key_token_value * analysis.table.information_gain
    return evidence.argsort(descending=True, stable=True).numpy()


def _figure(value: float | None) -> str:
    return "-" if value is None else _number(value)


def _number(value: float) -> str:
    """Three digits, and no power of ten where a column needs the room."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"

"""What the terminal, JSON, CSV and the figures say."""

import csv
import io
import json

import numpy as np
import pytest
from matplotlib.axes import Axes
from pages import CONFIG, amc, analysed, words
from rich.console import Console

from ktae.report.display import POSITIVE
from ktae.report.distributions import Distributions
from ktae.report.rollouts import Skipped
from ktae.report.summary import Summary
from ktae.report.terminal import print_group, print_summary, write_csv, write_json
from ktae.report.training import plot_training

HOSTILE = "\x1b[31m\u202e[/bold]\ud800 :smile: \x07\x9b"


def printed(analyses, skipped=None):
    console = Console(file=io.StringIO(), width=120)
    summary = Summary(1.0)
    for analysis in analyses:
        summary.add(analysis)
        print_group(console, analysis, 5)
    print_summary(console, summary, 5, "words", skipped or Skipped())
    return console.file.getvalue()


def test_nothing_of_a_file_steers_the_terminal():
    group = words(f"a{HOSTILE}", "b", label=HOSTILE, prompt=f"{HOSTILE}\n?")
    output = printed(analysed([group]), Skipped(1, [HOSTILE]))
    shown = "␛[31m⟨U+202E⟩[/bold]⟨U+D800⟩ :smile: ␇⟨U+009B⟩"
    lines = output.splitlines()
    assert f"{shown}  1 of 2 correct" in lines
    assert f"{shown}↵?" in lines
    assert f"  {shown}" in lines
    assert all(line.isprintable() for line in lines)
    file = io.StringIO()
    write_csv(file, *analysed([group]), header=True)
    assert next(csv.DictReader(file.getvalue().splitlines()))["group"] == shown


def test_the_leading_tokens_have_their_statistics():
    output = printed(analysed([words("so", "so", "x", "x", label="strong"), words("so x", "x", "x", "x")]))
    row = next(line.split() for line in output.split("All groups")[1].splitlines() if line.startswith("“so”"))
    assert row[:2] == ["“so”", "2"]
    assert row[3:10] == ["7:", "strong", "2", "0", "0", "2", "0.333"]
    assert len(row) == 14  # IG, h, D, V


def test_tables_fit_into_80_columns():
    console = Console(file=io.StringIO(), width=80)
    summary = Summary(1.0)
    for analysis in amc():
        summary.add(analysis)
    print_summary(console, summary, 5, "words", Skipped())
    rows = [line for line in console.file.getvalue().split("All groups")[1].splitlines() if line.startswith("“")]
    assert len(rows) == 10
    assert all("e+" not in row and row.count("…") <= 1 for row in rows)


def test_json_has_the_statistics_of_the_leading_tokens():
    summary, file = Summary(1.0), io.StringIO()
    for analysis in analysed([words("so", "so", "x", "x", label=HOSTILE)]):
        summary.add(analysis)
    write_json(file, summary, Skipped(), "words", 5)
    record = json.loads(file.getvalue())
    assert (record["for_correct"], record["for_incorrect"]) == (["so"], ["x"])
    so, x = record["key_tokens"]
    assert (so["token"], so["groups"], x["token"]) == ("so", 1, "x")
    assert [so["strongest"][name] for name in ("group", "step", *"abcd")] == [HOSTILE, 7, 2, 0, 0, 2]
    assert so["mean_value"] == so["strongest"]["key_token_value"] == -x["mean_value"]


def test_no_length_where_an_outcome_does_not_occur():
    output = printed(analysed([words("a b")]))
    assert "mean length, incorrect         -         -" in output


def test_the_volcano_uses_its_whole_width_and_draws_at_the_centres(monkeypatch):
    distributions = Distributions(Summary(1.0), "Fisher p")
    for analysis in analysed([words("a x", "a x", "b x", "b x")]):
        distributions.add(analysis)
    drawn = []
    monkeypatch.setattr(Axes, "scatter", lambda _, x, y, **style: drawn.append((x, y, style["c"])))
    distributions.figures()
    ((x, y, colours),) = drawn
    half = np.pi / 2 / 61
    assert x == pytest.approx([-np.pi / 2 + half, 0, np.pi / 2 - half])
    step = -np.log10(0.05) / 5
    assert y == pytest.approx([1.5 * step, step / 2, 1.5 * step])  # p = 1/3, 1, 1/3
    assert colours[2] == POSITIVE


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_hostile_tokens_in_the_figure_of_steps(tmp_path):
    summary = Summary(CONFIG.scale)
    for analysis in analysed([words(f"a{HOSTILE}$", "b")]):
        summary.add(analysis)
    summary.forget_all_but_the_leading_tokens()
    plot_training({3: summary, 4: Summary(1.0)}, tmp_path / "steps.svg")
    assert (tmp_path / "steps.svg").read_text().count("<svg") == 1

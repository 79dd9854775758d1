"""The command `ktae report`: files in, terminal, JSON, CSV and HTML out, a group at a time."""

import argparse
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from ktae import KTAEConfig
from ktae.report.analysis import Analysis, analyse
from ktae.report.page import write_page
from ktae.report.rollouts import FormatError, Group, Labels, Skipped, files, read
from ktae.report.summary import Summary
from ktae.report.terminal import print_group, print_summary, write_csv, write_json
from ktae.report.tokens import load_tokenizer, unit
from ktae.report.training import plot_training

SETTINGS = ("preset", "fisher_weight", "information_gain_weight", "term_frequency_weight", "scale")


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit status: 1 if a file cannot be read or holds no group."""
    to_stdout = "-" in (arguments.json, arguments.csv)
    console = Console(stderr=to_stdout)
    try:
        _report(arguments, console)
    except FormatError as error:
        print(f"ktae report: {error}", file=sys.stderr)
        return 1
    return 0


def _report(arguments: argparse.Namespace, console: Console) -> None:
    if arguments.json == arguments.csv == "-":
        raise FormatError("--json - and --csv - would mix: write one of them to a file.")
    with ExitStack() as stack:
        skipped, units, steps = Skipped(), set[str](), dict[int, Summary]()
        groups = _groups(arguments, skipped, stack)
        first = next(groups, None)
        if first is None:
            reasons = "; ".join(skipped.examples)
            raise FormatError(f"no group of rollouts in {', '.join(arguments.operands)}. {reasons}")
        config = _config(arguments, first)
        # Only now, so that a mistyped input leaves the files of the last report alone.
        table, record = (_open(name, stack) for name in (arguments.csv, arguments.json))
        summary = _new_summary(config)

        def observed() -> Iterator[Analysis]:
            """The analyses, each noted for everything but the page."""
            for analysis in _analyses(itertools.chain([first], groups), arguments, config, units):
                summary.add(analysis)
                if arguments.training is not None:
                    _add_to_step(steps, analysis, config)
                if table is not None:
                    write_csv(table, analysis, header=summary.groups == 1)
                if analysis.mixed and summary.mixed <= arguments.groups:
                    print_group(console, analysis, arguments.top)
                yield analysis

        analyses = observed()
        if arguments.html is not None:
            notes = partial(_notes, first, arguments, config, skipped, units)
            _write_page(_all_read(analyses, arguments.html_groups), arguments.html, config, notes)
        deque(analyses, maxlen=0)
        if arguments.training is not None:
            _plot(steps, arguments.training)
        what = ", ".join(sorted(units))
        print_summary(console, summary, arguments.top, what, skipped)
        for note in _notes_on_values(config):
            console.print(note, soft_wrap=True, highlight=False)
        if arguments.html is not None:
            console.print(f"wrote {arguments.html}", soft_wrap=True, highlight=False)
        if record is not None:
            write_json(record, summary, skipped, what, arguments.top)


def _groups(arguments: argparse.Namespace, skipped: Skipped, stack: ExitStack) -> Iterator[Group]:
    """The groups of all files, with a progress bar. Of several files, one that cannot be read is skipped."""
    labels = Labels(arguments.correct_key, arguments.correct_threshold)
    paths = [file for path in arguments.operands for file in files(Path(path))]
    bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
    for path in paths:
        task = bar.add_task(path.name, total=1.0)
        try:
            yield from read(path, labels, skipped, lambda share, task=task: bar.update(task, completed=share))
        except FormatError as error:
            if len(paths) == 1:
                raise
            skipped.add(str(error))
        bar.remove_task(task)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}


def _config(arguments: argparse.Namespace, group: Group) -> KTAEConfig:
    """Those of the run that the group is from, else the defaults, with the settings that were given in their place."""
    given = _given(arguments)
    if "preset" in given:
        given |= {"scale": given.get("scale"), "offset": None}  # the preset's
    if given.get("preset") == "calibrated":
        given = {"fisher_weight": 1, "information_gain_weight": 1, "term_frequency_weight": 1} | given
    try:
        return replace(group.config or KTAEConfig(), **given)
    except ValueError as error:
        raise FormatError(str(error)) from error


def _analyses(
    groups: Iterator[Group], arguments: argparse.Namespace, config: KTAEConfig, units: set[str]
) -> Iterator[Analysis]:
    tokenizer = load_tokenizer(arguments.tokenizer)
    generator = np.random.default_rng(0)  # the same report from the same rollouts
    for group in groups:
        if _given(arguments):  # they are not those that training used
            rollouts = [replace(rollout, advantages=None) for rollout in group.rollouts]
            group = replace(group, rollouts=rollouts)
        elif group.config not in (config, None):
            raise FormatError(
                f"group {group.label} is from a run with the settings {group.config}, others are not: report the runs "
                "one by one, or give settings for all."
            )
        units.add(unit(group, tokenizer))
        yield analyse(group, tokenizer, config, generator)


def _all_read(analyses: Iterator[Analysis], n: int) -> Iterator[Analysis]:
    """The first n of the analyses. When they end, all are made."""
    yield from itertools.islice(analyses, n)
    deque(analyses, maxlen=0)


def _notes(
    first: Group, arguments: argparse.Namespace, config: KTAEConfig, skipped: Skipped, units: set[str]
) -> Iterator[str]:
    """What the page says of its numbers."""
    of_training = first.rollouts[0].advantages is not None and not _given(arguments)
    yield f"Tokens are {', '.join(sorted(units))}."
    yield "The advantages are those that training used." if of_training else "Aᵢ is GRPO's on the outcomes, 0 and 1."
    yield from _notes_on_values(config)
    if skipped.count:
        yield f"Lines or files skipped: {skipped.count} ({'; '.join(skipped.examples)})."


def _notes_on_values(config: KTAEConfig) -> Iterator[str]:
    if config.preset == "calibrated":
        yield "V is the mean over the token's occurrences, and D does not enter it."
    if config.offset is not None:
        yield f"V is as before the shift to a mean of {config.offset:g}, which is in Aᵢ."


def _write_page(
    analyses: Iterator[Analysis], path: Path, config: KTAEConfig, notes: Callable[[], Iterable[str]]
) -> None:
    try:
        write_page(analyses, path, config, notes)
    except (OSError, ValueError) as error:
        raise FormatError(f"--html {path}: {error}") from error


def _new_summary(config: KTAEConfig) -> Summary:
    assert config.scale is not None  # resolved by KTAEConfig
    return Summary(config.scale)


def _add_to_step(steps: dict[int, Summary], analysis: Analysis, config: KTAEConfig) -> None:
    step = analysis.group.step
    if step is None:
        return
    if step not in steps:
        for finished in steps.values():
            finished.forget_all_but_the_leading_tokens()
        steps[step] = _new_summary(config)
    steps[step].add(analysis)


def _plot(steps: dict[int, Summary], path: Path) -> None:
    if not steps:
        raise FormatError("--training: no group has a step. Steps are in veRL's dumps, or in the names of the files.")
    try:
        plot_training(steps, path)
    except (OSError, ValueError) as error:
        raise FormatError(f"--training {path}: {error}") from error


def _open(name: str | None, stack: ExitStack) -> IO[Any] | None:
    if name is None or name == "-":
        return None if name is None else sys.stdout
    try:
        file = Path(name).open("w", newline="", encoding="utf-8")  # noqa: SIM115  (the stack closes it)
    except OSError as error:
        raise FormatError(f"{name} cannot be written: {error}") from error
    return stack.enter_context(file)

"""The command `ktae report`: files in, terminal, JSON, CSV and HTML out, a group at a time."""

import argparse
import itertools
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from rich.console import Console
from rich.progress import Progress

from ktae import KTAEConfig
from ktae.report.analysis import Analysis, analyse
from ktae.report.page import write_page
from ktae.report.rollouts import FormatError, Labels, Skipped, files, read
from ktae.report.summary import Summary
from ktae.report.terminal import print_group, print_summary, write_csv, write_json
from ktae.report.tokens import load_tokenizer, unit
from ktae.report.training import plot_training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operands", nargs="+", metavar="PATH", help="a file, or a directory of steps")
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer.json, or its directory; without it, words")
    parser.add_argument("--correct-key", default="acc", help="key of a line that says whether it is correct (acc)")
    parser.add_argument("--correct-threshold", type=float, default=0.0, help="correct is greater than this (0)")
    parser.add_argument("--preset", default="published", choices=("published", "paper"))
    parser.add_argument("--top", type=int, default=5, help="key tokens shown of each kind (5)")
    parser.add_argument("--groups", type=int, default=3, help="groups shown one by one in the terminal (3)")
    parser.add_argument("--json", metavar="FILE", help="write the summary there; - is the standard output")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page of the rollouts there")
    parser.add_argument("--html-groups", type=int, default=200, help="groups on the page at most, the first ones (200)")
    parser.add_argument("--training", type=Path, metavar="FILE", help="plot the steps there: .png or .svg")
    parser.add_argument("--csv", metavar="FILE", help="write every key token of every group there; - as above")


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
    config = KTAEConfig(preset=arguments.preset)
    assert config.scale is not None
    scale = config.scale
    summary, skipped, units, steps = Summary(scale), Skipped(), set[str](), dict[int, Summary]()
    with ExitStack() as stack:
        table = None if arguments.csv is None else _open(arguments.csv, stack)

        def observed() -> Iterator[Analysis]:
            """The analyses, each noted for everything but the page."""
            for analysis in _analyses(arguments, config, skipped, units):
                summary.add(analysis)
                if arguments.training is not None:
                    _add_to_step(steps, analysis, scale)
                if table is not None:
                    write_csv(table, analysis, header=summary.groups == 1)
                if analysis.mixed and summary.mixed <= arguments.groups:
                    print_group(console, analysis, arguments.top)
                yield analysis
            if summary.groups == 0:
                reasons = "; ".join(skipped.examples)
                raise FormatError(f"no group of rollouts in {', '.join(arguments.operands)}. {reasons}")

        analyses = observed()
        if arguments.html is not None:
            _write_page(itertools.islice(analyses, arguments.html_groups), arguments.html, config, units)
        deque(analyses, maxlen=0)  # the groups beyond the page's
        if arguments.training is not None:
            _plot(steps, arguments.training)
        what = ", ".join(sorted(units))
        print_summary(console, summary, arguments.top, what, skipped)
        if arguments.html is not None:
            console.print(f"wrote {arguments.html}", soft_wrap=True, highlight=False)
        if arguments.json is not None:
            write_json(_open(arguments.json, stack), summary, skipped, what, arguments.top)


def _write_page(analyses: Iterator[Analysis], path: Path, config: KTAEConfig, units: set[str]) -> None:
    first = next(analyses)  # after it, what the tokens are is known
    try:
        write_page(itertools.chain([first], analyses), path, config, ", ".join(sorted(units)))
    except OSError as error:
        raise FormatError(f"--html {path}: {error}") from error


def _analyses(
    arguments: argparse.Namespace, config: KTAEConfig, skipped: Skipped, units: set[str]
) -> Iterator[Analysis]:
    """The groups of all files, with a progress bar over their bytes."""
    tokenizer = load_tokenizer(arguments.tokenizer)
    labels = Labels(arguments.correct_key, arguments.correct_threshold)
    generator = np.random.default_rng(0)  # the same report from the same rollouts
    paths = [file for path in arguments.operands for file in files(Path(path))]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for path in paths:
            task = progress.add_task(path.name, total=path.stat().st_size)
            for group in read(path, labels, skipped, lambda n, task=task: progress.update(task, completed=n)):
                units.add(unit(group, tokenizer))
                yield analyse(group, tokenizer, config, generator)
            progress.remove_task(task)


def _add_to_step(steps: dict[int, Summary], analysis: Analysis, scale: float) -> None:
    step = analysis.group.step
    if step is None:
        return
    if step not in steps:
        for finished in steps.values():
            finished.forget_all_but_the_leading_tokens()
        steps[step] = Summary(scale)
    steps[step].add(analysis)


def _plot(steps: dict[int, Summary], path: Path) -> None:
    if not steps:
        raise FormatError("--training: no group has a step. Steps are in veRL's dumps, or in the names of the files.")
    try:
        plot_training(steps, path)
    except (OSError, ValueError) as error:
        raise FormatError(f"--training {path}: {error}") from error


def _open(name: str, stack: ExitStack) -> IO[str]:
    return sys.stdout if name == "-" else stack.enter_context(Path(name).open("w", newline="", encoding="utf-8"))

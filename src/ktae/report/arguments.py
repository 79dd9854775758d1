"""The command line of `ktae report`. Nothing heavy is imported here, since `ktae doctor` has to read it too."""

import argparse
import math
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operands", nargs="+", metavar="PATH", help="a file, or a directory of steps")
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer.json, or its directory; without it, words")
    parser.add_argument("--correct-key", metavar="KEY", help="what says whether a rollout is correct: acc, else score")
    parser.add_argument("--correct-threshold", type=_finite, default=0.0, help="correct is greater than this (0)")
    settings = parser.add_argument_group(
        "settings", "those of the run that wrote the file, else KTAE's defaults, else:"
    )
    settings.add_argument("--preset", choices=("published", "paper", "calibrated"))
    for name in ("fisher", "information-gain", "term-frequency"):
        settings.add_argument(f"--{name}-weight", type=float, metavar="NUMBER")
    settings.add_argument("--scale", type=float, metavar="NUMBER")
    parser.add_argument("--top", type=_positive, default=5, help="key tokens shown of each kind (5)")
    parser.add_argument("--groups", type=_count, default=3, help="groups shown one by one in the terminal (3)")
    parser.add_argument("--json", metavar="FILE", help="write the summary there; - is the standard output")
    parser.add_argument("--csv", metavar="FILE", help="write every key token of every group there; - as above")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page of the rollouts there")
    parser.add_argument("--html-groups", type=_positive, default=200, help="groups on the page, the first ones (200)")
    parser.add_argument("--training", type=Path, metavar="FILE", help="plot the steps there: .png or .svg")


def _finite(value: str) -> float:
    if not math.isfinite(number := float(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a finite number")
    return number


def _count(value: str) -> int:
    if (number := int(value)) < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return number


def _positive(value: str) -> int:
    if (number := int(value)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return number

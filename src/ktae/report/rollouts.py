"""Files of rollouts -> groups, one at a time: what a group is, and which reader a file needs."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktae import KTAEConfig

SUFFIXES = (".jsonl", ".jsonl.gz", ".npz", ".parquet")
SHOWN = 5  # skipped lines that are told one by one

Progress = Callable[[float], Any]  # is told the share of a file that is done


@dataclass(frozen=True)
class Rollout:
    """A response to the group's prompt, as text or as the ids of its tokens."""

    correct: bool
    text: str | None = None
    token_ids: Sequence[int] | None = None
    advantages: Sequence[float] | None = None  # of these tokens, where the file has those that training used


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt."""

    label: str
    prompt: str
    step: int | None
    rollouts: list[Rollout]
    token_text: Mapping[int, str] = field(default_factory=dict)  # of token ids, where the file has it
    config: KTAEConfig | None = None  # of the run, where the file has it
    mixed_group_share: float | None = None  # of the step that the group is from, where the file has it


@dataclass
class Skipped:
    """Lines, and files among others, that could not be read."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str) -> None:
        self.count += 1
        if len(self.examples) < SHOWN:
            self.examples.append(reason)


class FormatError(ValueError):
    """A file that is no file of rollouts."""


@dataclass(frozen=True)
class Labels:
    """Which rollouts are correct: those whose `key` is greater than the threshold.

    Without a key, the first of the usual ones that there is decides.
    """

    key: str | None = None
    threshold: float = 0.0

    def keys(self, *usual: str) -> tuple[str, ...]:
        """The key, or the usual ones."""
        return usual if self.key is None else (self.key,)

    def of(self, record: Mapping[str, Any], *usual: str) -> Any:
        """What the record has under the key. Raises KeyError."""
        for key in self.keys(*usual):
            if record.get(key) is not None:
                return record[key]
        raise KeyError(" or ".join(self.keys(*usual)))

    def is_correct(self, value: Any) -> bool:
        """Whether the value exceeds the threshold. Raises ValueError for what is not a number."""
        return number(value) > self.threshold


def files(path: Path) -> list[Path]:
    """The file, or those of a directory in the order of their steps."""
    if not path.exists():
        raise FormatError(f"{path} does not exist.")
    if path.is_file():
        return [path]
    found = [file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
    if not found:
        raise FormatError(f"{path} has no file of rollouts: {', '.join(SUFFIXES)}.")
    return sorted(found, key=lambda file: (step_of(file) is None, step_of(file) or 0, file.name))


def step_of(path: Path) -> int | None:
    """The step in a file's name: veRL's dumps are called {step}.jsonl, its checkpoints global_step_{step}."""
    match = re.fullmatch(r"(?:(?:global_)?step[_-]?)?(\d+)", path.name.split(".")[0])
    return int(match.group(1)) if match else None


def read(path: Path, labels: Labels, skipped: Skipped, progress: Progress = lambda _: None) -> Iterator[Group]:
    """The groups of a file.

    Raises:
        FormatError: it cannot be read, is empty, or in a format that is not known.
    """
    from ktae.report import columns, jsonl

    if not path.name.endswith(SUFFIXES):
        raise FormatError(f"{path}: an unknown format. Known: {', '.join(SUFFIXES)}.")
    try:
        if path.stat().st_size == 0:
            raise FormatError(f"{path} is empty.")
        reader = columns.read if path.name.endswith((".npz", ".parquet")) else jsonl.read
        yield from reader(path, labels, skipped, progress)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error}") from error


def number(value: Any) -> float:
    """Numbers, booleans, and their texts: numpy's values are written as text by some versions of veRL."""
    if isinstance(value, str):
        with suppress(KeyError):
            return {"true": 1.0, "false": 0.0}[value.strip().lower()]
    if value is None or isinstance(value, (list, dict)):
        raise ValueError(f"{value!r} is no number")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{value!r:.100} is no number") from error
    if result != result:
        raise ValueError("the outcome is NaN")
    return result


def text(value: Any) -> str:
    """A text that can be written as UTF-8; what is none, such as a list of messages, as JSON."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

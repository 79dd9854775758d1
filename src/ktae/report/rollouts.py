"""Files of rollouts -> groups, one at a time: veRL's dumps, lists of responses in JSONL, npz and parquet with ids."""

import gzip
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".jsonl.gz", ".npz", ".parquet")
SHOWN = 5  # skipped lines that are told one by one


@dataclass(frozen=True)
class Rollout:
    """A response to the group's prompt, as text or as the ids of its tokens."""

    correct: bool
    text: str | None = None
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt."""

    label: str
    prompt: str
    step: int | None
    rollouts: list[Rollout]
    token_text: Mapping[int, str] = field(default_factory=dict)  # of token ids, where the file has it


@dataclass
class Skipped:
    """Lines that could not be read."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: Path, line: int, reason: str) -> None:
        self.count += 1
        if len(self.examples) < SHOWN:
            self.examples.append(f"{path}, line {line}: {reason}")


@dataclass(frozen=True)
class Labels:
    """Which rollouts are correct: where a line has this key, by its value, else by its score."""

    key: str = "acc"
    threshold: float = 0.0

    def of_line(self, line: Mapping[str, Any]) -> bool:
        return _number(line[self.key] if line.get(self.key) is not None else line["score"]) > self.threshold


class FormatError(ValueError):
    """A file that is no file of rollouts."""


def files(path: Path) -> list[Path]:
    """The file, or those of a directory in the order of their steps."""
    if not path.exists():
        raise FormatError(f"{path} does not exist.")
    if path.is_file():
        return [path]
    found = [file for file in path.iterdir() if file.name.endswith(SUFFIXES)]
    if not found:
        raise FormatError(f"{path} has no file of rollouts: {', '.join(SUFFIXES)}.")
    return sorted(found, key=lambda file: (step_of(file) is None, step_of(file) or 0, file.name))


def step_of(path: Path) -> int | None:
    """The step in a file's name: veRL's dumps are called {step}.jsonl."""
    match = re.fullmatch(r"(?:step[_-]?)?(\d+)", path.name.split(".")[0])
    return int(match.group(1)) if match else None


def read(
    path: Path, labels: Labels, skipped: Skipped, progress: Callable[[int], Any] = lambda _: None
) -> Iterator[Group]:
    """The groups of a file. `progress` is told the number of bytes read so far, as far as they are known.

    Raises:
        FormatError: it is empty, or in a format that is not known.
    """
    if not path.name.endswith(SUFFIXES):
        raise FormatError(f"{path}: an unknown format. Known: {', '.join(SUFFIXES)}.")
    if path.stat().st_size == 0:
        raise FormatError(f"{path} is empty.")
    if path.name.endswith(".npz"):
        return _read_npz(path)
    if path.name.endswith(".parquet"):
        return _read_parquet(path)
    return _read_jsonl(path, labels, skipped, progress)


def _read_jsonl(path: Path, labels: Labels, skipped: Skipped, progress: Callable[[int], Any]) -> Iterator[Group]:
    with _open(path) as file:
        first = next((line for _, _, line in _lines(file, path, Skipped(), progress)), None)
    if first is None:
        raise FormatError(f"{path} has no line that is a JSON object.")
    if "responses" in first:
        return _one_group_a_line(path, skipped, progress)
    if {"input", "output", "score"} <= first.keys():
        return _verl_dump(path, labels, skipped, progress)
    raise FormatError(
        f"{path}: an unknown format. The first line has the keys {sorted(first)}; veRL's dumps have input, output and "
        "score, files of groups prompt, responses and correct."
    )


def _one_group_a_line(path: Path, skipped: Skipped, progress: Callable[[int], Any]) -> Iterator[Group]:
    with _open(path) as file:
        for number, _, line in _lines(file, path, skipped, progress):
            try:
                responses, correct = line["responses"], [_number(value) > 0 for value in line["correct"]]
                if len(responses) != len(correct) or not all(isinstance(text, str) for text in responses):
                    raise ValueError(f"{len(responses)} responses, which have to be texts, and {len(correct)} outcomes")
            except (KeyError, TypeError, ValueError) as error:
                skipped.add(path, number, _reason(error))
                continue
            rollouts = [Rollout(outcome, text) for text, outcome in zip(responses, correct, strict=True)]
            prompt = str(line.get("prompt", ""))
            yield Group(str(line.get("problem_id", line.get("uid", number))), prompt, line.get("step"), rollouts)


def _verl_dump(path: Path, labels: Labels, skipped: Skipped, progress: Callable[[int], Any]) -> Iterator[Group]:
    """The rows of a group may stand anywhere. The first pass notes where; memory grows with the lines, not the text."""
    where: dict[tuple, list[tuple[int, int]]] = {}
    with _open(path) as file:
        for number, offset, line in _lines(file, path, skipped, progress):
            try:
                if not isinstance(line["output"], str):
                    raise ValueError("output is not a text")
                labels.of_line(line)
            except (KeyError, TypeError, ValueError) as error:
                skipped.add(path, number, _reason(error))
                continue
            uid = str(line.get("uid", ""))
            if not uid.startswith("pad"):  # rows that V1 pads the batch with
                key = (line.get("step"), uid.rsplit("_", 2)[0] if uid else line["input"])
                where.setdefault(key, []).append((number, offset))
        for key in where:
            rows = []
            for _, offset in where[key]:
                file.seek(offset)
                rows.append(json.loads(file.readline()))
            step, name = key
            label = name if "uid" in rows[0] else f"line {where[key][0][0]}"
            rollouts = [Rollout(labels.of_line(row), row["output"]) for row in rows]
            yield Group(label, str(rows[0]["input"]), step_of(path) if step is None else int(step), rollouts)


def _read_npz(path: Path) -> Iterator[Group]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as data:
            columns = dict(data)
    except (ValueError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} is no npz file of arrays: {error}") from error
    needed(path, columns, "responses", "response_mask", "uid")
    outcome = outcome_column(path, columns)
    prompts = {}
    if {"prompt_uid", "prompt"} <= columns.keys():
        prompts = dict(zip(columns["prompt_uid"].tolist(), columns["prompt"].tolist(), strict=True))
    uids = columns["uid"].tolist()
    sessions = columns.get("rollout_index", np.arange(len(uids))).tolist()
    rows: dict[Any, dict[Any, list[int]]] = {}  # uid -> session -> its rows, one rollout together
    for row, (uid, session) in enumerate(zip(uids, sessions, strict=True)):
        rows.setdefault(uid, {}).setdefault(session, []).append(row)
    text = {}
    if {"token_id", "token_text"} <= columns.keys():
        text = dict(zip(columns["token_id"].tolist(), columns["token_text"].tolist(), strict=True))
    for uid, members in rows.items():
        rollouts = [_rollout(columns, session, outcome) for session in members.values()]
        yield Group(str(uid), str(prompts.get(uid, "")), step_of(path), rollouts, text)


def _rollout(columns: Mapping[str, Any], rows: list[int], outcome: str) -> Rollout:
    """The tokens of the rows, one row after the other; the last one's outcome."""
    ids = columns["responses"][rows][columns["response_mask"][rows].astype(bool)]
    return Rollout(bool(columns[outcome][rows[-1]] > 0), token_ids=ids.tolist())


def _read_parquet(path: Path) -> Iterator[Group]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        columns = parquet.read_table(path).to_pydict()
    except ArrowException as error:
        raise FormatError(f"{path} is no parquet file: {error}") from error
    needed(path, columns, "responses", "uid")
    outcome = outcome_column(path, columns)
    rows: dict[Any, list[Rollout]] = {}
    prompts = dict(zip(columns["uid"], columns.get("prompt", [""] * len(columns["uid"])), strict=True))
    masks = columns.get("response_mask", [None] * len(columns["uid"]))
    for uid, response, mask, value in zip(columns["uid"], columns["responses"], masks, columns[outcome], strict=True):
        if isinstance(response, str):
            rollout = Rollout(_number(value) > 0, text=response)
        else:
            unmasked = response if mask is None else [i for i, m in zip(response, mask, strict=True) if m]
            rollout = Rollout(_number(value) > 0, token_ids=unmasked)
        rows.setdefault(uid, []).append(rollout)
    return (Group(str(uid), str(prompts[uid]), step_of(path), members) for uid, members in rows.items())


def needed(path: Path, columns: Mapping[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise FormatError(f"{path} has no column {', '.join(missing)}. It has {sorted(columns)}.")


def outcome_column(path: Path, columns: Mapping[str, Any]) -> str:
    for name in ("correct", "is_correct", "acc", "rewards", "score"):
        if name in columns:
            return name
    raise FormatError(f"{path} has no outcome: correct, is_correct, acc, rewards or score. It has {sorted(columns)}.")


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")


def _lines(
    file: Any, path: Path, skipped: Skipped, progress: Callable[[int], Any]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Number, offset and content of the lines that are JSON objects."""
    number = 0
    while True:
        offset = file.tell()
        raw = file.readline()
        if not raw:
            return
        number += 1
        progress(offset)
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except ValueError as error:
            skipped.add(path, number, f"no JSON: {error}")
            continue
        if isinstance(line, dict):
            yield number, offset, line
        else:
            skipped.add(path, number, f"a {type(line).__name__}, not an object")


def _number(value: Any) -> float:
    """Numbers, booleans, and their texts: numpy's values are written as text by some versions of veRL."""
    if isinstance(value, str):
        with suppress(KeyError):
            return {"true": 1.0, "false": 0.0}[value.strip().lower()]
    if value is None or isinstance(value, (list, dict)):
        raise ValueError(f"{value!r} is no number")
    number = float(value)
    if number != number:
        raise ValueError("the outcome is NaN")
    return number


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)

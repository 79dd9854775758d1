"""JSONL -> groups: veRL's rollout dumps, a rollout a line, and files with a prompt and its responses a line."""

import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ktae.report.rollouts import FormatError, Group, Labels, Progress, Rollout, Skipped, number, step_of, text

V1_KEY = re.compile(r"(.+)_(\d+)_(\d+)")  # uid, session, output
V1_PADDING = re.compile(r"pad[0-9a-f]+(_\d+_\d+)?")

# Of the work on a dump, what the first pass over it is: the second one analyses what it reads.
FIRST_PASS = 0.1


class Line(NamedTuple):
    number: int
    offset: int
    record: dict[str, Any]


class Place(NamedTuple):
    """Where a row of a dump is, and its place within the agent's session, if it has one."""

    session: Any
    output: int
    number: int
    offset: int


def read(path: Path, labels: Labels, skipped: Skipped, progress: Progress) -> Iterator[Group]:
    """The groups of a file, with the errors of :func:`ktae.report.rollouts.read`."""
    with _open(path, skipped) as file:
        first = None
        for line in _lines(file, path, Skipped()):
            first = first or line.record
            if "responses" in line.record:
                yield from _prompts(file, path, labels, skipped, progress)
                return
            if {"input", "output"} <= line.record.keys():
                yield from _dump(file, path, labels, skipped, progress)
                return
    if first is None:
        raise FormatError(f"{path} has no line that is a JSON object.")
    raise FormatError(
        f"{path}: an unknown format. The first line has the keys {sorted(first)}; veRL's dumps have input, output and "
        "score, files of groups prompt, responses and correct."
    )


def _open(path: Path, skipped: Skipped) -> IO[bytes]:
    """The file, from its beginning; a compressed one is unpacked first, since the groups are looked up in it."""
    if not path.name.endswith(".gz"):
        return path.open("rb")
    unpacked: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the caller)
    try:
        with gzip.open(path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if unpacked.tell() == 0:
            unpacked.close()
            raise FormatError(f"{path} is no gzip file: {error}") from error
        skipped.add(f"{path}, the end: {error}")
    return unpacked


def _lines(file: IO[bytes], path: Path, skipped: Skipped) -> Iterator[Line]:
    """The lines that are JSON objects."""
    file.seek(0)
    line_number = 0
    while True:
        offset = file.tell()
        raw = file.readline()
        if not raw:
            return
        line_number += 1
        if not raw.strip():
            continue
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError) as error:
            skipped.add(f"{path}, line {line_number}: no JSON: {error}")
            continue
        if isinstance(record, dict):
            yield Line(line_number, offset, record)
        else:
            skipped.add(f"{path}, line {line_number}: a {type(record).__name__}, not an object")


def _prompts(file: IO[bytes], path: Path, labels: Labels, skipped: Skipped, progress: Progress) -> Iterator[Group]:
    size = os.fstat(file.fileno()).st_size
    for line in _lines(file, path, skipped):
        record = line.record
        try:
            responses, outcomes = record["responses"], labels.of(record, "correct")
            if not (isinstance(responses, list) and all(isinstance(response, str) for response in responses)):
                raise ValueError("responses is not a list of texts")
            if not isinstance(outcomes, list) or len(outcomes) != len(responses) or not responses:
                raise ValueError(f"{len(responses)} responses and, of outcomes, {outcomes!r:.100}")
            rollouts = [
                Rollout(labels.is_correct(outcome), text(response))
                for response, outcome in zip(responses, outcomes, strict=True)
            ]
            label = record.get("problem_id", record.get("uid", line.number))
            group = Group(text(label), text(record.get("prompt", "")), _step(record, path), rollouts)
        except (KeyError, ValueError) as error:
            skipped.add(f"{path}, line {line.number}: {_reason(error)}")
            continue
        yield group
        progress(file.tell() / size)


def _dump(file: IO[bytes], path: Path, labels: Labels, skipped: Skipped, progress: Progress) -> Iterator[Group]:
    """The rows of a group may stand anywhere. The first pass notes where; memory grows with the lines, not the text."""
    places: dict[tuple, list[Place]] = {}
    for line in _lines(file, path, skipped):
        try:
            if not isinstance(line.record["output"], str):
                raise ValueError("output is not a text")
            labels.is_correct(labels.of(line.record, "acc", "score"))
            step, key = _step(line.record, path), _key(line)
        except (KeyError, ValueError) as error:
            skipped.add(f"{path}, line {line.number}: {_reason(error)}")
            continue
        if key is not None:
            prompt, session, output = key
            places.setdefault((step, *prompt), []).append(Place(session, output, line.number, line.offset))
    places = _without_false_sessions(places)
    for done, ((step, *prompt), rows) in enumerate(places.items()):
        progress(FIRST_PASS + (1 - FIRST_PASS) * done / len(places))
        label = prompt[0] if len(prompt) == 1 else f"line {rows[0].number}"
        yield _group(file, rows, labels, label, step)


def _without_false_sessions(places: dict[tuple, list[Place]]) -> dict[tuple, list[Place]]:
    """V1's keys are unique: where one occurs twice, it is a uid that ends in two numbers, such as aime_2024_1."""
    result: dict[tuple, list[Place]] = {}
    for key, rows in places.items():
        if len({(row.session, row.output) for row in rows}) == len(rows):
            result[key] = rows
            continue
        for row in rows:
            whole = (*key[:-1], f"{key[-1]}_{row.session}_{row.output}")
            result.setdefault(whole, []).append(row._replace(session=row.number, output=0))
    return result


def _key(line: Line) -> tuple[tuple, Any, int] | None:
    """Which prompt a row of a dump answers, its session and its place therein; None for what V1 pads the batch with."""
    uid = line.record.get("uid")
    if uid is None:  # before veRL 0.9, and V0: prompts of one text may differ in an image, and so in the truth
        return (text(line.record["input"]), json.dumps(line.record.get("gts"))), line.number, 0
    if V1_PADDING.fullmatch(text(uid)):
        return None
    match = V1_KEY.fullmatch(text(uid))
    if match is None:
        return (text(uid),), line.number, 0
    return (match[1],), match[2], int(match[3])


def _group(file: IO[bytes], places: list[Place], labels: Labels, label: str, step: int | None) -> Group:
    sessions: dict[Any, list[dict[str, Any]]] = {}
    for place in sorted(places, key=lambda place: place.output):  # of equal ones, the order of the file
        file.seek(place.offset)
        sessions.setdefault(place.session, []).append(json.loads(file.readline()))
    rollouts = []
    for rows in sessions.values():
        correct = labels.is_correct(labels.of(rows[-1], "acc", "score"))
        rollouts.append(Rollout(correct, "\n".join(text(row["output"]) for row in rows)))
    prompt = next(iter(sessions.values()))[0]["input"]
    return Group(label, text(prompt), step, rollouts)


def _step(record: dict[str, Any], path: Path) -> int | None:
    step = record.get("step")
    if step is None:
        return step_of(path)
    if step != step or not number(step).is_integer():
        raise ValueError(f"the step is {step!r}")
    return int(number(step))


def _reason(error: Exception) -> str:
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)

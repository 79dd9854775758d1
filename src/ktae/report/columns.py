"""npz and parquet -> groups: a row is a response, or one of those of an agent's session."""

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ktae import KTAEConfig
from ktae.report.rollouts import FormatError, Group, Labels, Progress, Rollout, Skipped, step_of, text

OUTCOMES = ("correct", "is_correct", "acc", "rewards", "score")
OF_ROWS = ("uid", "responses", "response_mask", "rollout_index", "advantages", *OUTCOMES)

Columns = Mapping[str, Any]  # numpy arrays, or lists of lists


def read(path: Path, labels: Labels, skipped: Skipped, progress: Progress) -> Iterator[Group]:  # noqa: ARG001
    """The groups of a file, with the errors of :func:`ktae.report.rollouts.read`. It is read whole."""
    columns = _npz(path) if path.name.endswith(".npz") else _parquet(path, {*OF_ROWS, "prompt", labels.key})
    try:
        rows = _rows(columns, labels)
        prompts, texts, config = _prompts(columns), _texts(columns), _config(columns)
        share = columns.get("mixed_group_share")
        for done, (uid, sessions) in enumerate(rows.items()):
            progress(done / len(rows))
            rollouts = [_rollout(columns, session, labels) for session in sessions.values()]
            mixed_group_share = None if share is None else float(np.asarray(share))
            yield Group(text(str(uid)), prompts.get(uid, ""), step_of(path), rollouts, texts, config, mixed_group_share)
    except KeyError as error:
        raise FormatError(f"{path} has no column {error.args[0]}. It has {sorted(columns)}.") from error
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}: {error}") from error


def _npz(path: Path) -> Columns:
    try:
        with np.load(path, allow_pickle=False) as data:
            return dict(data)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"{path} is no npz file of arrays: {error}") from error


def _parquet(path: Path, of_rows: set[str | None]) -> Columns:
    """The columns of rows; others are the user's own, whatever their names."""
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        known = [name for name in parquet.read_schema(path).names if name in of_rows]
        return parquet.read_table(path, columns=known).to_pydict()
    except ArrowException as error:
        raise FormatError(f"{path} is no parquet file: {error}") from error


def _rows(columns: Columns, labels: Labels) -> dict[Any, dict[Any, list[int]]]:
    """uid -> session -> its rows, which are one rollout together."""
    lengths = {}
    for name in {*OF_ROWS, labels.key} & columns.keys():
        if isinstance(columns[name], np.ndarray) and columns[name].ndim == 0:
            raise ValueError(f"{name} is one value, not one a row")
        lengths[name] = len(columns[name])
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns have different numbers of rows: {lengths}")
    uids = _labels(columns, "uid")
    sessions = _labels(columns, "rollout_index") if "rollout_index" in columns else range(len(uids))
    rows: dict[Any, dict[Any, list[int]]] = {}
    for row, (uid, session) in enumerate(zip(uids, sessions, strict=True)):
        rows.setdefault(uid, {}).setdefault(session, []).append(row)
    return rows


def _labels(columns: Columns, name: str) -> list[Any]:
    values = columns[name]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    for row, value in enumerate(values):
        if not isinstance(value, (str, int, float, bytes)) or value != value:
            raise ValueError(f"{name} of row {row} is {value!r:.100}: a label is a text or a number")
    return list(values)


def _rollout(columns: Columns, rows: list[int], labels: Labels) -> Rollout:
    """The tokens of the rows, one row after the other; the last one's outcome."""
    correct = _is_correct(columns, rows[-1], labels)
    responses = [columns["responses"][row] for row in rows]
    if all(isinstance(response, str) for response in responses):
        return Rollout(correct, text="\n".join(map(text, responses)))
    ids, advantages = [], []
    for row in rows:
        of_row = _of_row(columns, "responses", row, "iu")
        kept = _mask(columns, row, of_row)
        ids += of_row[kept].tolist()
        if "advantages" in columns:
            values = _of_row(columns, "advantages", row, "f")
            if len(values) != len(kept) or not np.isfinite(values[kept]).all():
                raise ValueError(f"advantages of row {row} have to be {len(kept)} finite numbers")
            advantages += values[kept].tolist()
    return Rollout(correct, token_ids=ids, advantages=advantages if "advantages" in columns else None)


def _is_correct(columns: Columns, row: int, labels: Labels) -> bool:
    names = labels.keys(*OUTCOMES)
    name = next((name for name in names if name in columns), None)
    if name is None:
        raise KeyError(" or ".join(names))
    outcome = columns[name][row]
    try:
        if np.ndim(outcome) != 0:
            raise ValueError("one number a row")
        return labels.is_correct(outcome)
    except ValueError as error:
        raise ValueError(f"{name} of row {row} is {outcome!r:.100}: {error}") from error


def _mask(columns: Columns, row: int, ids: np.ndarray) -> np.ndarray:
    if "response_mask" not in columns:
        if isinstance(columns["responses"], np.ndarray):  # [B, T]: the shorter ones are padded
            raise KeyError("response_mask")
        return np.ones(ids.shape, dtype=bool)
    mask = _of_row(columns, "response_mask", row, "biuf")
    if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
        raise ValueError(f"response_mask of row {row} has to be {len(ids)} times 0 or 1")
    return mask.astype(bool)


def _of_row(columns: Columns, name: str, row: int, kinds: str) -> np.ndarray:
    values = np.asarray(columns[name][row])
    if values.ndim != 1 or (values.dtype.kind not in kinds and len(values)):
        expected = "integers" if kinds == "iu" else "numbers"
        raise ValueError(f"{name} of row {row} is not a list of {expected}: {columns[name][row]!r:.100}")
    if kinds == "iu" and not len(values):
        return values.astype(np.int64)
    if values.dtype == np.uint64 and values.max() >= 1 << 63:
        raise ValueError(f"{name} of row {row} holds {values.max()}: ids have 64 bits with a sign")
    return values


def _prompts(columns: Columns) -> dict[Any, str]:
    """The prompt of each uid: a column of the rows, or of the uids in `prompt_uid`."""
    if "prompt" not in columns:
        return {}
    uids = columns["prompt_uid" if "prompt_uid" in columns else "uid"]
    return {uid: text(prompt) for uid, prompt in _pairs(uids, columns["prompt"], "prompt")}


def _texts(columns: Columns) -> dict[int, str]:
    if not {"token_id", "token_text"} <= columns.keys():
        return {}
    return {int(i): text(str(token)) for i, token in _pairs(columns["token_id"], columns["token_text"], "token_text")}


def _pairs(keys: Any, values: Any, name: str) -> list[tuple[Any, Any]]:
    if len(keys) != len(values):
        raise ValueError(f"{name} has {len(values)} entries for {len(keys)}")
    return list(zip(*(x.tolist() if isinstance(x, np.ndarray) else x for x in (keys, values)), strict=True))


def _config(columns: Columns) -> KTAEConfig | None:
    """The settings of the run that wrote the file."""
    if "config" not in columns:
        return None
    try:
        return KTAEConfig(**json.loads(str(columns["config"])))
    except TypeError as error:
        raise ValueError(f"config is not one of this version of ktae: {error}") from error

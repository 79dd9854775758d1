"""`+algorithm.ktae.dump_dir=DIRECTORY`: the ids and advantages that training used, for `ktae report`."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ktae.config import KTAEConfig
from ktae.metrics import Estimate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dump:
    """Where, and how much of it.

    Args:
        directory: of the files step_000001.npz, step_000002.npz ...; made if it is not there.
        every: steps between two files.
        groups: largest number of groups in a file; those with both outcomes first.
    """

    directory: str
    every: int = 10
    groups: int = 8


class Counter:
    """Counts the advantage steps of this process. A resumed run goes on behind the files that are there."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def next(self, directory: str) -> int:
        if directory not in self.steps:
            names = [file.stem.removeprefix("step_") for file in Path(directory).glob("step_*.npz")]
            self.steps[directory] = max((int(name) for name in names if name.isdecimal()), default=0)
        self.steps[directory] += 1
        return self.steps[directory]


counter = Counter()


def write(
    dump: Dump,
    responses: Tensor,
    response_mask: Tensor,
    index: Any,
    rollout_index: Sequence[str] | None,
    is_correct: Tensor,
    result: Estimate,
    config: KTAEConfig,
) -> None:
    """Write the step's file if it is due. A failure is a warning: it does not concern the training."""
    try:
        step = counter.next(dump.directory)
    except OSError:
        logger.warning("ktae could not read %s; training goes on without it.", dump.directory, exc_info=True)
        return
    if (step - 1) % dump.every != 0:
        return
    sessions = list(range(len(is_correct))) if rollout_index is None else rollout_index
    rows = _rows(index, sessions, is_correct.tolist(), dump.groups)
    columns: dict[str, Any] = {
        "uid": np.array(_texts([index[row] for row in rows])),
        "rollout_index": np.array(_texts([sessions[row] for row in rows])),
        "correct": is_correct[rows].numpy(force=True),
        "responses": responses[rows].numpy(force=True),
        "response_mask": response_mask[rows].bool().numpy(force=True),
        "advantages": result.advantages[rows].float().numpy(force=True),
        "config": np.array(json.dumps(asdict(config))),
        "mixed_group_share": np.array(result.metrics()["ktae/mixed_group_share"]),  # of the step: here more are mixed
    }
    path = Path(dump.directory) / f"step_{step:06}.npz"
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                np.savez_compressed(file, **columns)
            unfinished.replace(path)  # a reader never sees half a file
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError:
        logger.warning("ktae could not write %s; training goes on without it.", path, exc_info=True)


def _rows(index: Sequence[Any], sessions: Sequence[Any], correct: list[bool], groups: int) -> list[int]:
    """The rows of the first groups, those with both outcomes before the others, in the order of the batch."""
    outcomes: dict[Any, dict[Any, bool]] = {}
    for label, session, outcome in zip(index, sessions, correct, strict=True):
        outcomes.setdefault(label, {})[session] = outcome  # the last row's is the session's
    chosen = set(sorted(outcomes, key=lambda label: len(set(outcomes[label].values())) == 1)[:groups])
    return [row for row, label in enumerate(index) if label in chosen]


def _texts(labels: list[Any]) -> list[str]:
    """A text for each label that tells it apart as a dictionary does: 1 and "1" are two, 1 and 1.0 are one."""
    first = {label: label for label in reversed(labels)}
    texts = {label: str(label) for label in first.values()}
    if len(set(texts.values())) < len(texts):
        texts = {label: repr(label) for label in first.values()}
    return [texts[label] for label in labels]

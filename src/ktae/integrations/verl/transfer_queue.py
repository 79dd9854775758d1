"""The default trainer of veRL 0.9, V1: rows live in TransferQueue under keys `{uid}_{session}_{output}`.

Three things differ from a DataProto trainer. The ids are not fetched for the advantage step. An agent's session may
have several rows, which are one rollout. And there are padding rows, which balancing shuffles among the others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ktae.integrations.verl.lending import Lent, lend
from ktae.integrations.verl.options import NAME


def lend_batch(compute_advantage: Callable) -> Callable:
    """Wrap `PPOTrainer._compute_advantage(self, batch, metrics)`."""

    @functools.wraps(compute_advantage)
    def wrapper(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        if self.config.algorithm.adv_estimator != NAME:
            return compute_advantage(self, batch, metrics)
        with lend(_fetch(batch)) as lent:
            batch = compute_advantage(self, batch, metrics)
        metrics.update(lent.metrics)
        return batch

    return wrapper


def _fetch(batch: Any) -> Lent:
    data = _fields(batch, "responses", "rm_scores")
    rows, rollout_index = _rollouts(batch.keys, batch.tags)
    return Lent(
        responses=_padded(data["responses"]),
        token_level_scores=_padded(data["rm_scores"]),
        reward_extra=functools.partial(_reward_extra, batch),
        rows=rows,
        rollout_index=rollout_index,
    )


def _fields(batch: Any, *names: str) -> Any:
    import transfer_queue as tq  # here, since the plug-in is imported where TransferQueue may be missing

    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))


def _rollouts(keys: Sequence[str], tags: Sequence[dict]) -> tuple[list[int] | None, list[str] | None]:
    """The rows that are not padding, in the order of their outputs within a session, and the session of each row."""
    outputs = [_split(key) for key in keys]
    rows = [row for row, tag in enumerate(tags) if not tag.get("is_padding", False)]
    rows.sort(key=lambda row: outputs[row][1])
    sessions = [session for session, _ in outputs]
    one_row_each = len({sessions[row] for row in rows}) == len(rows)
    return None if rows == list(range(len(keys))) else rows, None if one_row_each else sessions


def _split(key: str) -> tuple[str, int]:
    session, _, output = key.rpartition("_")
    if not output.isdecimal() or "_" not in session:
        raise ValueError(
            f"The key {key!r} of a row in TransferQueue is not of the form {{uid}}_{{session}}_{{output}}, so ktae "
            "cannot tell which rows are one rollout. Keep veRL's keys in a custom agent-loop manager."
        )
    return session, int(output)


def _reward_extra(batch: Any, name: str) -> list[Any]:
    """Values of a reward extra, one a row: from the reward loop's record, else from a field of its own.

    The latter is where a colocated reward model leaves it; the dataset's columns are fields too, hence the order.
    """
    data = _fields(batch, "extra_fields", name)
    infos = [(fields or {}).get("reward_extra_info") or {} for fields in _values(data["extra_fields"])]
    if any(name in info for info in infos):
        return [info.get(name) for info in infos]
    if name in data.keys():  # noqa: SIM118  (a TensorDict)
        return _values(data[name])
    known = sorted({str(key) for info in infos for key in info})
    raise ValueError(
        f"+algorithm.ktae.correct_key={name}: the reward extras have no such key. They have {known}. "
        f"Let the reward function return a dict with `score` and `{name}`."
    )


def _values(column: Any) -> list[Any]:
    """The rows of a tensor or non-tensor field; TransferQueue's backends wrap the latter in different ways."""
    from tensordict import NonTensorData, TensorDictBase  # veRL has it

    if isinstance(column, Tensor):
        return list(column.unbind())
    if isinstance(column, TensorDictBase):
        column = column.tolist()
    return [value.data if isinstance(value, NonTensorData) else value for value in column]


def _padded(rows: Tensor) -> Tensor:
    return rows.to_padded_tensor(0) if rows.is_nested else rows

"""Trainers that pass a DataProto to `compute_advantage`: V0 (RayPPOTrainer), one_step_off, fully_async."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ktae.integrations.verl.lending import Lent, current, lend

# Figures of the last advantage step, until the trainer collects its metrics. They are not left in the batch, which is
# sent to the workers and may be joined with others.
_uncollected: ContextVar[dict[str, float] | None] = ContextVar("ktae_uncollected_metrics", default=None)


def lend_batch(compute_advantage: Callable) -> Callable:
    """Wrap `verl.trainer.ppo.ray_trainer.compute_advantage(data, ...)`."""

    @functools.wraps(compute_advantage)
    def wrapper(data: Any, *args: Any, **kwargs: Any) -> Any:
        # V1 comes through here too, with a batch that lacks the ids and a loan of its own.
        if current() is not None or "responses" not in data.batch.keys():  # noqa: SIM118  (a TensorDict)
            return compute_advantage(data, *args, **kwargs)
        with lend(from_batch(data.batch, data.non_tensor_batch)) as lent:
            data = compute_advantage(data, *args, **kwargs)
        _uncollected.set(lent.metrics)
        return data

    return wrapper


def from_batch(batch: Mapping[str, Any], non_tensor_batch: Mapping[str, Any]) -> Lent:
    """The loan that a DataProto's two halves make."""

    def reward_extra(name: str) -> Sequence[Any]:
        if name not in non_tensor_batch:
            raise ValueError(
                f"+algorithm.ktae.correct_key={name}: the batch has no such reward extra. It has "
                f"{sorted(non_tensor_batch)}. Let the reward function return a dict with `score` and `{name}`."
            )
        return list(non_tensor_batch[name])

    return Lent(
        responses=batch["responses"],
        token_level_scores=batch.get("token_level_scores"),
        reward_extra=reward_extra,
    )


def add_metrics(compute_data_metrics: Callable) -> Callable:
    """Wrap `verl.trainer.ppo.metric_utils.compute_data_metrics(batch, ...)`, whose result goes to the tracker."""

    @functools.wraps(compute_data_metrics)
    def wrapper(batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        metrics = {**compute_data_metrics(batch, *args, **kwargs), **(_uncollected.get() or {})}
        _uncollected.set(None)
        return metrics

    return wrapper

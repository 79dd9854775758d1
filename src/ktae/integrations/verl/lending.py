"""What a trainer lends to the estimator while it computes advantages, beyond what veRL passes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(kw_only=True)
class Lent:
    """One batch of B rows, as the trainer holds it."""

    responses: Tensor  # [B, T] token ids
    token_level_scores: Tensor | None  # [B, T] rewards before the KL term, or None where the trainer has none
    reward_extra: Callable[[str], Sequence[Any]]  # name -> B values of a reward extra such as `acc`
    rows: Sequence[int] | None = None  # the rows that are rollouts, a session's last row last; None: all, as they stand
    rollout_index: Sequence[str] | None = None  # [B] session of each row; None: every row is a rollout
    metrics: dict[str, float] = field(default_factory=dict)  # filled by the estimator


_lent: ContextVar[Lent | None] = ContextVar("ktae_lent", default=None)


@contextmanager
def lend(lent: Lent) -> Iterator[Lent]:
    """Make `lent` the current loan, for this thread or task."""
    token = _lent.set(lent)
    try:
        yield lent
    finally:
        _lent.reset(token)


def current() -> Lent | None:
    """The loan of the trainer whose advantage step is running, if any."""
    return _lent.get()

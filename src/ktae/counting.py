"""From token ids to document and term frequencies per (group, token)."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rollouts(NamedTuple):
    """The rollouts of a batch; a rollout has one row, or several when an agent's session was cut into rows."""

    of_row: Tensor  # [B] rollout of each row
    group: Tensor  # [R] group of each rollout
    correct: Tensor  # [R] bool
    counted: Tensor  # [R] bool: has at least one unmasked token

    def to(self, device: torch.device) -> "Rollouts":
        return Rollouts(*(x.to(device) for x in self))


class TokenCounts(NamedTuple):
    """One row per (group, token id) that occurs, P rows, ordered by group, then token id."""

    group: Tensor  # [P]
    token_id: Tensor  # [P]
    a: Tensor  # [P] correct rollouts that contain the token
    b: Tensor  # [P] incorrect rollouts that contain it
    n_correct: Tensor  # [P] correct rollouts of the group, a + c
    n_incorrect: Tensor  # [P] incorrect ones, b + d
    occurrences_correct: Tensor  # [P] occurrences in all correct rollouts together
    occurrences_incorrect: Tensor  # [P]
    length_correct: Tensor  # [P] unmasked tokens of all correct rollouts together
    length_incorrect: Tensor  # [P]


def count_tokens(
    responses: Tensor, response_mask: Tensor, rollouts: Rollouts, rows: Tensor
) -> tuple[TokenCounts, Tensor, Tensor]:
    """Count the unmasked tokens of the given rows.

    Args:
        responses: token ids [B, T].
        response_mask: bool [B, T].
        rollouts: the rollouts of the batch.
        rows: bool [B], the rows to count; all rows of a group or none.

    Returns:
        The counts; the flat positions [n] in the [B, T] batch of the tokens counted; their rows [n] of the counts.
    """
    position = (response_mask & rows[:, None]).flatten().nonzero().squeeze(1)  # [n]
    token_id, token = distinct(responses.flatten()[position].long())
    rollout = rollouts.of_row[position // max(responses.shape[1], 1)]  # [n]
    pair, pair_of = distinct(rollouts.group[rollout] * len(token_id) + token)  # [P], [n]
    group = pair // max(len(token_id), 1)

    correct = rollouts.correct[rollout]
    occurrences = torch.bincount(2 * pair_of + correct, minlength=2 * len(pair)).view(-1, 2)
    a, b = _document_frequency(pair_of, rollout, group, rollouts)
    n_groups = int(rollouts.group.max()) + 1 if len(rollouts.group) else 0
    n_correct, n_incorrect = outcome_counts(rollouts, n_groups)
    length = torch.zeros(n_groups, 2, dtype=torch.long, device=responses.device)
    length.view(-1).index_add_(0, 2 * group, occurrences[:, 0]).index_add_(0, 2 * group + 1, occurrences[:, 1])
    counts = TokenCounts(
        group=group,
        token_id=token_id[pair % max(len(token_id), 1)],
        a=a,
        b=b,
        n_correct=n_correct[group],
        n_incorrect=n_incorrect[group],
        occurrences_correct=occurrences[:, 1],
        occurrences_incorrect=occurrences[:, 0],
        length_correct=length[group, 1],
        length_incorrect=length[group, 0],
    )
    return counts, position, pair_of


def outcome_counts(rollouts: Rollouts, n_groups: int) -> tuple[Tensor, Tensor]:
    """Number of correct and of incorrect rollouts [n_groups] that have at least one unmasked token."""
    correct = torch.bincount(rollouts.group[rollouts.counted & rollouts.correct], minlength=n_groups)
    incorrect = torch.bincount(rollouts.group[rollouts.counted & ~rollouts.correct], minlength=n_groups)
    return correct, incorrect


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.unique(values, return_inverse=True)` for integers [n], without sorting where their span is small.

    Example:
        >>> distinct(torch.tensor([7, -1, 7]))
        (tensor([-1,  7]), tensor([1, 0, 1]))
    """
    if len(values) == 0:
        return values, values
    low, high = (int(x) for x in values.aminmax())
    if high - low > max(4 * len(values), 1 << 20):  # ids may be as large as 2**62: no table of that size
        return torch.unique(values, return_inverse=True)
    offset = values - low
    present = torch.zeros(high - low + 1, dtype=torch.bool, device=values.device)
    present[offset] = True
    rank = present.cumsum(0) - 1
    return present.nonzero().squeeze(1) + low, rank[offset]


def _document_frequency(pair_of: Tensor, rollout: Tensor, group: Tensor, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Number of correct and of incorrect rollouts that contain the token, for each (group, token) pair [P].

    A table with one cell per (pair, rollout of its group) marks who contains what, so that a token that a rollout
    repeats counts once.
    """
    order = rollouts.group.argsort(stable=True)
    size = torch.bincount(rollouts.group)
    first = size.cumsum(0) - size  # [groups] where a group starts in `order`
    slot = torch.empty_like(order)
    slot[order] = torch.arange(len(order), device=order.device) - first[rollouts.group[order]]

    cells = size[group]  # [P]
    start = cells.cumsum(0) - cells
    contains = torch.zeros(int(cells.sum()), dtype=torch.bool, device=order.device)
    contains[start[pair_of] + slot[rollout]] = True

    cell = contains.nonzero().squeeze(1)
    pair = torch.repeat_interleave(cells)[cell]
    member = order[first[group[pair]] + cell - start[pair]]
    frequency = torch.bincount(2 * pair + rollouts.correct[member], minlength=2 * len(group)).view(-1, 2)
    return frequency[:, 1], frequency[:, 0]

"""From token ids to document and term frequencies per (group, token).

Groups are counted in chunks, with tables where these are small and sorting where they are not: the cost is linear in
the tokens, and memory does not grow with the number of groups.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Tokens in a chunk: enough to make the cost of calling torch small, little enough for its tables to stay in the caches.
CHUNK_TOKENS = 1 << 17

# A table with a cell for every possible value beats sorting the values up to about this many cells per value ...
CELLS_PER_VALUE = 16
# ... and always while it is small.
SMALL_TABLE = 1 << 18


class Rollouts(NamedTuple):
    """The rollouts of a batch; a rollout has one row, or several when an agent's session was cut into rows.

    Tensors on the CPU. There are few rollouts: what concerns them alone is computed there, whatever the batch is on.
    """

    of_row: Tensor  # [B] rollout of each row
    row_length: Tensor  # [B] unmasked tokens
    group: Tensor  # [R] group of each rollout
    correct: Tensor  # [R] bool
    n_groups: int

    def lengths(self) -> Tensor:
        """Unmasked tokens of each rollout [R]."""
        return torch.zeros_like(self.group).index_add_(0, self.of_row, self.row_length)

    def outcome_counts(self) -> tuple[Tensor, Tensor]:
        """Number of correct and of incorrect rollouts with at least one unmasked token, [n_groups] each."""
        counted = self.lengths() > 0
        correct = torch.bincount(self.group[counted & self.correct], minlength=self.n_groups)
        incorrect = torch.bincount(self.group[counted & ~self.correct], minlength=self.n_groups)
        return correct, incorrect


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
    responses: Tensor, response_mask: Tensor, rollouts: Rollouts, groups: Tensor
) -> Iterator[tuple[TokenCounts, Tensor, Tensor]]:
    """Count the unmasked tokens of the given groups.

    Args:
        responses: token ids [B, T].
        response_mask: bool [B, T].
        rollouts: the rollouts of the batch.
        groups: bool [n_groups], those to count, on the CPU.

    Yields:
        For some groups at a time, their counts; the flat positions [n] in the [B, T] batch of their tokens; the rows
        [n] of the counts that these tokens belong to.
    """
    device, width = responses.device, responses.shape[1]
    ids = responses.reshape(-1)
    n_correct, n_incorrect = (x.to(device) for x in rollouts.outcome_counts())
    slot = _rank_within_group(rollouts.group)
    for row in _chunks(rollouts, groups, width):
        rollout = rollouts.of_row[row]
        n_slots = int(slot[rollout].max()) // 8 * 8 + 8  # a multiple of 8 for _count_true
        n = int(rollouts.row_length[row].sum())
        row, length, row_group, row_slot, row_correct = (
            x.to(device)
            for x in (
                row,
                rollouts.row_length[row],
                rollouts.group[rollout],
                slot[rollout],
                rollouts.correct[rollout].long(),
            )
        )

        position = _where_true(response_mask.index_select(0, row).view(-1))  # [n], in the rows of this chunk
        position += _per_token((row - torch.arange(len(row), device=device)) * width, length, n)  # in the batch

        token_id, token = distinct(ids.index_select(0, position).long())
        group_id, local_group = torch.unique_consecutive(row_group, return_inverse=True)
        key, pair = distinct(_per_token(local_group * len(token_id), length, n).add_(token))  # [P], [n]
        local_group = key // len(token_id)
        group = group_id.index_select(0, local_group)

        side = _per_token(row_correct, length, n).add_(pair, alpha=2)  # pair and outcome
        occurrences = torch.bincount(side, minlength=2 * len(key)).view(-1, 2)  # [P, 2]: incorrect, correct
        document = side.mul_(n_slots).add_(_per_token(row_slot, length, n))  # pair, outcome and rollout
        frequency = _document_frequency(document, 2 * len(key), n_slots).view(-1, 2)
        total = torch.zeros(len(group_id), 2, dtype=torch.long, device=device).index_add_(0, local_group, occurrences)
        total = total.index_select(0, local_group)
        counts = TokenCounts(
            group=group,
            token_id=token_id.index_select(0, key % len(token_id)),
            a=frequency[:, 1],
            b=frequency[:, 0],
            n_correct=n_correct.index_select(0, group),
            n_incorrect=n_incorrect.index_select(0, group),
            occurrences_correct=occurrences[:, 1],
            occurrences_incorrect=occurrences[:, 0],
            length_correct=total[:, 1],
            length_incorrect=total[:, 0],
        )
        yield counts, position, pair


def same_counts(counts: TokenCounts) -> tuple[TokenCounts, Tensor]:
    """Keep one of the tokens of a group that have the same counts, and therefore the same statistics.

    Returns:
        The counts of K tokens, and for each of the P tokens which of these stands for it.
    """
    tables, table = distinct(counts.a * (counts.b.max() + 1) + counts.b)
    uses, use = distinct(
        counts.occurrences_correct * (counts.occurrences_incorrect.max() + 1) + counts.occurrences_incorrect
    )
    kinds, kind = distinct(((counts.group - counts.group[0]) * len(tables) + table) * len(uses) + use)
    token = torch.empty_like(kinds)
    token[kind] = torch.arange(len(kind), device=kind.device)  # any token of the kind
    return TokenCounts(*(x.index_select(0, token) for x in counts)), kind


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.unique(values, return_inverse=True)` for integers [n], without sorting where their span is small.

    Example:
        >>> distinct(torch.tensor([7, -1, 7]))
        (tensor([-1,  7]), tensor([1, 0, 1]))
    """
    if len(values) == 0:
        return values, values
    low, high = (int(x) for x in values.aminmax())
    if low >= 0 and high < SMALL_TABLE:
        low = 0  # saves a pass
    if high - low >= max(CELLS_PER_VALUE * len(values), SMALL_TABLE):  # ids may be as large as 2**62
        return torch.unique(values, return_inverse=True)
    cell = values - low if low else values
    occupied = torch.zeros(high - low + 1, dtype=torch.bool, device=values.device).index_fill_(0, cell, True)
    found = _where_true(occupied)
    rank = torch.empty(len(occupied), dtype=torch.long, device=values.device)  # read only where it is written
    rank.index_copy_(0, found, torch.arange(len(found), device=values.device))
    return found + low, rank.index_select(0, cell)


def _document_frequency(document: Tensor, n_rows: int, n_slots: int) -> Tensor:
    """Number of distinct documents in each row [n_rows], for documents [n] numbered row * n_slots + slot."""
    if n_rows * n_slots > max(CELLS_PER_VALUE * len(document), SMALL_TABLE):
        return torch.bincount(torch.unique(document) // n_slots, minlength=n_rows)
    table = torch.zeros(n_rows * n_slots, dtype=torch.bool, device=document.device).index_fill_(0, document, True)
    return _count_true(table.view(n_rows, n_slots))


def _count_true(table: Tensor) -> Tensor:
    """`table.sum(1)` of a bool table [N, 8 W].

    That would make an int64 of every cell first. Here the eight bytes of an int64 count eight columns at a time, for as
    many words as a byte can count.
    """
    words = table.view(torch.int64)  # [N, W]
    total = torch.zeros(len(table), dtype=torch.long, device=table.device)
    for part in words.split(255, dim=1):
        total += part.sum(1, keepdim=True).view(torch.uint8).sum(1)
    return total


def _where_true(mask: Tensor) -> Tensor:
    """Indices of the true elements [N], ascending; on the CPU numpy finds them three times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero().squeeze(1)


def _per_token(row_values: Tensor, row_length: Tensor, n: int) -> Tensor:
    """Values of the rows [r] as a new tensor, one value for each token [n] of a row."""
    return row_values.repeat_interleave(row_length, output_size=n)


def _rank_within_group(group: Tensor) -> Tensor:
    """0, 1, 2 ... for the rollouts [R] of each group."""
    order = group.argsort(stable=True)
    size = torch.bincount(group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[group[order]]
    return rank


def _chunks(rollouts: Rollouts, groups: Tensor, width: int) -> Iterator[Tensor]:
    """Rows [r] of the groups that have tokens to count, ordered by group, whole groups at a time."""
    group = rollouts.group[rollouts.of_row]
    tokens = torch.zeros_like(groups, dtype=torch.long).index_add_(0, group, rollouts.row_length)
    groups = groups & (tokens > 0)
    # Padding is read too, if cheaply: eight positions cost as much as a token.
    cost = (tokens + torch.bincount(group, minlength=rollouts.n_groups) * (width // 8)) * groups
    chunk = (cost.cumsum(0) - cost) // CHUNK_TOKENS  # [n_groups]
    row = groups[group].nonzero().squeeze(1)
    row = row[group[row].argsort(stable=True)]
    if len(row):
        _, sizes = chunk[group[row]].unique_consecutive(return_counts=True)
        yield from row.split(sizes.tolist())

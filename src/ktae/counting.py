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

    Tensors on the CPU: there are few rollouts, and what concerns them alone is computed there.
    """

    of_row: Tensor  # [B] rollout of each row
    row_length: Tensor  # [B] unmasked tokens
    group: Tensor  # [R] group of each rollout
    correct: Tensor  # [R] bool
    n_groups: int

    def outcome_counts(self) -> Tensor:
        """Number of incorrect and of correct rollouts with at least one unmasked token, [2, n_groups]."""
        length = torch.zeros_like(self.group).index_add_(0, self.of_row, self.row_length)
        side = self.correct * self.n_groups + self.group
        return torch.bincount(side[length > 0], minlength=2 * self.n_groups).view(2, -1)


class Rows(NamedTuple):
    """Rows of whole groups, in the order of their groups: a chunk to count. Tensors [r] on the batch's device."""

    row: Tensor  # number of the row in the batch
    length: Tensor  # unmasked tokens
    group: Tensor
    correct: Tensor  # 0 or 1
    slot: Tensor  # number of its rollout within the group
    n_tokens: int
    n_slots: int


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


def chunks_of_groups(rollouts: Rollouts, groups: Tensor, width: int, device: torch.device) -> Iterator[Rows]:
    """The rows, T = width, of the groups (bool [n_groups], on the CPU) that have tokens to count, in chunks."""
    row_group = rollouts.group[rollouts.of_row]
    tokens = torch.zeros_like(groups, dtype=torch.long).index_add_(0, row_group, rollouts.row_length)
    groups = groups & (tokens > 0)
    # Padding is read too, if cheaply: eight positions cost as much as a token.
    cost = (tokens + torch.bincount(row_group, minlength=rollouts.n_groups) * (width // 8)) * groups
    chunk = (cost.cumsum(0) - cost) // CHUNK_TOKENS  # [n_groups]

    row = groups[row_group].nonzero().squeeze(1)
    row = row[row_group[row].argsort(stable=True)]
    rollout = rollouts.of_row[row]
    slot = _rank_within_group(rollouts.group)[rollout]
    columns = (row, rollouts.row_length[row], row_group[row], rollouts.correct[rollout].long(), slot)
    _, sizes = chunk[row_group[row]].unique_consecutive(return_counts=True)
    for part in zip(*(column.split(sizes.tolist()) for column in columns), strict=True):
        row, length, group, correct, slot = (column.to(device) for column in part)
        yield Rows(row, length, group, correct, slot, n_tokens=int(part[1].sum()), n_slots=int(part[4].max()) + 1)


def count_tokens(
    responses: Tensor, response_mask: Tensor, rows: Rows, outcomes: Tensor
) -> tuple[TokenCounts, Tensor, Tensor]:
    """Count the unmasked tokens of the rows.

    Args:
        responses: token ids [B, T].
        response_mask: [B, T] of 0 and 1.
        rows: those to count.
        outcomes: number of incorrect and of correct rollouts of every group, [2, n_groups], on the CPU.

    Returns:
        The counts; the flat positions [n] in the [B, T] batch of the tokens counted; their rows [n] of the counts.
    """
    position = _where_true(response_mask.index_select(0, rows.row).view(-1).bool())  # [n], in these rows
    shift = (rows.row - torch.arange(len(rows.row), device=responses.device)) * responses.shape[1]
    position += _per_token(shift, rows)  # in the batch

    token_id, token = distinct(responses.reshape(-1).index_select(0, position).long())
    group_id, row_group = torch.unique_consecutive(rows.group, return_inverse=True)
    key, pair = distinct(_per_token(row_group * len(token_id), rows).add_(token))  # [P], [n]
    group = key // len(token_id)  # [P], of group_id

    # From here on the first of two rows is about the incorrect rollouts, the second about the correct ones.
    side = _per_token(rows.correct * len(key), rows).add_(pair)  # [n] outcome and pair
    occurrences = torch.bincount(side, minlength=2 * len(key)).view(2, -1)  # [2, P]
    frequency = _document_frequency(side, rows, 2 * len(key)).view(2, -1)
    length = torch.zeros(2, len(group_id), dtype=torch.long, device=key.device).index_add_(1, group, occurrences)
    length = length.index_select(1, group)
    group = group_id.index_select(0, group)
    n_rollouts = outcomes.to(key.device).index_select(1, group)
    counts = TokenCounts(
        group=group,
        token_id=token_id.index_select(0, key % len(token_id)),
        a=frequency[1],
        b=frequency[0],
        n_correct=n_rollouts[1],
        n_incorrect=n_rollouts[0],
        occurrences_correct=occurrences[1],
        occurrences_incorrect=occurrences[0],
        length_correct=length[1],
        length_incorrect=length[0],
    )
    return counts, position, pair


def contingency_tables(counts: TokenCounts) -> tuple[Tensor, Tensor]:
    """The distinct tables of the tokens: there are far fewer of them than tokens.

    Returns:
        Cells a, b, c, d of D tables, [4, D], and which of them is the table of each token [P].
    """
    size = int(torch.maximum(counts.n_correct, counts.n_incorrect).max()) + 1 if len(counts.a) else 1
    # Numbered in two steps, first the group's outcomes, which keeps the numbers small.
    compositions, composition = distinct(counts.n_correct * size + counts.n_incorrect)
    tables, table = distinct((composition * size + counts.a) * size + counts.b)
    composition = compositions[tables // size**2]
    a, b = tables // size % size, tables % size
    return torch.stack([a, b, composition // size - a, composition % size - b]), table


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


def _document_frequency(side: Tensor, rows: Rows, n_sides: int) -> Tensor:
    """Number of distinct rollouts of each side [n_sides], given the side of every token [n]. Overwrites `side`."""
    n_slots = -(-rows.n_slots // 8) * 8  # for _count_true
    document = side.mul_(n_slots).add_(_per_token(rows.slot, rows))
    if n_sides * n_slots > max(CELLS_PER_VALUE * len(document), SMALL_TABLE):
        return torch.bincount(torch.unique(document) // n_slots, minlength=n_sides)
    table = torch.zeros(n_sides * n_slots, dtype=torch.bool, device=document.device).index_fill_(0, document, True)
    return _count_true(table.view(n_sides, n_slots))


def _count_true(table: Tensor) -> Tensor:
    """`table.sum(1)` of a bool table [N, 8 W].

    That would make an int64 of every cell first. Here the eight bytes of an int64 count eight columns at a time, for as
    many words as a byte can count; then the bytes are added up, in pairs and by a multiplication.
    """
    words = table.view(torch.int64)  # [N, W]
    total = torch.zeros(len(table), dtype=torch.long, device=table.device)
    for part in words.split(255, dim=1):
        count = part.sum(1)
        pairs = (count & 0x00FF00FF00FF00FF) + (count >> 8 & 0x00FF00FF00FF00FF)  # four numbers of 16 bits
        total += pairs * 0x0001000100010001 >> 48
    return total


def _where_true(mask: Tensor) -> Tensor:
    """Indices of the true elements [N], ascending; on the CPU numpy finds them three times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero().squeeze(1)


def _per_token(values: Tensor, rows: Rows) -> Tensor:
    """Values of the rows [r] as a new tensor, one for each of their tokens [n]."""
    return values.repeat_interleave(rows.length, output_size=rows.n_tokens)


def _rank_within_group(group: Tensor) -> Tensor:
    """0, 1, 2 ... for the rollouts [R] of each group."""
    order = group.argsort(stable=True)
    size = torch.bincount(group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[group[order]]
    return rank

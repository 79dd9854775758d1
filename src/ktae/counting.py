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

    def totals(self) -> "Totals":
        """Rollouts and tokens of each group."""
        length = torch.zeros_like(self.group).index_add_(0, self.of_row, self.row_length)
        side = self.correct * self.n_groups + self.group
        rollouts = torch.bincount(side[length > 0], minlength=2 * self.n_groups)
        tokens = torch.zeros_like(rollouts).index_add_(0, side, length)
        return Totals(rollouts.view(2, -1), tokens.view(2, -1))

    def with_permuted_outcomes(self, generator: torch.Generator) -> "Rollouts":
        """The outcomes of each group's rollouts permuted among those that have tokens."""
        length = torch.zeros_like(self.group).index_add_(0, self.of_row, self.row_length)
        counted = (length > 0).nonzero().squeeze(1)
        drawn = counted[torch.randperm(len(counted), generator=generator, device="cpu")]
        correct = self.correct.clone()
        correct[counted[self.group[counted].argsort()]] = self.correct[drawn[self.group[drawn].argsort()]]
        return self._replace(correct=correct)


class Totals(NamedTuple):
    """What each group holds, [2, n_groups]: the first row is about its incorrect rollouts, the second the correct."""

    rollouts: Tensor  # with at least one unmasked token
    tokens: Tensor  # unmasked

    def to(self, device: torch.device) -> "Totals":
        return Totals(*(x.to(device) for x in self))


class Rows(NamedTuple):
    """Rows of whole groups, in the order of their groups: a chunk to count. Tensors [r] on the batch's device."""

    row: Tensor  # number of the row in the batch
    length: Tensor  # unmasked tokens
    group: Tensor
    correct: Tensor  # 0 or 1
    slot: Tensor  # number of its rollout among those of the group with the same outcome
    n_tokens: int
    n_slots: int


class TokenCounts(NamedTuple):
    """One column per (group, token id) that occurs, P of them, ordered by group, then token id.

    As in `Totals`, the first of two rows is about the incorrect rollouts, the second about the correct ones.
    """

    group: Tensor  # [P]
    token_id: Tensor  # [P]
    rollouts: Tensor  # [2, P] that contain the token
    occurrences: Tensor  # [2, P] in all of these together


def chunks_of_groups(rollouts: Rollouts, groups: Tensor, responses: Tensor) -> Iterator[Rows]:
    """The rows of the groups (bool [n_groups], on the CPU) that have tokens to count, in chunks."""
    row_group = rollouts.group[rollouts.of_row]
    tokens = torch.zeros_like(groups, dtype=torch.long).index_add_(0, row_group, rollouts.row_length)
    groups = groups & (tokens > 0)
    # Padding is read too, if cheaply: eight positions cost as much as a token.
    cost = (tokens + torch.bincount(row_group, minlength=rollouts.n_groups) * (responses.shape[1] // 8)) * groups
    chunk = (cost.cumsum(0) - cost) // CHUNK_TOKENS  # [n_groups]

    row = groups[row_group].nonzero().squeeze(1)
    row = row[row_group[row].argsort(stable=True)]
    rollout = rollouts.of_row[row]
    slot = _rank_within(rollouts.group * 2 + rollouts.correct)[rollout]
    columns = (row, rollouts.row_length[row], row_group[row], rollouts.correct[rollout].long(), slot)
    _, sizes = chunk[row_group[row]].unique_consecutive(return_counts=True)
    for part in zip(*(column.split(sizes.tolist()) for column in columns), strict=True):
        _, length, _, _, slot = part
        on_device = (column.to(responses.device) for column in part)
        yield Rows(*on_device, n_tokens=int(length.sum()), n_slots=int(slot.max()) + 1)


def count_tokens(responses: Tensor, response_mask: Tensor, rows: Rows) -> tuple[TokenCounts, Tensor, Tensor]:
    """Count the unmasked tokens of the rows.

    Args:
        responses: token ids [B, T], contiguous.
        response_mask: [B, T] of 0 and 1.
        rows: those to count.

    Returns:
        The counts; the flat positions [n] in the [B, T] batch of the tokens counted; their columns [n] of the counts.
    """
    position = _positions(response_mask, rows)
    token_id, token = distinct(responses.view(-1).index_select(0, position).long())
    group_id, row_group = torch.unique_consecutive(rows.group, return_inverse=True)
    key, pair = distinct(per_token(row_group * len(token_id), rows).add_(token))  # [P], [n]
    pair_group = key // len(token_id)
    occurrences = torch.bincount(per_token(rows.correct * len(key), rows).add_(pair), minlength=2 * len(key))
    counts = TokenCounts(
        group=group_id.index_select(0, pair_group),
        token_id=token_id.index_select(0, key - pair_group * len(token_id)),
        rollouts=_document_frequency(pair, len(key), rows),
        occurrences=occurrences.view(2, -1),
    )
    return counts, position, pair


def concatenate(chunks: list[TokenCounts], device: torch.device) -> TokenCounts:
    """The counts of any number of chunks."""
    none = torch.zeros(2, 0, dtype=torch.long, device=device)
    nothing = TokenCounts(group=none[0], token_id=none[0], rollouts=none, occurrences=none)
    return TokenCounts(*(torch.cat(columns, dim=-1) for columns in zip(nothing, *chunks, strict=True)))


class Tables(NamedTuple):
    """Numbers 0 ... n_tables - 1 for all contingency tables that can occur: far fewer than tokens.

    A table is one of C compositions, the number of correct and of incorrect rollouts, and its cells a and b.
    """

    n_correct: Tensor  # [C]
    n_incorrect: Tensor  # [C]
    first: Tensor  # [C] number of the composition's first table
    composition: Tensor  # [n_groups]
    n_tables: int

    def number(self, counts: TokenCounts) -> Tensor:
        """Number of the table of each token [P]."""
        first, stride = (x[self.composition].index_select(0, counts.group) for x in (self.first, self.n_incorrect + 1))
        b, a = counts.rollouts
        return first.add_(b).add_(stride.mul_(a))

    def cells(self, number: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cells a, b, c, d of the tables with these numbers [D]."""
        composition = torch.searchsorted(self.first, number, right=True) - 1
        n_correct, n_incorrect = self.n_correct[composition], self.n_incorrect[composition]
        rest = number - self.first[composition]
        a, b = rest // (n_incorrect + 1), rest % (n_incorrect + 1)
        return a, b, n_correct - a, n_incorrect - b


def contingency_tables(totals: Totals) -> Tables:
    """The tables that the outcomes of the groups allow."""
    n_incorrect, n_correct = totals.rollouts
    size = int(totals.rollouts.max()) + 1 if totals.rollouts.numel() else 1
    compositions, composition = distinct(n_correct * size + n_incorrect)
    n_correct, n_incorrect = compositions // size, compositions % size
    n_tables = (n_correct + 1) * (n_incorrect + 1)
    return Tables(n_correct, n_incorrect, n_tables.cumsum(0) - n_tables, composition, int(n_tables.sum()))


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
    occupied = _occupied(high - low + 1, cell)
    found = _where_true(occupied)
    rank = torch.empty(len(occupied), dtype=torch.long, device=values.device)  # read only where it is written
    rank.index_copy_(0, found, torch.arange(len(found), device=values.device))
    return found + low, rank.index_select(0, cell)


def _positions(response_mask: Tensor, rows: Rows) -> Tensor:
    """Flat positions [n] in the [B, T] batch of the unmasked tokens of the rows."""
    width = response_mask.shape[1]
    start = rows.row * width
    if response_mask.is_contiguous():
        # Where nothing but padding on the right is masked, the length of a row tells all.
        position = torch.arange(rows.n_tokens, device=start.device)
        position += per_token(start - rows.length.cumsum(0) + rows.length, rows)
        if response_mask.view(-1).index_select(0, position).min() == 1:
            return position
    position = _where_true(response_mask.index_select(0, rows.row).view(-1).bool())
    return position.add_(per_token(start - torch.arange(len(start), device=start.device) * width, rows))


def _document_frequency(pair: Tensor, n_pairs: int, rows: Rows) -> Tensor:
    """Number of incorrect and of correct rollouts that contain each pair, [2, P], given the pair of every token [n]."""
    width = -(-n_pairs // 8) * 8
    document = per_token((rows.correct * rows.n_slots + rows.slot) * width, rows).add_(pair)
    n_cells = 2 * rows.n_slots * width
    if n_cells > max(CELLS_PER_VALUE * len(document), SMALL_TABLE):
        document = torch.unique(document)
        side = document // (rows.n_slots * width) * n_pairs + document % width
        return torch.bincount(side, minlength=2 * n_pairs).view(2, -1)
    table = _occupied(n_cells, document)
    # The eight bytes of an int64 add up eight pairs at a time, for as many rollouts as a byte can count.
    parts = table.view(torch.int64).view(2, rows.n_slots, -1).split(255, dim=1)
    return torch.stack([part.sum(1).view(torch.uint8)[:, :n_pairs] for part in parts]).sum(0)


def _occupied(n_cells: int, cell: Tensor) -> Tensor:
    """Bool [n_cells], true where a cell is in `cell` [n]; on the CPU numpy writes it faster than torch."""
    occupied = torch.zeros(n_cells, dtype=torch.bool, device=cell.device)
    if _on_cpu(cell):
        occupied.numpy()[cell.numpy()] = True
        return occupied
    return occupied.index_fill_(0, cell, True)


def _where_true(mask: Tensor) -> Tensor:
    """Indices of the true elements [N], ascending; on the CPU numpy finds them three times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if _on_cpu(mask) else mask.nonzero().squeeze(1)


def per_token(values: Tensor, rows: Rows) -> Tensor:
    """Values of the rows [r] as a new tensor, one for each of their tokens [n]."""
    if _on_cpu(values):  # numpy repeats four times as fast as torch
        return torch.from_numpy(values.numpy().repeat(rows.length.numpy()))
    return values.repeat_interleave(rows.length, output_size=rows.n_tokens)


def _on_cpu(tensor: Tensor) -> bool:
    """Whether numpy can work on it."""
    return tensor.device.type == "cpu"


def _rank_within(group: Tensor) -> Tensor:
    """0, 1, 2 ... for the elements [R] of each group."""
    order = group.argsort(stable=True)
    size = torch.bincount(group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[group[order]]
    return rank

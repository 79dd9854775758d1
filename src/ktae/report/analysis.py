"""A group -> its key tokens, and what the same statistics give when the outcomes are shuffled among its rollouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ktae import KeyTokenTable, KTAEConfig, key_token_table
from ktae.report.rollouts import Group
from ktae.report.tokens import Tokens, tokens_of

PERMUTATIONS = 20
TOKENS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Analysis:
    """The key tokens of one group."""

    group: Group
    tokens: Tokens
    correct: np.ndarray  # of each rollout
    mixed: bool  # whether there are both outcomes among the rollouts that have tokens
    table: KeyTokenTable
    occurrences: np.ndarray  # of each row of the table, in all rollouts
    shuffles: list[np.ndarray]  # permuted outcomes
    chance: np.ndarray  # V of every row of the tables of the permuted outcomes
    chance_occurrences: np.ndarray


def analyse(group: Group, tokenizer: Any, config: KTAEConfig, generator: np.random.Generator) -> Analysis:
    """Statistics of the group, and of PERMUTATIONS shuffles of its outcomes."""
    tokens = tokens_of(group, tokenizer)
    correct = np.array([rollout.correct for rollout in group.rollouts])
    outcomes = {bool(outcome) for outcome, ids in zip(correct, tokens.ids, strict=True) if len(ids)}
    shuffles = [generator.permutation(correct) for _ in range(PERMUTATIONS)] if len(outcomes) == 2 else []

    size, width = len(correct), max(map(len, tokens.ids), default=0)
    responses = torch.zeros(size, width, dtype=torch.long)
    mask = torch.zeros(size, width, dtype=torch.bool)
    for row, ids in enumerate(tokens.ids):
        responses[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        mask[row, : len(ids)] = True
    rewards = torch.zeros(mask.shape)
    table = key_token_table(rewards, mask, responses, [0] * size, is_correct=correct, config=config)
    _, occurrences = np.unique(responses[mask].numpy(), return_counts=True)  # in the order of the table
    chance = _values_of(shuffles, responses, mask, config)
    chance_occurrences = np.tile(occurrences, len(shuffles))
    return Analysis(group, tokens, correct, bool(shuffles), table, occurrences, shuffles, chance, chance_occurrences)


def _values_of(
    shuffles: list[np.ndarray], responses: torch.Tensor, mask: torch.Tensor, config: KTAEConfig
) -> np.ndarray:
    """V of every token under each of the outcomes, one after the other: as copies of the group, some at a time."""
    at_once = max(1, TOKENS_AT_ONCE // max(int(mask.sum()), 1))
    values = [np.zeros(0)]
    for start in range(0, len(shuffles), at_once):
        outcomes = shuffles[start : start + at_once]
        copies = len(outcomes)
        index = np.repeat(np.arange(copies), len(mask)).tolist()
        masks = mask.repeat(copies, 1)
        batch = (torch.zeros(masks.shape), masks, responses.repeat(copies, 1), index)
        table = key_token_table(*batch, is_correct=np.concatenate(outcomes), config=config)
        values.append(table.key_token_value.numpy())
    return np.concatenate(values)

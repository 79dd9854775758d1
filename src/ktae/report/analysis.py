"""A group -> its key tokens, and what the same statistics give when the outcomes are shuffled among its rollouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ktae import KeyTokenTable, KTAEConfig, key_token_table
from ktae.estimator import SATURATED
from ktae.report.rollouts import Group
from ktae.report.tokens import Tokens, tokens_of

PERMUTATIONS = 20


@dataclass(frozen=True)
class Analysis:
    """The key tokens of one group."""

    group: Group
    tokens: Tokens
    table: KeyTokenTable
    occurrences: np.ndarray  # of each row of the table, in all rollouts
    chance: np.ndarray  # V of every row of the tables of the permuted outcomes
    chance_occurrences: np.ndarray

    @property
    def text(self) -> dict[int, str]:
        """What is shown for each token id: its first occurrence."""
        pairs = zip(self.tokens.ids, self.tokens.texts, strict=True)
        return {
            i: text for ids, texts in reversed(list(pairs)) for i, text in reversed(list(zip(ids, texts, strict=True)))
        }

    @property
    def mixed(self) -> bool:
        return len({rollout.correct for rollout in self.group.rollouts}) == 2

    def saturation(self, scale: float) -> tuple[float, float]:
        """Share of the tokens whose |V| exceeds 0.9 scale, and the same with permuted outcomes."""
        pairs = ((self.table.key_token_value.numpy(), self.occurrences), (self.chance, self.chance_occurrences))
        observed, chance = (float((n * (np.abs(v) > SATURATED * scale)).sum() / max(n.sum(), 1)) for v, n in pairs)
        return observed, chance


def analyse(group: Group, tokenizer: Any, config: KTAEConfig, generator: np.random.Generator) -> Analysis:
    """Statistics of the group, and of PERMUTATIONS shuffles of its outcomes."""
    tokens = tokens_of(group, tokenizer)
    correct = np.array([rollout.correct for rollout in group.rollouts])
    shuffles = PERMUTATIONS if 0 < correct.sum() < len(correct) else 0
    outcomes = [correct, *(generator.permutation(correct) for _ in range(shuffles))]

    size, width = len(correct), max(map(len, tokens.ids), default=0)
    responses = torch.zeros(size, width, dtype=torch.long)
    mask = torch.zeros(size, width, dtype=torch.bool)
    for row, ids in enumerate(tokens.ids):
        responses[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        mask[row, : len(ids)] = True
    # One at a time: all shuffles at once would take their number times the memory.
    tables = [
        key_token_table(torch.zeros(mask.shape), mask, responses, [0] * size, is_correct=outcome, config=config)
        for outcome in outcomes
    ]
    _, occurrences = np.unique(responses[mask].numpy(), return_counts=True)  # in the order of the table
    chance = [table.key_token_value.numpy() for table in tables[1:]]
    return Analysis(
        group,
        tokens,
        tables[0],
        occurrences,
        np.concatenate(chance) if chance else np.zeros(0),
        np.tile(occurrences, len(chance)),
    )

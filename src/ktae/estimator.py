"""Key-token advantage estimation: start reading here.

A batch goes through five steps: check it, group its rows, count tokens per group, score each token of each group, add
the scores to the advantage of the rollout.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ktae.config import KTAEConfig
from ktae.counting import (
    Rollouts,
    chunks_of_groups,
    concatenate,
    contingency_tables,
    count_tokens,
    distinct,
    per_token,
)
from ktae.groups import group_ids, group_relative_advantage, warn_if_all_groups_are_too_small
from ktae.metrics import Estimate, sum_values
from ktae.scoring import associate, directions, evaluate_all, key_token_values
from ktae.validation import broadcast_rollout_advantages, check_batch, check_config, check_outcomes, exceeds


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyTokenTable:
    """Statistics of every token id of every group, one row each; tensors of P rows on the batch's device.

    `pandas.DataFrame(vars(table))` makes a data frame of it.
    """

    index: list[Any]  # label of the group, as given
    token_id: Tensor
    a: Tensor  # correct rollouts that contain the token
    b: Tensor  # incorrect rollouts that contain it
    c: Tensor  # correct rollouts that do not
    d: Tensor  # incorrect rollouts that do not
    p_value: Tensor  # float64 from here on; Fisher's, or the probability of the table with preset="paper"
    fisher_score: Tensor
    information_gain: Tensor  # bits
    effect_size: Tensor  # radians
    strength: Tensor  # weighted mean of Fisher score and information gain; weighted sum with preset="paper"
    # With preset="calibrated" strength and direction are the published ones, and do not enter the key-token value.
    term_frequency_correct: Tensor  # share of the tokens of all correct rollouts
    term_frequency_incorrect: Tensor
    saturation_correct: Tensor  # BM25
    saturation_incorrect: Tensor
    direction: Tensor  # > 0: speaks for correct
    key_token_value: Tensor  # before the shift of `offset`; of `calibrated` the mean over the token's occurrences


def compute_ktae_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    responses: Tensor,
    index: Any,
    *,
    is_correct: Any = None,
    rollout_index: Any = None,
    rollout_advantages: Tensor | None = None,
    config: KTAEConfig | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Advantage of every token: that of its rollout plus the token's key-token value in its group.

    .. math:: A_{ij} = A_i + V(\mathrm{token}_{ij}), \quad V = 2\,\mathrm{scale}\,(\mathrm{sigmoid}(x) - 1/2), \quad
              x = \frac{h_1 F + h_2 IG}{h_1 + h_2} D

    F, IG and D come from the contingency table "rollout contains the token" x "rollout is correct" of the prompt's
    group, see :class:`KeyTokenTable` and :class:`ktae.KTAEConfig`. A group whose rollouts are all correct or all
    incorrect has V = 0. Masked positions get exactly 0.

    Args:
        token_level_rewards: [B, T], any dtype. A rollout's reward is the sum over all positions, masked ones too.
        response_mask: [B, T] of 0 and 1. Only unmasked tokens are counted.
        responses: [B, T] token ids, any integer dtype and range.
        index: [B] label of each row's prompt (veRL's uid). Rows of a group may stand anywhere.
        is_correct: [B], bool or 0/1. None: reward > config.correct_threshold.
        rollout_index: [B] labels; rows that share one within a group are one rollout, such as an agent's session of
            several rows. Its reward and outcome are those of its last row. None: every row is a rollout.
        rollout_advantages: [B] or [B, T], takes the place of the GRPO advantage A_i.
        config: settings; None is `KTAEConfig()`.

    Returns:
        `(advantages, returns)`, the same tensor twice as in veRL's outcome estimators: [B, T], float32 (float64 for
        float64 rewards), on the device of the rewards, without a graph.

    Raises:
        ValueError: shapes, dtypes, devices, mask values or labels do not fit, or a reward is NaN or infinite. Inputs
            are never modified.

    Source:
        Sun et al., arXiv 2505.16826.

    Example:
        Two correct rollouts contain token 5, two incorrect ones do not; token 7 is everywhere.

        >>> responses = torch.tensor([[5, 7], [5, 7], [6, 7], [6, 7]])
        >>> rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        >>> advantages, _ = compute_ktae_advantage(rewards, torch.ones(4, 2), responses, ["prompt"] * 4)
        >>> advantages[:, 1]  # token 7 tells nothing: the GRPO advantage
        tensor([ 0.8660,  0.8660, -0.8660, -0.8660])
        >>> advantages[:, 0]  # tokens 5 and 6 tell all
        tensor([ 1.8660,  1.8660, -1.8660, -1.8660])
    """
    advantages = estimate(
        token_level_rewards,
        response_mask,
        responses,
        index,
        is_correct=is_correct,
        rollout_index=rollout_index,
        rollout_advantages=rollout_advantages,
        config=config,
    ).advantages
    return advantages, advantages


@torch.no_grad()
def estimate(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    responses: Tensor,
    index: Any,
    *,
    is_correct: Any = None,
    rollout_index: Any = None,
    rollout_advantages: Tensor | None = None,
    config: KTAEConfig | None = None,
    permutation: torch.Generator | None = None,
) -> Estimate:
    """:func:`compute_ktae_advantage` with figures for a tracker. Same arguments and errors, and one more argument.

    `permutation` permutes the outcomes among the rollouts of each group: what key-token values are by chance.
    """
    config = check_config(config)
    rollouts, scores, _ = _rollouts(
        token_level_rewards, response_mask, responses, index, is_correct, rollout_index, config
    )
    if permutation is not None:
        rollouts = rollouts.with_permuted_outcomes(permutation)
    else:
        warn_if_all_groups_are_too_small(rollouts.group, leave_one_out=config.preset == "calibrated")

    if rollout_advantages is None:
        rollout_advantages = group_relative_advantage(scores, rollouts.group, config.norm_adv_by_std, config.epsilon)
        rollout_advantages = rollout_advantages[rollouts.of_row]
    dtype = torch.float64 if token_level_rewards.dtype == torch.float64 else torch.float32
    advantages = broadcast_rollout_advantages(rollout_advantages, response_mask, dtype)

    totals = rollouts.totals()
    totals_on_cpu, totals = totals, totals.to(responses.device)
    mixed = (totals_on_cpu.rollouts > 0).all(0)
    tables = contingency_tables(totals)
    every_association = evaluate_all(tables, config)
    of_group = torch.zeros(rollouts.n_groups, dtype=torch.float64, device="cpu")
    of_all = torch.zeros(3, dtype=torch.float64, device=responses.device)
    responses = responses.contiguous()  # a slice such as input_ids[:, -T:] is not
    for rows in chunks_of_groups(rollouts, mixed, responses):
        counts, position, pair = count_tokens(responses, response_mask, rows)
        value = key_token_values(counts, totals, tables, config, every_association)
        of_token = pair if value.dim() == 1 else pair + per_token(rows.correct * len(counts.group), rows)
        advantages.view(-1).index_add_(0, position, value.to(dtype).view(-1).index_select(0, of_token))
        sums = sum_values(value, counts, rollouts.n_groups, config)
        of_group, of_all = of_group + sums[0], of_all + sums[1]
    if config.offset is not None:
        shift = torch.where(mixed, config.offset - of_group / totals_on_cpu.tokens.sum(0).clamp(min=1), 0.0)
        of_row = shift[rollouts.group[rollouts.of_row]].to(advantages)
        advantages += of_row[:, None] * response_mask
    nonzero, saturated, magnitude = of_all.tolist()
    return Estimate(advantages, totals_on_cpu, of_group, int(nonzero), int(saturated), magnitude)


@torch.no_grad()
def key_token_table(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    responses: Tensor,
    index: Any,
    *,
    is_correct: Any = None,
    rollout_index: Any = None,
    rollout_advantages: Tensor | None = None,
    config: KTAEConfig | None = None,
) -> KeyTokenTable:
    """Contingency table, statistics and key-token value of every token id of every group.

    Takes the arguments of :func:`compute_ktae_advantage` and raises its errors; `rollout_advantages` does not enter
    a key-token value. Groups with one outcome are listed too, with key-token value 0.

    Returns:
        :class:`KeyTokenTable`, one row per (group, token id) that occurs unmasked, ordered by first appearance of
        the group, then token id.

    Source:
        Sun et al., arXiv 2505.16826.

    Example:
        >>> responses = torch.tensor([[5, 7], [5, 7], [6, 7], [6, 7]])
        >>> rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        >>> table = key_token_table(rewards, torch.ones(4, 2), responses, ["prompt"] * 4)
        >>> table.token_id, table.a, table.b
        (tensor([5, 6, 7]), tensor([2, 0, 2]), tensor([0, 2, 2]))
        >>> table.p_value, table.key_token_value
        (tensor([0.3333, 0.3333, 1.0000], dtype=torch.float64), tensor([ 1., -1.,  0.], dtype=torch.float64))
    """
    config = check_config(config)
    rollouts, _, labels = _rollouts(
        token_level_rewards, response_mask, responses, index, is_correct, rollout_index, config
    )
    if rollout_advantages is not None:
        broadcast_rollout_advantages(rollout_advantages, response_mask, torch.float64)
    totals = rollouts.totals().to(responses.device)
    every_group = torch.ones(rollouts.n_groups, dtype=torch.bool, device="cpu")
    responses = responses.contiguous()
    chunks = chunks_of_groups(rollouts, every_group, responses)
    counts = concatenate([count_tokens(responses, response_mask, rows)[0] for rows in chunks], responses.device)
    tables = contingency_tables(totals)
    association, table = associate(counts, tables, config)
    value = key_token_values(counts, totals, tables, config)
    if value.dim() == 2:
        value = (value * counts.occurrences).sum(0) / counts.occurrences.sum(0)
    columns = {name: column.index_select(0, table) for name, column in association.items()}
    return KeyTokenTable(
        index=[labels[group] for group in counts.group.tolist()],
        token_id=counts.token_id,
        **columns,
        **directions(counts, totals, columns["effect_size"], config),
        key_token_value=value,
    )


def _rollouts(
    token_level_rewards: Any,
    response_mask: Any,
    responses: Any,
    index: Any,
    is_correct: Any,
    rollout_index: Any,
    config: KTAEConfig,
) -> tuple[Rollouts, Tensor, list[Any]]:
    """Check the batch; return its rollouts, the reward of each, and the label of each group, on the CPU."""
    scores, row_length = check_batch(token_level_rewards, response_mask, responses)
    if is_correct is None:
        is_correct = exceeds(scores, config.correct_threshold, token_level_rewards.dtype)
    batch_size = len(row_length)
    row_group, labels = group_ids(index, batch_size)
    row_correct = check_outcomes(is_correct, batch_size)
    row = torch.arange(batch_size, device="cpu")
    if rollout_index is None:
        of_row, n_rollouts = row, batch_size
    else:
        label, names = group_ids(rollout_index, batch_size, "rollout_index")
        distinct_rollouts, of_row = distinct(row_group * len(names) + label)
        n_rollouts = len(distinct_rollouts)
    last_row = row.new_zeros(n_rollouts).scatter_reduce(0, of_row, row, "amax")
    rollouts = Rollouts(of_row, row_length, row_group[last_row], row_correct[last_row], len(labels))
    return rollouts, scores[last_row], labels

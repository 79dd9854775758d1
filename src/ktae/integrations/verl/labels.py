"""Which rollouts of a veRL batch are correct."""

from typing import Any

import torch
from torch import Tensor

from ktae.integrations.verl.lending import Lent
from ktae.integrations.verl.options import Options
from ktae.validation import exceeds, row_sums


def outcomes(lent: Lent, options: Options, token_level_rewards: Tensor, config: Any) -> Tensor:
    """Which rows are correct, bool [B]: by the reward extra, else by the score before the KL term.

    Raises:
        ValueError: the reward extra is missing, for a row or for all, or only rewards with a KL term are there.
    """
    threshold = options.config.correct_threshold
    if options.correct_key is not None:
        values = lent.reward_extra(options.correct_key)
        correct = torch.zeros(len(values), dtype=torch.bool)
        for row in range(len(values)) if lent.rows is None else lent.rows:
            correct[row] = _is_greater(values[row], threshold, row, options.correct_key)
        return correct
    scores = lent.token_level_scores
    if scores is None:
        if config is not None and config.get("use_kl_in_reward", False):
            raise ValueError(
                "algorithm.use_kl_in_reward=True, and this trainer's batch has no `token_level_scores`: the KL term "
                "would decide which rollouts are correct. Set +algorithm.ktae.correct_key to a reward extra."
            )
        scores = token_level_rewards
    return exceeds(row_sums(scores, torch.float64), threshold, scores.dtype)


def describe_label(options: Options) -> str:
    """What makes a rollout correct, in words."""
    source = f"the reward extra {options.correct_key!r}" if options.correct_key else "the score before the KL term"
    return f"{source} > {options.config.correct_threshold:g}"


def _is_greater(value: Any, threshold: float, row: int, name: str) -> bool:
    try:
        number = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    except (TypeError, ValueError, RuntimeError):  # None, a string, an int beyond 64 bits
        number = torch.empty(0)
    if number.numel() != 1 or number.is_complex() or bool(number.isnan()):
        raise ValueError(
            f"+algorithm.ktae.correct_key={name}: row {row} of the batch has {value!r}, which is neither a number "
            "nor a boolean. The reward function has to return the key for every rollout."
        )
    return bool(exceeds(number.double(), threshold, number.dtype))

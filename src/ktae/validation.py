"""Checks of the estimator's arguments: each error shows what came, the rule, the usual cause and the fix."""

from typing import Any

import torch
from torch import Tensor


def check_batch(token_level_rewards: Any, response_mask: Any, responses: Any) -> tuple[Tensor, Tensor]:
    """Check the three [B, T] tensors.

    Returns:
        The mask as bool [B, T], and each row's reward, summed over all positions, as float64 [B] on the CPU.
    """
    batch = {
        "token_level_rewards": token_level_rewards,
        "response_mask": response_mask,
        "responses": responses,
    }
    listing = "\n".join(f"  {name}: {describe(value)}" for name, value in batch.items())
    if not all(isinstance(x, Tensor) and x.layout == torch.strided for x in batch.values()):
        raise ValueError(
            f"KTAE needs three dense torch tensors, got:\n{listing}\n"
            "Pad nested tensors with `.to_padded_tensor(0)`; wrap arrays with `torch.as_tensor`."
        )
    if responses.ndim != 2 or len({x.shape for x in batch.values()}) > 1:
        raise ValueError(
            f"KTAE needs three [batch, response_length] tensors of one shape, got:\n{listing}\n"
            "`responses` holds response tokens only: drop the prompt with `input_ids[:, -response_length:]`. "
            "A reward per rollout goes to one position of its row, e.g. the last token."
        )
    if len({x.device for x in batch.values()}) > 1:
        raise ValueError(f"KTAE needs its tensors on one device, got:\n{listing}\nMove them with `.to(device)`.")
    if responses.is_floating_point() or responses.is_complex() or responses.dtype == torch.bool:
        raise ValueError(
            f"`responses` holds token ids, which are integers, got {responses.dtype}. "
            "Ids that went through a float tensor may have been rounded; pass the tokenizer's own."
        )
    return _bool_mask(response_mask), _finite_scores(token_level_rewards)


def check_outcomes(is_correct: Any, batch_size: int) -> Tensor:
    """`is_correct` as bool [B] on the CPU."""
    try:
        outcomes = torch.as_tensor(is_correct).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"is_correct is no sequence of booleans or 0/1 ({error}), got {describe(is_correct)}. "
            "A missing label (None) has to be decided by the caller: correct or incorrect."
        ) from error
    if outcomes.shape != (batch_size,):
        raise ValueError(
            f"is_correct has shape {list(outcomes.shape)} for {batch_size} rows: KTAE needs one outcome a row."
        )
    if not ((outcomes == 0) | (outcomes == 1)).all():
        bad = int(((outcomes != 0) & (outcomes != 1)).nonzero()[0])
        raise ValueError(
            f"is_correct[{bad}] is {outcomes[bad].item()}: outcomes are booleans or 0/1. "
            "For a score pass `score > threshold`."
        )
    return outcomes != 0


def broadcast_rollout_advantages(rollout_advantages: Any, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`rollout_advantages` [B] or [B, T] as a new [B, T] tensor of the dtype, 0 where the mask is."""
    if not isinstance(rollout_advantages, Tensor) or rollout_advantages.shape not in (
        mask.shape,
        mask.shape[:1],
    ):
        raise ValueError(
            f"rollout_advantages: {describe(rollout_advantages)} for a batch of shape {list(mask.shape)}. "
            "KTAE needs a tensor [batch] or [batch, response_length]; a [batch, 1] column needs `.squeeze(1)`."
        )
    values = rollout_advantages if rollout_advantages.ndim == 2 else rollout_advantages[:, None]
    advantages = torch.where(mask, values.to(mask.device, dtype), 0.0).contiguous()
    if not advantages.isfinite().all():
        row, column = (~advantages.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"rollout_advantages of row {row} is {advantages[row, column].item()}: KTAE adds to a finite advantage. "
            "The usual cause is a baseline divided by a standard deviation of 0."
        )
    return advantages


def describe(value: Any) -> str:
    """Dtype, shape and device of a tensor, the type of anything else."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape) if value.layout == torch.strided else value.layout} on {value.device}"
    return f"{type(value).__name__} {getattr(value, 'shape', '')}".strip()


def _bool_mask(response_mask: Tensor) -> Tensor:
    if response_mask.dtype == torch.bool:
        return response_mask
    mask = response_mask != 0
    if not (response_mask == mask).all():
        row, column = (response_mask != mask).nonzero()[0].tolist()
        raise ValueError(
            f"response_mask[{row}, {column}] is {response_mask[row, column].item()}: a mask holds 0 and 1. "
            "Weights per token belong in the loss, not in the mask."
        )
    return mask


def _finite_scores(token_level_rewards: Tensor) -> Tensor:
    if token_level_rewards.is_complex():
        raise ValueError(f"token_level_rewards holds real numbers, got {token_level_rewards.dtype}.")
    scores = token_level_rewards.detach().sum(1, dtype=torch.float64).cpu()
    if not scores.isfinite().all():
        row = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(
            f"The rewards of row {row} sum to {scores[row].item()}: KTAE needs finite rewards. "
            "The usual causes are a reward function that divides by 0 and a KL term between log-probabilities of -inf."
        )
    return scores

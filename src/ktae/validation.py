"""Checks of the estimator's arguments: each error shows what came, the rule, the usual cause and the fix."""

from typing import Any

import torch
from torch import Tensor

from ktae.association import INTEGERS
from ktae.config import KTAEConfig

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_config(config: Any) -> KTAEConfig:
    """`config`, or the defaults for None."""
    if config is None:
        return KTAEConfig()
    if not isinstance(config, KTAEConfig):
        raise ValueError(f"config is a {type(config).__name__}: pass KTAEConfig(...), or None for the defaults.")
    return config


def check_batch(token_level_rewards: Any, response_mask: Any, responses: Any) -> tuple[Tensor, Tensor]:
    """Check the three [B, T] tensors.

    Returns:
        Each row's reward, summed over all positions, as float64 [B], and its number of unmasked tokens [B]; on the CPU.
    """
    batch = {"token_level_rewards": token_level_rewards, "response_mask": response_mask, "responses": responses}
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
    if responses.dtype not in INTEGERS:
        raise ValueError(
            f"`responses` holds token ids, which are integers, got {responses.dtype}; int64 is what tokenizers give. "
            "Ids that went through a float tensor may have been rounded."
        )
    return _finite_scores(token_level_rewards), _row_lengths(response_mask)


def check_outcomes(is_correct: Any, batch_size: int) -> Tensor:
    """`is_correct` as bool [B] on the CPU."""
    if getattr(is_correct, "ndim", 1) != 1 or not hasattr(is_correct, "__len__") or len(is_correct) != batch_size:
        raise ValueError(
            f"is_correct is {describe(is_correct)} for {batch_size} rows: KTAE needs one outcome a row, shape [B]."
        )
    outcomes = is_correct.tolist() if isinstance(is_correct, Tensor) else list(is_correct)
    for row, outcome in enumerate(outcomes):
        if outcome is None or not (outcome == 0 or outcome == 1):
            raise ValueError(
                f"is_correct[{row}] is {outcome!r}: outcomes are booleans or 0/1. "
                "For a score pass `score > threshold`; decide a missing label yourself, or leave the row out."
            )
    return torch.tensor([bool(outcome) for outcome in outcomes], dtype=torch.bool, device="cpu")


def exceeds(scores: Tensor, threshold: float, dtype: torch.dtype) -> Tensor:
    """Which of the scores [B], float64 sums of rewards of the dtype, are greater than the threshold.

    The threshold is rounded to the dtype first: a float32 reward of 0.1 is not greater than 0.1.
    """
    rounded = torch.tensor(threshold, dtype=dtype, device="cpu").item() if dtype.is_floating_point else threshold
    return scores > rounded


def broadcast_rollout_advantages(rollout_advantages: Any, response_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`rollout_advantages` [B] or [B, T] as a new [B, T] tensor of the dtype, 0 where the mask is."""
    shape = response_mask.shape
    dense = isinstance(rollout_advantages, Tensor) and rollout_advantages.layout == torch.strided
    if not dense or rollout_advantages.is_complex() or rollout_advantages.shape not in (shape, shape[:1]):
        raise ValueError(
            f"rollout_advantages: {describe(rollout_advantages)} for a batch of shape {list(shape)}. KTAE needs a "
            "real tensor [batch] or [batch, response_length]; a [batch, 1] column needs `.squeeze(1)`."
        )
    values = rollout_advantages.to(response_mask.device, dtype)
    finite = bool(values.isfinite().all())
    values = values if values.ndim == 2 else values[:, None].expand(shape)
    if not finite:  # under the mask anything may stand
        values = torch.where(response_mask.bool(), values, 0.0)
        _check_finite_advantages(values)
    advantages = torch.empty(shape, dtype=dtype, device=response_mask.device)
    for part, value, mask in zip(*map(_parts, (advantages, values, response_mask)), strict=True):
        part.copy_(mask).mul_(value).add_(0.0)  # makes 0.0 of -0.0
    return advantages


def _check_finite_advantages(advantages: Tensor) -> None:
    if not advantages.isfinite().all():
        row, column = (~advantages.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"The rollout-level advantage of row {row} is {advantages[row, column].item()}: KTAE adds to a finite one. "
            "The usual causes are a baseline divided by a standard deviation of 0, and rewards beyond float32."
        )


def describe(value: Any) -> str:
    """Dtype, shape and device of a tensor, type and length of anything else."""
    if isinstance(value, Tensor):
        shape = list(value.shape) if value.layout == torch.strided else value.layout
        return f"{value.dtype} {shape} on {value.device}"
    size = getattr(value, "shape", None) or (f"of length {len(value)}" if hasattr(value, "__len__") else "")
    return f"{type(value).__name__} {size}".strip()


def _parts(matrix: Tensor) -> tuple[Tensor, ...]:
    """The rows of [B, T], some at a time: what is made of a part stays in the caches, and takes little memory."""
    return matrix.split(_part_rows(matrix))


def _part_rows(matrix: Tensor) -> int:
    return max(1, (1 << 17) // max(matrix.shape[1], 1))


def _row_lengths(response_mask: Tensor) -> Tensor:
    if response_mask.dtype not in (torch.bool, *INTEGERS, *FLOATS):
        raise ValueError(f"response_mask is {response_mask.dtype}: a mask holds 0 and 1, as bool, integers or floats.")
    lengths = row_sums(response_mask, torch.long, cast=torch.bool if response_mask.is_floating_point() else None)
    if response_mask.dtype == torch.bool or response_mask.numel() == 0:
        return lengths
    low, high = response_mask.aminmax()
    # Numbers from 0 to 1 that add up to the number of those other than 0 are 0 or 1. NaN fails the first test.
    fractions = response_mask.is_floating_point() and row_sums(response_mask, torch.float64).sum() != lengths.sum()
    if not (low >= 0 and high <= 1) or fractions:
        row, column = (response_mask != response_mask.bool()).nonzero()[0].tolist()
        raise ValueError(
            f"response_mask[{row}, {column}] is {response_mask[row, column].item()}: a mask holds 0 and 1. "
            "Weights per token belong in the loss, not in the mask."
        )
    return lengths


def _finite_scores(token_level_rewards: Tensor) -> Tensor:
    if token_level_rewards.dtype not in (torch.bool, *INTEGERS, *FLOATS):
        raise ValueError(f"token_level_rewards is {token_level_rewards.dtype}: rewards are real numbers, as float32.")
    scores = row_sums(token_level_rewards, torch.float64)
    if not scores.isfinite().all():
        row = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(
            f"The rewards of row {row} sum to {scores[row].item()}: KTAE needs finite rewards. "
            "The usual causes are a reward function that divides by 0 and a KL term between log-probabilities of -inf."
        )
    return scores


def row_sums(matrix: Tensor, dtype: torch.dtype, cast: torch.dtype | None = None) -> Tensor:
    """Sums of the rows of [B, T] in the dtype, [B] on the CPU; of the elements as `cast` if given."""
    sums = torch.empty(len(matrix), 1, dtype=dtype, device=matrix.device)
    for part, out in zip(_parts(matrix.detach()), sums.split(_part_rows(matrix)), strict=True):
        # Into `out`: a small result between the large temporaries would keep the allocator from reusing their memory.
        torch.sum(part if cast is None else part.to(cast), 1, keepdim=True, dtype=dtype, out=out)
    return sums.squeeze(1).cpu()

"""The function that veRL calls for `algorithm.adv_estimator=ktae`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ktae.estimator import Estimate, estimate
from ktae.integrations.verl.dataproto import from_batch
from ktae.integrations.verl.lending import Lent, current
from ktae.integrations.verl.options import Options, parse_options
from ktae.validation import exceeds, row_sums


def compute_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any = None,
    config: Any = None,
    batch: Mapping[str, Tensor] | None = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """:func:`ktae.compute_ktae_advantage` for a batch of a veRL trainer.

    Args:
        token_level_rewards: [B, T].
        response_mask: [B, T].
        index: [B] uids.
        config: `config.algorithm` of the run.
        batch, non_tensor_batch: the halves of the DataProto, where veRL passes them. Else the trainer's loan is used.

    Returns:
        `(advantages, returns)` [B, T]; rows that are padding get 0.

    Raises:
        ValueError: the token ids or the label cannot be reached, or the batch or an option is not what it should be.
    """
    start = time.perf_counter()
    options = parse_options(config)
    lent = current()
    if lent is None and batch is not None and "responses" in batch.keys():  # noqa: SIM118  (a TensorDict)
        lent = from_batch(batch, non_tensor_batch or {})
    if lent is None:
        raise ValueError(_UNREACHABLE)

    is_correct = _outcomes(lent, options, token_level_rewards, config)
    result = estimate(
        _take(token_level_rewards, lent.rows),
        _take(response_mask, lent.rows),
        _take(lent.responses, lent.rows),
        _take(index, lent.rows),
        is_correct=_take(is_correct, lent.rows),
        rollout_index=_take(lent.rollout_index, lent.rows),
        config=options.config,
    )
    advantages = result.advantages
    if lent.rows is not None:
        advantages = torch.zeros_like(token_level_rewards, dtype=advantages.dtype)
        advantages[list(lent.rows)] = result.advantages
    lent.metrics.update(_metrics(result))
    lent.metrics["timing_s/ktae"] = time.perf_counter() - start
    return advantages, advantages


def _outcomes(lent: Lent, options: Options, token_level_rewards: Tensor, config: Any) -> Tensor:
    """Which rows are correct, bool [B]: by the reward extra, else by the score before the KL term."""
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


def _is_greater(value: Any, threshold: float, row: int, name: str) -> bool:
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not isinstance(number, (bool, int, float, np.bool_, np.integer, np.floating)) or number != number:
        raise ValueError(
            f"+algorithm.ktae.correct_key={name}: row {row} of the batch has {value!r}, which is neither a number "
            "nor a boolean. The reward function has to return the key for every rollout."
        )
    return bool(number > threshold)  # a float32 of numpy is compared as float32: 0.1 is not greater than 0.1


def _take(values: Any, rows: Sequence[int] | None) -> Any:
    if rows is None or values is None:
        return values
    return values[list(rows)] if isinstance(values, Tensor) else [values[row] for row in rows]


def _metrics(result: Estimate) -> dict[str, float]:
    """Figures for the tracker. V1 adds up the figures of several updates by words in their names, such as `min`."""
    groups, tokens = max(result.outcomes.shape[1], 1), max(result.n_tokens, 1)
    return {
        "ktae/mixed_group_share": (result.outcomes > 0).all(0).sum().item() / groups,
        "ktae/single_rollout_group_share": (result.outcomes.sum(0) == 1).sum().item() / groups,
        "ktae/nonzero_token_share": result.n_nonzero / tokens,
        "ktae/mean_abs_value": result.total_magnitude / tokens,
        "ktae/saturated_token_share": result.n_saturated / tokens,
    }


_UNREACHABLE = """KTAE cannot reach the token ids of the responses.
veRL hands an estimator rewards, mask and uids only; the ktae plug-in lends the ids where it knows the trainer, and this
trainer is not one of them. Usual causes:
- a trainer of your own that overrides `_compute_advantage` or calls the estimator itself: pass it `batch=` with the
  `responses`;
- a version of veRL whose trainer has changed: ktae's warning in the log names the function that is missing;
- the trainer's modules were imported before the plug-in: `import verl` first."""

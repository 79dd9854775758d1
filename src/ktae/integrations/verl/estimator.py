"""The function that veRL calls for `algorithm.adv_estimator=ktae`."""

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ktae.estimator import estimate
from ktae.integrations.verl import side_dump
from ktae.integrations.verl.base import base_advantages, check_options
from ktae.integrations.verl.dataproto import from_batch
from ktae.integrations.verl.labels import describe_label, outcomes
from ktae.integrations.verl.lending import Lent, current
from ktae.integrations.verl.options import NAME, parse_options
from ktae.validation import check_batch

LABEL_OPTIONS = "+algorithm.ktae.correct_key to a reward extra such as acc, or +algorithm.ktae.correct_threshold"

_steps = itertools.count()


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
    lent = _loan(batch, non_tensor_batch)
    label = outcomes(lent, options, token_level_rewards, config)
    columns = (token_level_rewards, response_mask, lent.responses, index, label, lent.rollout_index)
    rewards, mask, responses, uids, is_correct, sessions = (_take(column, lent.rows) for column in columns)
    rollout_advantages = None
    if options.base_estimator is not None:
        check_batch(rewards, mask, responses)
        rollout_advantages = base_advantages(options.base_estimator, rewards, mask, uids, sessions, config)
    settings: dict[str, Any] = {
        "is_correct": is_correct,
        "rollout_index": sessions,
        "rollout_advantages": rollout_advantages,
        "config": options.config,
    }
    result = estimate(rewards, mask, responses, uids, **settings)
    result.warn_if_all_one_sided(describe_label(options), LABEL_OPTIONS)
    if options.dump is not None:
        side_dump.write(options.dump, responses, mask, uids, sessions, is_correct, result, options.config)
    advantages = result.advantages
    if lent.rows is not None:
        advantages = torch.zeros_like(token_level_rewards, dtype=advantages.dtype)
        advantages[list(lent.rows)] = result.advantages
    lent.metrics.update(result.metrics())
    step = next(_steps)
    if options.chance_every and step % options.chance_every == 0:
        generator = torch.Generator("cpu").manual_seed(step)
        by_chance = estimate(rewards, mask, responses, uids, **settings, permutation=generator)
        for name, value in by_chance.value_metrics().items():
            lent.metrics[name.replace("ktae/", "ktae/chance/")] = value
    lent.metrics["timing_s/ktae"] = time.perf_counter() - start
    return advantages, advantages


def validate_with_trainer(validate_config: Callable) -> Callable:
    """Wrap `verl.utils.config.validate_config`: a mistyped option stops the run before the first rollout."""

    @functools.wraps(validate_config)
    def wrapper(config: Any, *args: Any, **kwargs: Any) -> Any:
        if config.algorithm.adv_estimator == NAME:
            check_options(config.algorithm)
        return validate_config(config, *args, **kwargs)

    return wrapper


def _loan(batch: Mapping[str, Tensor] | None, non_tensor_batch: Mapping[str, Any] | None) -> Lent:
    lent = current()
    if lent is None and batch is not None and "responses" in batch.keys():  # noqa: SIM118  (a TensorDict)
        lent = from_batch(batch, non_tensor_batch or {})
    if lent is None:
        raise ValueError(_UNREACHABLE)
    return lent


def _take(values: Any, rows: Sequence[int] | None) -> Any:
    if rows is None or values is None:
        return values
    return values[list(rows)] if isinstance(values, Tensor) else [values[row] for row in rows]


_UNREACHABLE = """KTAE cannot reach the token ids of the responses.
veRL hands an estimator rewards, mask and uids only; the ktae plug-in lends the ids where it knows the trainer, and this
trainer is not one of them. Usual causes:
- a trainer of your own that overrides `_compute_advantage` or calls the estimator itself: pass it `batch=` with the
  `responses`;
- a version of veRL whose trainer has changed: ktae's warning in the log names the function that is missing;
- veRL 0.8's main_ppo_sync started with -m where only Ray's workers load the plug-in: set VERL_USE_EXTERNAL_MODULES for
  the command too, or start it from a file that imports `main`, as examples/verl_0_8_sync.py of ktae does;
- the trainer's modules were imported before the plug-in: `import verl` first."""

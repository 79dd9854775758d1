"""`+algorithm.ktae.base_estimator=NAME`: the rollout-level part comes from another estimator that veRL knows."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ktae.groups import group_ids
from ktae.integrations.verl.options import NAME, Options, parse_options
from ktae.validation import describe

# What veRL hands to every registered estimator; grpo is handed the last one too.
GIVEN = ("token_level_rewards", "response_mask", "index", "config")
GIVEN_IF_DECLARED = (*GIVEN, "norm_adv_by_std_in_grpo")

# What veRL makes for one estimator alone, by its name, and so not for ktae. An estimator is refused even if it can do
# without: it would go on in silence, as another one. gdpo does.
WITHHELD = {
    "values": "a critic's, which veRL trains for gae only",
    "reward_baselines": "of greedy rollouts, which veRL samples for remax only",
    "sum_pi_squared": "which veRL's actor computes for the optimal token baselines only",
    "batch": "the whole batch, which veRL passes to gdpo only",
    "non_tensor_batch": "the reward extras, which veRL passes to gdpo only",
}


def check_options(algorithm: Any) -> Options:
    """The options of :func:`parse_options`, whose base estimator is one to build on. Raises ValueError."""
    options = parse_options(algorithm)
    if options.base_estimator is not None:
        find_base(options.base_estimator)
    return options


def find_base(name: str) -> Callable:
    """The estimator registered under this name.

    Raises:
        ValueError: there is none, it is ktae itself, or it needs what a trainer does not give under ktae.
    """
    from verl.trainer.ppo import core_algos  # here, since it costs every process of a run a second

    registered = sorted(set(core_algos.ADV_ESTIMATOR_REGISTRY) - {NAME})
    if name not in registered:
        raise ValueError(
            f"+algorithm.ktae.base_estimator={name}: no such estimator to build on is registered in this process. "
            f"Registered: {', '.join(registered)}. Register one of yours in a module that VERL_USE_EXTERNAL_MODULES "
            "names, so that every process of the run has it."
        )
    function = core_algos.get_adv_estimator_fn(name)
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in required if p.name not in GIVEN_IF_DECLARED or p.kind is p.POSITIONAL_ONLY]
    missing += [p.name for p in parameters if p.name in WITHHELD and p.name not in missing]
    if missing:
        listing = "; ".join(f"`{p}`" + (f", {WITHHELD[p]}" if p in WITHHELD else "") for p in missing)
        raise ValueError(
            f"+algorithm.ktae.base_estimator={name} cannot be built on: it needs {listing}. "
            f"An estimator can be built on if it takes no more than {', '.join(GIVEN_IF_DECLARED)}, by name, as rloo."
        )
    return function


def base_advantages(
    name: str,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    rollout_index: Sequence[str] | None,
    config: Any,
) -> Tensor:
    """Advantages [B, T] of the base estimator. The batch is one that :func:`ktae.validation.check_batch` passes.

    Args:
        name: of the estimator.
        token_level_rewards, response_mask: [B, T], without padding rows.
        index: [B] uids. The base gets the label of the group of each row, so that its groups are KTAE's.
        rollout_index: [B] session of each row, a session's rows in their order; None: every row is a rollout. The
            base sees a session once, its rows joined to one, with the reward of the last.
        config: `config.algorithm` of the run.

    Raises:
        ValueError: of :func:`find_base` and :func:`ktae.groups.group_ids`, or the base returns something else.
    """
    groups, labels = group_ids(index, len(response_mask))
    uids = [labels[group] for group in groups.tolist()]
    if len(uids) == 0:
        return torch.zeros_like(token_level_rewards)
    if rollout_index is None:
        return _call(
            name, token_level_rewards.clone(), response_mask.clone(), uids, config
        )  # some bases write in place
    sessions: dict[Any, list[int]] = {}
    for row, session in enumerate(zip(uids, rollout_index, strict=True)):
        sessions.setdefault(session, []).append(row)
    length = _used_length(token_level_rewards, response_mask)
    pieces = [[(row, length[row]) for row in rows] for rows in sessions.values()]

    not_last = [row for rows in sessions.values() for row in rows[:-1]]
    rewards = token_level_rewards.clone()
    rewards[not_last] = 0
    joined = _call(name, _join(rewards, pieces), _join(response_mask, pieces), [uid for uid, _ in sessions], config)

    advantages = torch.zeros_like(rewards, dtype=joined.dtype)
    for session, parts in zip(joined, pieces, strict=True):
        start = 0
        for row, n in parts:
            advantages[row, :n] = session[start : start + n]
            start += n
    return advantages


def _call(name: str, token_level_rewards: Tensor, response_mask: Tensor, uids: list[Any], config: Any) -> Tensor:
    """The estimator on these rows, with those of veRL's arguments that it declares."""
    function = find_base(name)
    get = config.get if config is not None else {}.get
    index = np.empty(len(uids), dtype=object)
    index[:] = uids  # np.array would make a matrix of tuples
    arguments = {
        "token_level_rewards": token_level_rewards,
        "response_mask": response_mask,
        "index": index,
        "config": config,
        "norm_adv_by_std_in_grpo": get("norm_adv_by_std_in_grpo", True),
    }
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        names |= set(GIVEN)
    result = function(**{name: value for name, value in arguments.items() if name in names})
    advantages = result[0] if isinstance(result, tuple) and len(result) == 2 else result
    if not isinstance(result, tuple) or not isinstance(advantages, Tensor) or advantages.shape != response_mask.shape:
        raise ValueError(
            f"+algorithm.ktae.base_estimator={name} returned {describe(advantages)} for a batch of shape "
            f"{list(response_mask.shape)}. An estimator of veRL returns (advantages, returns) of that shape."
        )
    return advantages


def _used_length(token_level_rewards: Tensor, response_mask: Tensor) -> list[int]:
    """Position behind the last one of each row that is unmasked or holds a reward."""
    used = (response_mask != 0) | (token_level_rewards != 0)
    behind = torch.arange(1, used.shape[1] + 1, device=used.device)
    return (used * behind).amax(1).tolist() if used.shape[1] else [0] * len(used)


def _join(matrix: Tensor, pieces: list[list[tuple[int, int]]]) -> Tensor:
    """A row for each list of (row, length): the beginnings of these rows, one after the other, padded with 0."""
    joined = [torch.cat([matrix[row, :n] for row, n in parts]) for parts in pieces]
    return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)

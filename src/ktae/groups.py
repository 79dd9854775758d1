"""Groups of rollouts of the same prompt, and the advantage of a whole rollout within its group (GRPO)."""

import warnings
from collections.abc import Hashable, Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor


def group_ids(index: Any, batch_size: int, name: str = "index") -> tuple[Tensor, list[Hashable]]:
    """Number the distinct labels of a batch's rows in order of appearance.

    Labels are compared as dictionary keys are, which is how veRL groups rows: 1 and 1.0 are one group, 1 and "1" two.

    Args:
        index: B labels: strings, ints, floats or a mixture, as a list, numpy array or tensor.
        batch_size: B.
        name: the argument's name, for the error message.

    Returns:
        Group [B] of each row, int64 on the CPU, and the label of each group.

    Raises:
        ValueError: another number of labels than rows; a label that is None, NaN or not hashable.

    Example:
        >>> group_ids(["p7", "p2", "p7"], 3)
        (tensor([0, 1, 0]), ['p7', 'p2'])
    """
    labels = _labels(index, name)
    if len(labels) != batch_size:
        raise ValueError(
            f"{name} has {len(labels)} labels for a batch of {batch_size} rows: KTAE needs one label a row. "
            "A batch whose rows were filtered or repeated needs its labels filtered or repeated with them."
        )
    number: dict[Hashable, int] = {}
    groups: list[int] = []
    for row, label in enumerate(labels):
        try:
            groups.append(number.setdefault(label, len(number)))
        except TypeError as error:
            raise ValueError(
                f"{name}[{row}] is {label!r}, a {type(label).__name__}: a label is a string or a number ({error}). "
                "A [B, 1] array needs `.squeeze(1)`."
            ) from error
    for label, group in number.items():
        if _identifies_nothing(label):
            raise ValueError(
                f"{name}[{groups.index(group)}] is {label!r}, which tells no group from another. "
                "The usual cause is a dataset or a merge that left the uid of some rows empty."
            )
    return torch.tensor(groups, dtype=torch.long, device="cpu"), list(number)


def group_relative_advantage(scores: Tensor, group: Tensor, norm_adv_by_std: bool, epsilon: float) -> Tensor:
    r"""GRPO: :math:`A_i = (r_i - \mathrm{mean}) / (\mathrm{std} + \epsilon)` over the rollouts of the group.

    veRL's rules: the standard deviation is the unbiased one; a group of one has mean 0 and standard deviation 1.
    Unlike float32 means, a group of equal scores gets exactly 0.

    Args:
        scores: [R] float64, the rewards of the rollouts.
        group: [R] group of each rollout.
        norm_adv_by_std: divide by the standard deviation; False is Dr.GRPO.
        epsilon: added to it.

    Returns:
        Advantages [R], float64.

    Raises:
        ValueError: the rewards of a group are too far apart for their variance to be a number.

    Source:
        Shao et al., "DeepSeekMath", arXiv 2402.03300, section 4.1; veRL's `compute_grpo_outcome_advantage`.

    Example:
        >>> scores, group = torch.tensor([1.0, 0.0, 1.0, 0.0, 5.0]).double(), torch.tensor([0, 0, 0, 0, 1])
        >>> group_relative_advantage(scores, group, norm_adv_by_std=True, epsilon=0.0)
        tensor([ 0.8660, -0.8660,  0.8660, -0.8660,  5.0000], dtype=torch.float64)
    """
    size = torch.bincount(group)
    lowest = scores.new_zeros(len(size)).scatter_reduce(0, group, scores, "amin", include_self=False)
    excess = scores - lowest[group]  # exactly 0 throughout a group of equal scores
    mean = scores.new_zeros(len(size)).index_add(0, group, excess) / size
    centred = torch.where(size[group] > 1, excess - mean[group], scores)  # [R]
    if not norm_adv_by_std:
        return centred
    variance = scores.new_zeros(len(size)).index_add(0, group, centred**2) / (size - 1).clamp(min=1)
    if not variance.isfinite().all():
        raise ValueError(
            f"Rewards between {scores.min().item()} and {scores.max().item()} have no finite variance. "
            "The usual cause is a very large number that stands for a failed reward: use 0, or leave the rollout out."
        )
    std = torch.where(size > 1, variance.sqrt(), 1.0)
    return torch.where(centred == 0, 0.0, centred / (std[group] + epsilon))


def warn_if_all_groups_are_too_small(group: Tensor, leave_one_out: bool) -> None:
    """Warn when no prompt of the batch has enough rollouts [R] to compare any."""
    largest = int(torch.bincount(group).max()) if len(group) else 0
    if leave_one_out and largest == 2:
        warnings.warn(
            'preset="calibrated" needs three rollouts of a prompt, the one that a token stands in and two to compare, '
            f"but none of the {len(group)} rollouts of this batch has two others: the key-token values are 0.",
            stacklevel=5,  # the caller of compute_ktae_advantage
        )
    if largest == 1:
        warnings.warn(
            f"Each of the {len(group)} groups of this batch has one rollout: the advantages are the rewards, the "
            "key-token values 0. Is the uid set per trajectory instead of per prompt, or the number of rollouts 1?",
            stacklevel=5,
        )


def _labels(index: Any, name: str) -> list[Any]:
    if getattr(index, "ndim", 1) != 1:
        raise ValueError(f"{name} has shape {list(index.shape)}: KTAE needs one label a row, shape [B].")
    if isinstance(index, (str, bytes, Mapping, Set)) or not isinstance(index, Iterable):
        raise ValueError(f"{name} is a {type(index).__name__}: KTAE needs a list, array or tensor of B labels.")
    if isinstance(index, torch.Tensor):
        return index.tolist()
    # A tensor hashes by identity: left as it is, it would put every row in a group of its own.
    return [label.tolist() if isinstance(label, (torch.Tensor, np.generic)) else label for label in index]


def _identifies_nothing(label: Hashable) -> bool:
    """None, NaN, pandas' NA and NaT, and objects that equal themselves alone."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return type(label).__eq__ is object.__eq__ or (isinstance(label, float) and label != label)

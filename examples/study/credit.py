"""The arms of the study: what each adds to the advantage of a rollout, or puts in its place."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ktae import KTAEConfig, compute_ktae_advantage


class Batch(NamedTuple):
    """Rollouts of a step; [B, T] unless said otherwise."""

    responses: Tensor
    response_mask: Tensor
    rewards: Tensor  # 1 on the last word of a correct rollout
    index: Tensor  # [B] number of the prompt
    entropy: Tensor  # of the distribution that each word was drawn from
    step_credit: Tensor  # 1 for a right step, -1 for a wrong one


class Arm(NamedTuple):
    advantages: Callable[[Batch, torch.Generator], Tensor]  # [B, T]
    clip_high: float = 0.2
    drop_one_sided: bool = False  # groups whose rollouts are all correct or all incorrect


def ktae(batch: Batch, **settings) -> Tensor:
    advantages, _ = compute_ktae_advantage(
        batch.rewards, batch.response_mask, batch.responses, batch.index, config=KTAEConfig(**settings)
    )
    return advantages


def grpo(batch: Batch) -> Tensor:
    return ktae(batch, scale=0)


def key_token_value(batch: Batch) -> Tensor:
    return ktae(batch) - grpo(batch)


def mean_of_groups(batch: Batch, values: Tensor) -> Tensor:
    """Mean [B, 1] over the words of each row's group."""
    n = int(batch.index.max()) + 1
    total = torch.zeros(n).index_add_(0, batch.index, (values * batch.response_mask).sum(1))
    words = torch.zeros(n).index_add_(0, batch.index, batch.response_mask.sum(1).float())
    return (total / words)[batch.index, None]


def both_outcomes(batch: Batch) -> Tensor:
    """[B, 1] whether the row's group has a correct and an incorrect rollout."""
    correct = batch.rewards.sum(1)
    rows = torch.bincount(batch.index)
    share = torch.bincount(batch.index, correct) / rows
    return ((share > 0) & (share < 1))[batch.index, None]


Value = Callable[[Batch, torch.Generator], Tensor]  # of each word, [B, T]


def added(value: Value) -> Arm:
    """The value is added to GRPO's advantage, in the groups with both outcomes."""
    return Arm(lambda batch, g: grpo(batch) + value(batch, g) * both_outcomes(batch) * batch.response_mask)


def centred(value: Value, offset: float = 0.0) -> Value:
    """Less its mean over the words of the group; then the offset is the mean."""

    def less_the_mean(batch: Batch, generator: torch.Generator) -> Tensor:
        values = value(batch, generator)
        return values - mean_of_groups(batch, values) + offset

    return less_the_mean


def constant(offset: float) -> Value:
    return lambda batch, _: torch.full(batch.rewards.shape, offset)


def shuffled(batch: Batch, generator: torch.Generator) -> Tensor:
    """The key-token values of each group, dealt out anew to its words."""
    values = key_token_value(batch)
    for number in batch.index.unique():
        words = ((batch.index == number)[:, None] & (batch.response_mask == 1)).nonzero(as_tuple=True)
        order = torch.randperm(len(words[0]), generator=generator)
        values[words] = values[words][order]
    return values


def step_credit(batch: Batch, _: torch.Generator) -> Tensor:
    return batch.step_credit


def noisy_step_credit(batch: Batch, generator: torch.Generator) -> Tensor:
    """A third of the signs are wrong, which leaves a correlation of 1/3 with what is right."""
    wrong = torch.rand(batch.rewards.shape, generator=generator) < 1 / 3
    return torch.where(wrong, -batch.step_credit, batch.step_credit)


def highest_entropy(batch: Batch, _: torch.Generator) -> Tensor:
    """GRPO's advantage for the fifth of the batch's words with the highest entropy, 0 for the others."""
    words = batch.response_mask == 1
    return grpo(batch) * (batch.entropy >= batch.entropy[words].quantile(0.8))


def leave_one_out_z(units: Tensor, contexts: Tensor, batch: Batch) -> Tensor:
    """tanh(z/2), z of the unit among the other rollouts of the group that have its context.

    Of the other n rollouts with the context n_correct are correct, k have the unit too, a of these are correct: z is a,
    standardised over shuffles of the outcomes. Words that share a unit share the context.
    """
    values = torch.zeros(units.shape)
    correct = batch.rewards.sum(1) > 0
    for number in batch.index.unique():
        rows = (batch.index == number).nonzero()[:, 0]
        group = (correct[rows].double(), batch.response_mask[rows] == 1)
        n, n_correct = others_with(contexts[rows], *group)
        k, a = others_with(units[rows], *group)
        variance = k * (n - k) * n_correct * (n - n_correct) / (n**2 * (n - 1)).clamp(min=1)
        z = (a - k * n_correct / n.clamp(min=1)) / variance.clamp(min=1e-9).sqrt()
        values[rows] = torch.tanh(torch.where(variance > 0, z, 0.0) / 2).float()
    return values


def others_with(labels: Tensor, correct: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[G, T]: how many other rollouts of the group have the label of the place, and how many of these are correct."""
    distinct, label = labels.unique(return_inverse=True)
    present = torch.zeros(len(labels), len(distinct), dtype=torch.double)
    present.scatter_reduce_(1, label, mask.double(), "amax")
    return present.sum(0)[label] - 1, (correct @ present)[label] - correct[:, None]


def z(batch: Batch, _: torch.Generator) -> Tensor:
    """Of each word, wherever it stands."""
    return leave_one_out_z(batch.responses, torch.zeros_like(batch.responses), batch)


def z_in_context(batch: Batch, _: torch.Generator) -> Tensor:
    """Of each word among the rollouts that have the word before it, after that word."""
    contexts = torch.zeros_like(batch.responses)
    contexts[:, 1:] = batch.responses[:, :-1] + 1
    size = int(batch.responses.max()) + 1
    return leave_one_out_z(contexts * size + batch.responses, contexts, batch)


ARMS = {
    "GRPO": Arm(lambda batch, _: grpo(batch)),
    "offset 0.2": added(constant(0.2)),
    "offset 0.5": added(constant(0.5)),
    "published": Arm(lambda batch, _: ktae(batch)),
    "paper": Arm(lambda batch, _: ktae(batch, preset="paper")),
    "no Fisher score": Arm(lambda batch, _: ktae(batch, fisher_weight=0)),
    "no information gain": Arm(lambda batch, _: ktae(batch, information_gain_weight=0)),
    "no term frequency": Arm(lambda batch, _: ktae(batch, term_frequency_weight=0)),
    "DAPO": Arm(lambda batch, _: grpo(batch), clip_high=0.28, drop_one_sided=True),
    "DAPO, published": Arm(lambda batch, _: ktae(batch), clip_high=0.28, drop_one_sided=True),
    "mean of V": added(lambda batch, _: mean_of_groups(batch, key_token_value(batch))),
    "shuffled V": added(shuffled),
    "z": added(z),
    "z, centred": added(centred(z)),
    "z, centred, offset 0.5": added(centred(z, 0.5)),
    "z in context, centred, offset 0.5": added(centred(z_in_context, 0.5)),
    "highest entropy": Arm(highest_entropy),
    "oracle": added(step_credit),
    "oracle, centred": added(centred(step_credit)),
    "oracle, centred, offset 0.5": added(centred(step_credit, 0.5)),
    "oracle, a third wrong": added(noisy_step_credit),
}

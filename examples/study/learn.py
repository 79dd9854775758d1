"""A trainer of its own in plain torch: supervised learning, then reinforcement learning with one of the arms."""

import copy
from typing import NamedTuple

import numpy as np
import torch
from credit import Arm, Batch, both_outcomes
from policy import Policy, Sampled, sample
from tasks import END, Problem, Task
from torch import Tensor

MINIBATCHES = 2
CLIP_LOW = 0.2
HELD_OUT_PROMPTS = 512


class Setting(NamedTuple):
    """What the arms that are compared have in common."""

    prompts: int = 16  # in a step
    rollouts: int = 16  # of each prompt
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0  # to the policy that training starts from


class Evaluation(NamedTuple):
    accuracy: float
    length: float
    entropy: float


def encode(task: Task, texts: list[list[str]]) -> Tensor:
    """Word numbers [len(texts), longest], filled with the end."""
    number = {word: i for i, word in enumerate(task.vocabulary)}
    ids = torch.full((len(texts), max(map(len, texts))), number[END])
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor([number[word] for word in text])
    return ids


def distributions(policy: Policy, prompts: Tensor, responses: Tensor) -> Tensor:
    """Log-probabilities of all words at each place of the responses [B, T, words]."""
    return policy(torch.cat([prompts, responses[:, :-1]], dim=1), last=responses.shape[1]).log_softmax(-1)


def log_probs_of(policy: Policy, prompts: Tensor, responses: Tensor) -> Tensor:
    """[B, T]"""
    return of_words(distributions(policy, prompts, responses), responses)


def of_words(log_probs: Tensor, responses: Tensor) -> Tensor:
    return log_probs.gather(2, responses[:, :, None])[:, :, 0]


def new_policy(task: Task) -> Policy:
    prompt_length = len(task.problem(np.random.default_rng(0)).prompt)
    return Policy(len(task.vocabulary), prompt_length + task.response_length)


def supervise(task: Task, updates: int, seed: int = 0) -> Policy:
    """A policy that imitates solutions."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    policy = new_policy(task)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=updates)
    for _ in range(updates):
        problems = [task.problem(rng) for _ in range(64)]
        solutions = [task.solution(problem, rng)[: task.response_length] for problem in problems]
        responses = encode(task, solutions)
        mask = torch.arange(responses.shape[1]) < torch.tensor([len(words) for words in solutions])[:, None]
        loss = -(log_probs_of(policy, encode(task, [p.prompt for p in problems]), responses) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return policy


def judge(task: Task, problems: list[Problem], sampled: Sampled) -> tuple[Tensor, Tensor]:
    """Whether each response is correct [B], and the credit of its steps [B, T]."""
    correct, credit = torch.zeros(len(problems)), torch.zeros(sampled.responses.shape)
    lengths = sampled.response_mask.sum(1).tolist()
    for row, (problem, ids) in enumerate(zip(problems, sampled.responses.tolist(), strict=True)):
        words = [task.vocabulary[i] for i in ids[: lengths[row]]]
        is_correct, steps = task.check(problem, words)
        correct[row], credit[row, : lengths[row]] = is_correct, torch.tensor(steps, dtype=torch.float)
    return correct, credit


def rollouts(policy: Policy, task: Task, problems: list[Problem], generator: torch.Generator | None) -> Sampled:
    prompts = encode(task, [problem.prompt for problem in problems])
    return sample(policy, prompts, task.response_length, task.vocabulary.index(END), generator)


def summary(correct: Tensor, sampled: Sampled) -> Evaluation:
    mask = sampled.response_mask
    entropy = (sampled.entropy * mask).sum() / mask.sum()
    return Evaluation(correct.mean().item(), mask.sum(1).float().mean().item(), entropy.item())


def evaluate(policy: Policy, task: Task, greedy: bool = False) -> Evaluation:
    """On prompts that are the same for every policy and not trained on."""
    rng = np.random.default_rng(2**32)
    problems = [task.problem(rng) for _ in range(HELD_OUT_PROMPTS)]
    sampled = rollouts(policy, task, problems, None if greedy else torch.Generator().manual_seed(0))
    return summary(judge(task, problems, sampled)[0], sampled)


class Targets(NamedTuple):
    """What a step's updates learn from, a row for each rollout."""

    prompts: Tensor
    sampled: Sampled
    advantages: Tensor
    mask: Tensor  # words that count in the loss
    reference: Tensor | None  # log-probabilities of the first policy, for the KL term


def reinforce(
    policy: Policy, task: Task, arm: Arm, setting: Setting, learning_rate: float, seed: int, steps: int
) -> list[Evaluation]:
    """Train in place; what the rollouts of each step were like. Prompts depend on the seed, not on the arm."""
    first_policy = copy.deepcopy(policy)
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    curve = []
    for _ in range(steps):
        index = torch.arange(setting.prompts).repeat_interleave(setting.rollouts)
        distinct = [task.problem(rng) for _ in range(setting.prompts)]
        problems = [distinct[number] for number in index.tolist()]
        sampled = rollouts(policy, task, problems, generator)
        correct, credit = judge(task, problems, sampled)
        curve.append(summary(correct, sampled))

        rewards = torch.zeros(sampled.responses.shape)
        rewards[torch.arange(len(rewards)), sampled.response_mask.sum(1) - 1] = correct
        batch = Batch(sampled.responses, sampled.response_mask, rewards, index, sampled.entropy, credit)
        advantages = arm.advantages(batch, generator)

        mask = sampled.response_mask.float()
        if arm.drop_one_sided:
            mask = mask * both_outcomes(batch)
        prompts = encode(task, [problem.prompt for problem in problems])
        with torch.no_grad():
            reference = log_probs_of(first_policy, prompts, sampled.responses) if setting.kl_coefficient else None
        targets = Targets(prompts, sampled, advantages, mask, reference)
        for minibatch in torch.arange(len(problems)).chunk(MINIBATCHES):
            update(policy, optimizer, arm, setting, targets, minibatch)
    return curve


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, arm: Arm, setting: Setting, targets: Targets, rows: Tensor
) -> None:
    """PPO's clipped loss, averaged over the words of the rows, and what the setting adds to it."""
    sampled, mask = targets.sampled, targets.mask
    lengths = sampled.response_mask.sum(1)
    optimizer.zero_grad()
    for part in rows[lengths[rows].argsort()].chunk(4):  # of about one length, to save padding
        shown = part, slice(int(lengths[part].max()))
        responses, a = sampled.responses[shown], targets.advantages[shown]
        log_probs = distributions(policy, targets.prompts[part], responses)
        log_prob = of_words(log_probs, responses)
        ratio = (log_prob - sampled.log_prob[shown]).exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + arm.clip_high)
        gain = torch.minimum(ratio * a, clipped * a)
        if setting.entropy_coefficient:
            gain = gain - setting.entropy_coefficient * (log_probs.exp() * log_probs).sum(-1)
        if targets.reference is not None:
            above = targets.reference[shown] - log_prob
            gain = gain - setting.kl_coefficient * (above.exp() - above - 1)  # GRPO's estimate of the divergence
        loss = -(gain * mask[shown]).sum() / mask[rows].sum().clamp(min=1)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()

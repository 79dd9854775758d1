"""A trainer of its own in plain torch: supervised learning, then reinforcement learning with one of the arms."""

from typing import NamedTuple

import numpy as np
import torch
from credit import Arm, Batch, both_outcomes
from policy import Policy, Sampled, sample
from tasks import END, Problem, Task
from torch import Tensor

PROMPTS, ROLLOUTS, MINIBATCHES = 16, 16, 2
CLIP_LOW = 0.2
HELD_OUT_PROMPTS = 512


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


def log_probs_of(policy: Policy, prompts: Tensor, responses: Tensor) -> Tensor:
    """[B, T]"""
    logits = policy(torch.cat([prompts, responses[:, :-1]], dim=1), last=responses.shape[1])
    return logits.log_softmax(-1).gather(2, responses[:, :, None])[:, :, 0]


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


def reinforce(policy: Policy, task: Task, arm: Arm, learning_rate: float, seed: int, steps: int) -> list[Evaluation]:
    """Train in place; what the rollouts of each step were like. Prompts depend on the seed, not on the arm."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    curve = []
    for _ in range(steps):
        problems = [problem for problem in (task.problem(rng) for _ in range(PROMPTS)) for _ in range(ROLLOUTS)]
        sampled = rollouts(policy, task, problems, generator)
        correct, credit = judge(task, problems, sampled)
        curve.append(summary(correct, sampled))

        rewards = torch.zeros(sampled.responses.shape)
        rewards[torch.arange(len(rewards)), sampled.response_mask.sum(1) - 1] = correct
        index = torch.arange(PROMPTS).repeat_interleave(ROLLOUTS)
        batch = Batch(sampled.responses, sampled.response_mask, rewards, index, sampled.entropy, credit)
        advantages = arm.advantages(batch, generator)

        mask = sampled.response_mask.float()
        if arm.drop_one_sided:
            mask = mask * both_outcomes(batch)
        prompts = encode(task, [problem.prompt for problem in problems])
        for minibatch in torch.arange(len(problems)).chunk(MINIBATCHES):
            update(policy, optimizer, arm, prompts, sampled, advantages, mask, minibatch)
    return curve


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    arm: Arm,
    prompts: Tensor,
    sampled: Sampled,
    advantages: Tensor,
    mask: Tensor,
    rows: Tensor,
) -> None:
    """PPO's clipped loss, averaged over the words of the rows."""
    lengths = sampled.response_mask.sum(1)
    optimizer.zero_grad()
    for part in rows[lengths[rows].argsort()].chunk(4):  # of about one length, to save padding
        longest = int(lengths[part].max())
        responses, old, a, m = (x[part, :longest] for x in (sampled.responses, sampled.log_prob, advantages, mask))
        ratio = (log_probs_of(policy, prompts[part], responses) - old).exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + arm.clip_high)
        loss = -(torch.minimum(ratio * a, clipped * a) * m).sum() / mask[rows].sum().clamp(min=1)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()

"""Batches for the tests: lists of rollouts in, the estimator's arguments out."""

import torch

from ktae import compute_ktae_advantage


def make_batch(rollouts, rewards, index, width=None):
    """Right-padded arguments of the estimator; the reward stands at each rollout's last token."""
    width = width or max(map(len, rollouts), default=0)
    responses = torch.zeros(len(rollouts), width, dtype=torch.long)
    mask = torch.zeros(len(rollouts), width)
    token_level_rewards = torch.zeros(len(rollouts), width, dtype=torch.float64)
    for row, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True)):
        responses[row, : len(rollout)] = torch.tensor(rollout, dtype=torch.long)
        mask[row, : len(rollout)] = 1
        token_level_rewards[row, max(len(rollout) - 1, 0)] = reward
    return {
        "token_level_rewards": token_level_rewards,
        "response_mask": mask,
        "responses": responses,
        "index": list(index),
    }


def random_batch(groups=4, size=6, width=9, vocabulary=12, seed=0):
    """Rows of the groups interleaved, lengths 1..width, about half of the rollouts correct."""
    generator = torch.Generator().manual_seed(seed)
    rows = groups * size
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    responses = torch.randint(0, vocabulary, (rows, width), generator=generator)
    mask = (torch.arange(width) < lengths[:, None]).long()
    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, 0] = torch.randint(0, 2, (rows,), generator=generator).double()
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "responses": responses,
        "index": [f"prompt-{row % groups}" for row in range(rows)],
    }


def advantages(**arguments):
    return compute_ktae_advantage(**arguments)[0]


def assert_same(actual, expected):
    """Equal up to the order in which float64 sums are taken."""
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)

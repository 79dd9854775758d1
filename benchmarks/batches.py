"""Batches to measure on: real rollouts, and Zipf-distributed ids (uniform ones would have nothing to count)."""

from pathlib import Path

import numpy as np
import torch

VOCABULARY = 150_000
DATA = Path(__file__).parent / "data" / "amc23_g16.npz"


def real():
    """80 groups of 16 real rollouts, 545 k tokens, T = 1024; 40 of the groups have both outcomes."""
    data = np.load(DATA)
    rewards = torch.zeros(data["responses"].shape)
    rewards[:, 0] = torch.from_numpy(data["rewards"])
    responses, mask = torch.from_numpy(data["responses"]), torch.from_numpy(data["response_mask"])
    return rewards, mask, responses, data["uid"].astype(str).astype(object)


def zipf(groups, size, width, mean_length, seed=0, exponent=1.0):
    """Ids with probability proportional to 1 / rank ** exponent; log-normal lengths; groups of any accuracy."""
    generator = np.random.default_rng(seed)
    rows = groups * size
    lengths = generator.lognormal(np.log(mean_length) - 0.125, 0.5, rows).clip(1, width).astype(int)
    cumulative = np.cumsum(1 / np.arange(1, VOCABULARY + 1) ** exponent)
    mask = np.arange(width) < lengths[:, None]
    responses = np.zeros((rows, width), dtype=np.int64)
    responses[mask] = np.searchsorted(cumulative, generator.random(mask.sum()) * cumulative[-1])
    rewards = np.zeros((rows, width), dtype=np.float32)
    correct = generator.random(rows) < np.repeat(generator.random(groups), size)
    rewards[np.arange(rows), lengths - 1] = correct
    uid = np.array([f"prompt-{row // size}" for row in range(rows)], dtype=object)
    return torch.from_numpy(rewards), torch.from_numpy(mask.astype(np.int64)), torch.from_numpy(responses), uid

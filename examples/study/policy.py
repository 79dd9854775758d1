"""A decoder-only language model small enough to train in seconds, and how to sample from it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 64, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, cache: "Cache | None" = None) -> Tensor:
        """x [B, T, WIDTH]; with a cache these are the tokens after those in it."""
        batch, length, _ = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # [B, HEADS, T, WIDTH / HEADS] each
        if cache is not None:
            key, value = cache.append(key, value)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm_mlp(x))


class Cache:
    """Keys and values of a layer."""

    def __init__(self, batch: int, longest: int) -> None:
        self.keys_and_values = torch.empty(2, batch, HEADS, longest, WIDTH // HEADS)
        self.length = 0

    def append(self, key: Tensor, value: Tensor) -> Tensor:
        """All keys and values up to these."""
        end = self.length + key.shape[2]
        self.keys_and_values[:, :, :, self.length : end] = torch.stack([key, value])
        self.length = end
        return self.keys_and_values[:, :, :, :end]

    def keep(self, rows: Tensor) -> None:
        self.keys_and_values = self.keys_and_values[:, rows]


class Policy(nn.Module):
    def __init__(self, n_words: int, longest: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(n_words, WIDTH), nn.Embedding(longest, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_words)

    def forward(
        self, ids: Tensor, start: int = 0, caches: list[Cache] | None = None, last: int | None = None
    ) -> Tensor:
        """Logits after each of the ids [B, T], or the last so many of them; `start` ids are in the caches."""
        x = self.word(ids) + self.position.weight[start : start + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        return self.head(self.norm(x if last is None else x[:, -last:]))


class Sampled(NamedTuple):
    responses: Tensor  # [B, T]; after the end, the end again
    response_mask: Tensor  # [B, T] 1 up to the end
    log_prob: Tensor  # [B, T]
    entropy: Tensor  # [B, T] of the distributions that the words were drawn from


@torch.inference_mode()
def sample(
    policy: Policy, prompts: Tensor, longest: int, end: int, generator: torch.Generator | None = None
) -> Sampled:
    """Responses to prompts [B, P]; without a generator the likeliest words."""
    batch = len(prompts)
    words = torch.full((batch, longest), end)
    mask, log_prob, entropy = torch.zeros_like(words), torch.zeros(batch, longest), torch.zeros(batch, longest)
    caches = [Cache(batch, prompts.shape[1] + longest) for _ in policy.blocks]
    rows, ids, start = torch.arange(batch), prompts, 0  # rows are those in the caches; some may have ended
    for t in range(longest):
        log_probs = policy(ids, start, caches, last=1)[:, 0].log_softmax(-1)
        start += ids.shape[1]
        if generator is None:
            word = log_probs.argmax(-1)
        else:
            cumulative = log_probs.exp().cumsum(-1)
            draw = torch.rand(batch, generator=generator)[rows, None] * cumulative[:, -1:]
            word = torch.searchsorted(cumulative, draw, right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)
        running = words[rows, t - 1] != end if t else torch.ones(batch, dtype=torch.bool)
        words[rows, t] = torch.where(running, word, end)
        mask[rows, t] = running.long()
        log_prob[rows, t] = log_probs.gather(1, word[:, None])[:, 0]
        entropy[rows, t] = -(log_probs.exp() * log_probs).sum(-1)

        running &= word != end
        if not running.any():
            break
        if running.sum() < 0.8 * len(rows):  # compute no more for those that have ended
            rows = rows[running]
            for cache in caches:
                cache.keep(running)
        ids = words[rows, t][:, None]
    width = int(mask.sum(1).max())
    return Sampled(*(x[:, :width] for x in (words, mask, log_prob, entropy)))

"""From logits to a token, the randomness handed in. No generator lives here: same logits, same noise, same token.

Sampling is the exponential race over the top k: among the k likeliest tokens, in order, the one with the greatest
probability / noise wins, noise being independent draws of the unit exponential. That is the reference's own method, so
the same noise gives the reference's tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The greatest of probabilities [B, V] in order, and their tokens: both [B, k].
Rank = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def ranked(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """By the library's own operation, which compiles and captures."""
    return torch.topk(probs, count, dim=-1)


def ranked_by_sorting(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same on a processor, six to nine times as quick.

    Each probability and its token become one whole number, since numpy sorts those by vectors; the bits of floats that
    are not negative are in the floats' own order. Equal probabilities stand in the order of their tokens.
    """
    wide: NDArray[np.int64] = probs.numpy().view(np.int32).astype(np.int64)
    keys = (-wide << 32) + np.arange(wide.shape[-1])
    keys.sort(axis=-1)
    ids = torch.from_numpy(keys[..., :count] & 0xFFFFFFFF)
    return probs.gather(-1, ids), ids


class Temperature:
    """The temperatures [B, 1] of a step, made ready once for all its codes; 0 takes the likeliest."""

    def __init__(self, temp: Tensor) -> None:
        self.greedy = temp <= 0
        self.divisor = temp + self.greedy  # 1 where it is 0


def sample(logits: Tensor, temp: Temperature, noise: Tensor, rank: Rank = ranked) -> Tensor:
    """One token per row: [B] int64. logits [B, V]; noise [B, k].

    A smaller top k for one row is noise of infinity beyond its k.
    """
    wide = logits.float()
    probs = torch.softmax(wide / temp.divisor, dim=-1)
    top, ids = rank(probs, noise.shape[-1])
    won = (top / noise).argmax(dim=-1, keepdim=True)
    drawn = ids.gather(-1, won)
    return torch.where(temp.greedy, wide.argmax(dim=-1, keepdim=True), drawn).squeeze(-1)


def likeliest(logits: Tensor) -> Tensor:
    """`sample` where every row has temperature 0: [B] int64."""
    return logits.float().argmax(dim=-1)


class Noise:
    """The noise of one stream: a function of (seed, step) alone, whatever the batch and whatever came before.

    Philox counts in blocks, keyed by the seed and starting at the step, so that a stream can be moved to another lane,
    machine or batch, or be resumed, and speak on as it would have.
    """

    def __init__(self, seed: int) -> None:
        self._key = seed % (1 << 64)

    def fill(self, step: int, text: NDArray[np.float32], audio: NDArray[np.float32] | None) -> None:
        """Writes unit exponentials into text [k] and, for a whole step, audio [K, k], in place."""
        draws = np.random.Generator(np.random.Philox(key=self._key, counter=step << 64))
        draws.standard_exponential(dtype=np.float32, out=text)
        if audio is not None:
            draws.standard_exponential(dtype=np.float32, out=audio)


def limit_top_k(noise: NDArray[np.float32], top_k: int) -> None:
    """Bars all ranks from `top_k` on (last axis), in place."""
    noise[..., top_k:] = np.inf

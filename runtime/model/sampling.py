"""From logits to a token, the randomness handed in. No generator lives here: same logits, same noise, same token.

Sampling is the exponential race over the top k: among the k likeliest tokens, in order, the one with the greatest
probability / noise wins, noise being independent draws of the unit exponential. That is the reference's own method, so
the same noise gives the reference's tokens.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Draw(Protocol):
    """The race for every row's token, at temperatures that were made ready once for all codes of a step."""

    def __call__(self, logits: Tensor, noise: Tensor) -> Tensor:
        """One token per row: [B] int64. logits [B, V]; noise [B, k].

        A smaller top k for one row is noise of infinity beyond its k.
        """


class Race:
    """By the library's own operations, which compile and capture."""

    def __init__(self, temp: Tensor) -> None:
        """temp: [B, 1]; 0 takes the likeliest."""
        self._greedy = temp <= 0
        self._divisor = temp + self._greedy  # 1 where it is 0

    def __call__(self, logits: Tensor, noise: Tensor) -> Tensor:
        wide = logits.float()
        probs = torch.softmax(wide / self._divisor, dim=-1)
        top, ids = torch.topk(probs, noise.shape[-1], dim=-1)
        won = (top / noise).argmax(dim=-1, keepdim=True)
        drawn = ids.gather(-1, won)
        return torch.where(self._greedy, wide.argmax(dim=-1, keepdim=True), drawn).squeeze(-1)


class SortedRace:
    """The same on a processor, where numpy sorts whole numbers by vectors and a look at the temperatures is free."""

    def __init__(self, temp: Tensor) -> None:
        greedy = temp <= 0
        self._greedy = greedy.squeeze(1) if bool(greedy.any()) else None
        self._divisor = temp + greedy
        self._lanes = np.arange(len(temp))

    def __call__(self, logits: Tensor, noise: Tensor) -> Tensor:
        wide = logits.float()
        pairs = ranked(torch.softmax(wide / self._divisor, dim=-1).numpy())[:, : noise.shape[-1]]
        won = torch.div(torch.from_numpy(probabilities(pairs)), noise).numpy().argmax(axis=-1)
        drawn = torch.from_numpy(pairs[self._lanes, won, 0].astype(np.int64))
        return drawn if self._greedy is None else torch.where(self._greedy, likeliest(wide), drawn)


def ranked(probs: NDArray[np.float32]) -> NDArray[np.int32]:
    """The tokens of probabilities [B, V] in order, the greatest first, each with its key: [B, V, 2].

    Token and key are one whole number of 64 bits, the key in front, which is how they are sorted. The bits of floats
    that are not negative are in the floats' own order. Equal probabilities stand in the order of their tokens.
    """
    pairs = np.empty((*probs.shape, 2), "<i4")
    pairs[..., 0] = np.arange(probs.shape[-1], dtype=np.int32)
    np.negative(probs.view(np.int32), out=pairs[..., 1])
    pairs.view("<i8").sort(axis=1)
    return pairs


def probabilities(pairs: NDArray[np.int32]) -> NDArray[np.float32]:
    """Those of ranked tokens [B, k, 2]: [B, k]."""
    return np.negative(pairs[..., 1]).view(np.float32)


def likeliest(logits: Tensor) -> Tensor:
    """The token of every row at temperature 0: [B] int64."""
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

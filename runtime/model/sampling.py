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

LEAST_NOISE = np.finfo(np.float32).tiny  # A draw of 0 has no logarithm.


class Draw(Protocol):
    """A race for every row's token, its temperatures and noise made ready once for all codes of a step."""

    def __call__(self, number: int, logits: Tensor) -> Tensor:
        """One token per row by the noise of that number: [B] int64. logits [B, V].

        A smaller top k for one row is noise of infinity beyond its k.
        """


class MakeDraw(Protocol):
    def __call__(self, temp: Tensor, noise: Tensor) -> Draw:
        """temp: [B, 1]; 0 takes the likeliest. noise: [B, N, k]."""


class Race:
    """By the library's own operations, which compile and capture."""

    def __init__(self, temp: Tensor, noise: Tensor) -> None:
        self._greedy = temp <= 0
        self._divisor = temp + self._greedy  # 1 where it is 0
        self._noise = noise

    def __call__(self, number: int, logits: Tensor) -> Tensor:
        wide, noise = logits.float(), self._noise[:, number]
        probs = torch.softmax(wide / self._divisor, dim=-1)
        top, ids = torch.topk(probs, noise.shape[-1], dim=-1)
        won = (top / noise).argmax(dim=-1, keepdim=True)
        drawn = ids.gather(-1, won)
        return torch.where(self._greedy, wide.argmax(dim=-1, keepdim=True), drawn).squeeze(-1)


class SortedRace:
    """The same on a processor, where numpy sorts whole numbers by vectors and calls cost half as much.

    It runs on logarithms: the greatest p / noise is where (greatest logit - logit) / temperature + log(noise) is least.
    So neither p nor the sum that makes it one is wanted, and the noise of all codes is one pass.
    """

    def __init__(self, temp: Tensor, noise: Tensor) -> None:
        temps = temp.numpy()
        is_drawn = temps > 0
        self._handicap = np.maximum(noise.numpy(), LEAST_NOISE)
        np.log(self._handicap, out=self._handicap)
        if is_drawn.all():
            self._divisor = temps
        else:  # The likeliest runs alone. A division by infinity let tokens infinitely far behind it win.
            self._divisor = np.where(is_drawn, temps, np.float32(1))
            self._handicap[~is_drawn[:, 0]] = np.inf
            self._handicap[~is_drawn[:, 0], :, 0] = 0
        self._lanes = np.arange(len(temps))
        self._ranks: Ranks | None = None

    def __call__(self, number: int, logits: Tensor) -> Tensor:
        wide = logits.float().numpy()
        if self._ranks is None or self._ranks.shape != wide.shape:
            self._ranks = Ranks(*wide.shape)
        tokens, behind = self._ranks.of(wide)
        handicap = self._handicap[:, number]
        times = behind[:, : handicap.shape[1]] / self._divisor
        times += handicap
        return torch.from_numpy(tokens[self._lanes, times.argmin(axis=1)].astype(np.int64))


class Ranks:
    """Room to put the tokens of B rows of V logits in order, used again for every code."""

    def __init__(self, rows: int, card: int) -> None:
        self.shape = rows, card
        # Token and distance are one whole number of 64 bits, the distance in front, which is how they are sorted.
        self._pairs = np.empty((rows, card), "<i8")
        self._tokens = self._pairs.view("<i4").reshape(rows, card, 2)[..., 0]
        self._behind = self._pairs.view("<f4").reshape(rows, card, 2)[..., 1]
        self._every = np.arange(card, dtype=np.int32)

    def of(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Every row's tokens, the likeliest first, and how far each lies behind that: [B, V], until the next call.

        The bits of floats that are not negative are in the floats' own order. Equals stand in order of their tokens.
        """
        np.subtract(np.maximum.reduce(logits, axis=1, keepdims=True), logits, out=self._behind)
        np.copyto(self._tokens, self._every)
        self._pairs.sort(axis=1)
        return self._tokens, self._behind


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

"""Silence: how long a stream is silent before its first sound, cutting that short, and ending without a click.

It owns no formats and no clock; everything is samples in, samples out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.audio import SOURCE_RATE, Samples


def leading_silence_s(samples: Samples, rate: int = SOURCE_RATE, threshold: float = 0.01) -> float | None:
    """Seconds until the sound begins, None where it never does.

    The method of Coval's public benchmark (ttfa.py): windows of 10 ms every 1 ms, half a window of padding, mean
    removed, the first with RMS above the threshold; its centre counts.
    """
    window, hop = rate // 100, rate // 1000
    if not len(samples):
        return None
    padded = np.pad(np.asarray(samples, np.float64), window // 2, mode="edge")
    hit = _first_loud(padded, window, hop, threshold)
    return None if hit is None else hit * hop / rate


def _first_loud(samples: NDArray[np.float64], window: int, hop: int, threshold: float) -> int | None:
    """Index of the first window (every `hop` samples) whose RMS about its mean is above the threshold."""
    if len(samples) < window:
        return None
    sums = np.concatenate([[0.0], np.cumsum(samples)])
    squares = np.concatenate([[0.0], np.cumsum(samples * samples)])
    starts = np.arange(0, len(samples) - window + 1, hop)
    mean = (sums[starts + window] - sums[starts]) / window
    power = (squares[starts + window] - squares[starts]) / window - mean * mean
    loud = np.flatnonzero(power > threshold * threshold)
    return int(loud[0]) if len(loud) else None


class LeadTrimmer:
    """Drops the silence before a stream's first sound, all but `keep_s` of it.

    It adds no delay: a frame that holds sound leaves at once, from just before its onset. The threshold (0.002: -54 dB)
    is far below the one that benchmarks listen at, so that a soft consonant is kept, and nothing after `max_trim_s` is
    ever dropped. `trimmed_s` says by how much word times have to move.
    """

    def __init__(
        self,
        rate: int = SOURCE_RATE,
        *,
        keep_s: float = 0.02,
        threshold: float = 0.002,
        max_trim_s: float = 2.0,
        fade_s: float = 0.002,
    ) -> None:
        self._rate, self._threshold = rate, threshold
        self._keep, self._fade = int(keep_s * rate), int(fade_s * rate)
        self._budget = int(max_trim_s * rate)
        self._window, self._hop = rate // 200, rate // 1000
        self._held = np.zeros(0, np.float32)
        self._trimmed = 0
        self.open = False  # once it is, `push` gives back what it gets

    @property
    def trimmed_s(self) -> float:
        return self._trimmed / self._rate

    def push(self, frame: Samples) -> Samples:
        """What of the frame (and of the little held before it) is to be heard; empty while all is silence."""
        if self.open:
            return frame
        held = np.concatenate([self._held, frame])
        hit = _first_loud(held.astype(np.float64), self._window, self._hop, self._threshold)
        onset = len(held) - self._window if hit is None else hit * self._hop
        drop = min(max(0, onset - self._keep), self._budget - self._trimmed)
        self._trimmed += drop
        rest = held[drop:]
        self.open = hit is not None or self._trimmed >= self._budget
        if not self.open:
            self._held = rest
            return np.zeros(0, np.float32)
        self._held = np.zeros(0, np.float32)
        return fade_in(rest, self._fade) if self._trimmed else rest

    def finish(self) -> Samples:
        """What is still held: a stream too soft ever to be heard keeps its last few milliseconds."""
        rest, self._held, self.open = self._held, np.zeros(0, np.float32), True
        return rest


def fade_in(samples: Samples, length: int) -> Samples:
    """The samples with their first `length` raised from zero along half a cosine."""
    faded = samples.copy()
    n = min(length, len(samples))
    faded[:n] *= 0.5 - 0.5 * np.cos(np.pi * (np.arange(n, dtype=np.float32) + 0.5) / max(length, 1))
    return faded


def fade_out(samples: Samples, length: int) -> Samples:
    """The samples with their last `length` lowered to zero: how a stream that is cut off ends without a click."""
    return fade_in(samples[::-1], length)[::-1]


def end_ramp(last: float, rate: int = SOURCE_RATE, length_s: float = 0.005) -> Samples:
    """A few milliseconds from the last sample down to zero, or nothing where it is silent already.

    Appended after the last frame it needs no look-ahead, so no frame has to be held back for it.
    """
    if abs(last) < 1e-3:
        return np.zeros(0, np.float32)
    n = int(length_s * rate)
    return (last * (0.5 + 0.5 * np.cos(np.pi * (np.arange(n) + 1.0) / n))).astype(np.float32)

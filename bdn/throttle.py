"""Owns how many reads this node keeps in flight at the origin: more while that helps, half after a refusal.

Additive increase, multiplicative decrease on 429 and 503 (Chiu, Jain 1989), and in between the rate of one read tells
whether another would only take from its neighbours: on a shared origin, many reads at once all end late, and until
the first has ended no peer has anything to pass on (50 nodes x 8 reads: first chunk after 0.67 s; x 2: 0.17 s).
"""

from __future__ import annotations

START = 2
ENOUGH = 0.8  # One more read is tried while reads run at this part of the best rate seen.
CROWDED = 0.5  # Below it they are taking from one another: one less.
FADE = 0.98  # The best rate is forgotten slowly, or a lucky read would hold the others to it for ever.


class Throttle:
    """`slots` is how many reads may be in flight now, from 1 to `slots_max`."""

    def __init__(self, slots_max: int) -> None:
        self._max = slots_max
        self.slots = min(START, slots_max)
        self.pause_until = 0.0
        self._best = 0.0
        self._round: list[float] = []

    def done(self, size: int, seconds: float) -> None:
        """A read ended well."""
        rate = size / max(seconds, 1e-9)
        self._best = max(self._best * FADE, rate)
        self._round.append(rate)
        if len(self._round) < self.slots:
            return
        mean = sum(self._round) / len(self._round)
        self._round.clear()
        if mean >= ENOUGH * self._best:
            self.slots = min(self._max, self.slots + 1)
        elif mean < CROWDED * self._best:
            self.slots = max(1, self.slots - 1)

    def refused(self, now: float, retry_after_s: float | None) -> None:
        """The origin asked for less (429, 503) or went away: half as many, and none before it said."""
        self.slots = max(1, self.slots // 2)
        self._round.clear()
        if retry_after_s is not None:
            self.pause_until = max(self.pause_until, now + retry_after_s)

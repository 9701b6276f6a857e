"""Owns how many reads this node keeps in flight at the origin: more while that helps, half after a refusal.

Additive increase, multiplicative decrease on 429 and 503 (Chiu, Jain 1989), and in between the rate of one read tells
whether another would only take from its neighbours: on a shared origin, many reads at once all end late, and until
the first has ended no peer has anything to pass on (50 nodes, 40 Gbit/s, the first chunk with 8 reads a node: after
0.67 s; with 2: 0.20 s; with 1: 0.13 s).
"""

from __future__ import annotations

READS_AT_FIRST = 64  # Of a whole burst together: about what fills 40 Gbit/s at the 90 MB/s of one read.
READS_ADDED = 8  # Of a whole burst together after each round: all adding one at the same moment would double the load.
ENOUGH = 0.8  # More reads are tried while reads run at this part of the best rate seen.
CROWDED = 0.5  # Below it they are taking from one another: one less.
FADE = 0.98  # The best rate is forgotten slowly, or a lucky read would hold the others to it for ever.


class Throttle:
    """`slots` is how many reads may be in flight now, from 1 to `slots_max`.

    phase: from 0 to 1, another for each node, so that they do not all add a read in the same round. share, in the
    methods: the part of a burst's reads that is this node's, as well as it knows.
    """

    def __init__(self, slots_max: int, phase: float = 0.0) -> None:
        self._max = slots_max
        self.slots = 1
        self.pause_until = 0.0
        self._best = 0.0
        self._begun = False
        self._due = phase
        """Reads to add; a whole one is added."""
        self._round: list[float] = []

    def begin(self, share: float) -> None:
        """Before the first read: start with this node's part of what a burst of all should start with."""
        if not self._begun:
            self._begun = True
            self.slots = max(1, min(self._max, round(READS_AT_FIRST * share)))

    def done(self, size: int, seconds: float, share: float) -> None:
        """A read ended well."""
        rate = size / max(seconds, 1e-9)
        self._best = max(self._best * FADE, rate)
        self._round.append(rate)
        if len(self._round) < self.slots:
            return
        mean = sum(self._round) / len(self._round)
        self._round.clear()
        if mean >= ENOUGH * self._best:
            self._due = min(self._due + READS_ADDED * share, READS_ADDED)
            self.slots = min(self._max, self.slots + int(self._due))
            self._due %= 1.0
        elif mean < CROWDED * self._best:
            self.slots = max(1, self.slots - 1)

    def refused(self, now: float, retry_after_s: float | None) -> None:
        """The origin asked for less (429, 503) or went away: half as many, and none before it said."""
        self._begun = True
        self.slots = max(1, self.slots // 2)
        self._round.clear()
        if retry_after_s is not None:
            self.pause_until = max(self.pause_until, now + retry_after_s)

"""Owns how many reads this node keeps in flight at the origin: more while that helps, half after a refusal.

Additive increase, multiplicative decrease on 429 and 503 (Chiu, Jain 1989), and in between the rate of one read tells
whether another would only take from its neighbours: on a shared origin, many reads at once all end late, and until
the first has ended no peer has anything to pass on (50 nodes, 40 Gbit/s, the first chunk with 8 reads a node: after
0.67 s; with 2: 0.20 s; with 1: 0.13 s). So a burst begins with few and doubles until that costs reads their speed, as
TCP does: eight nodes that began with 64 reads of 64 chunks at 37.5 MB/s had the first chunk when they had the last.
"""

from __future__ import annotations

READS_AT_FIRST = 16  # Of a burst together, and never fewer but after a refusal. More, at a slow origin, all end last;
# with 8, a node's own reads were crowded out on its link by its eight from peers, and the last owner made all wait.
READS_QUICKLY = 64  # Doubled up to so many, of a burst together: about 40 Gbit/s at the 90 MB/s of one read.
READS_ADDED = 8  # Of a whole burst together after each round: all adding one at the same moment would double the load.
ENOUGH = 0.8  # More reads are tried while reads run at this part of the best rate seen.
CROWDED = 0.6  # Below it they are taking from one another: as many as the best rate leaves room for.
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
        self._begun, self._doubling = False, True
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
            doubled = self.slots if self._doubling and 2 * self.slots <= READS_QUICKLY * share else 0
            self._due = min(self._due + max(READS_ADDED * share, doubled), READS_ADDED)
            self.slots = min(self._max, self.slots + int(self._due))
            self._due %= 1.0
        elif mean < CROWDED * self._best:
            self._doubling = False
            least = min(self.slots, round(READS_AT_FIRST * share))
            self.slots = max(1, least, round(self.slots * mean / self._best))

    def refused(self, now: float, retry_after_s: float | None) -> None:
        """The origin asked for less (429, 503) or went away: half as many, and none before it said."""
        self._begun, self._doubling = True, False
        self.slots = max(1, self.slots // 2)
        self._round.clear()
        if retry_after_s is not None:
            self.pause_until = max(self.pause_until, now + retry_after_s)

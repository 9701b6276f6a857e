"""Owns which free block of memory is filled next: the one given back last, or the one given back first.

The last is still in this core's cache and cheaper to fill, as long as whoever wrote it to the disk shares that cache.
A virtual disk's thread on a core that does not leaves every line of a block in two caches, and each must be called
back before it is written again: on such minutes the copy out of the socket costs five times as much. A block that rests
for as long as 32 MiB go elsewhere has left those caches. Which of the two holds changes by the minute and is nowhere to
be read, so it is measured. Decides only: no memory, no clock here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

PROBE_EVERY = 16  # Of so many blocks one is taken the other way, to hear of a change: it costs 1 % at most.
RESTED_TIMES = 0.8  # A rested block must be that much cheaper: where both cost the same, noise is not to choose.
SAMPLES = 5  # The median of so many is believed; a single one may have met an interrupt.


class Blocks:
    """Free blocks of one size, named by numbers."""

    def __init__(self, blocks: Iterable[int]) -> None:
        self._free = deque(blocks)
        """Rested longest on the left."""
        self._touched: set[int] = set()
        """Filled before: the first time costs page faults, which say nothing about caches."""
        self._rested: dict[int, bool] = {}
        """Of the blocks in use whose cost counts: how each was taken."""
        self._costs: dict[bool, deque[float]] = {rested: deque(maxlen=SAMPLES) for rested in (False, True)}
        self._better: bool | None = None
        """Which way is cheaper, once enough of both are measured; looked at again with each block of the other way."""
        self._taken = 0

    def take(self) -> int | None:
        """A free block, or None where all are in use."""
        if not self._free:
            return None
        self._taken += 1
        rested = self._next_rested()
        block = self._free.popleft() if rested else self._free.pop()
        if block in self._touched:
            self._rested[block] = rested
        self._touched.add(block)
        return block

    def give_back(self, block: int) -> None:
        self._rested.pop(block, None)
        self._free.append(block)

    def cost(self, block: int, seconds_per_byte: float) -> None:
        """What it took to fill a block that is still in use."""
        if block in self._rested:
            rested = self._rested[block]
            self._costs[rested].append(seconds_per_byte)
            if rested is not self._better and all(len(costs) == SAMPLES for costs in self._costs.values()):
                self._better = _median(self._costs[True]) < RESTED_TIMES * _median(self._costs[False])

    def _next_rested(self) -> bool:
        if self._better is None:
            return self._taken % 2 == 0
        return self._better if self._taken % PROBE_EVERY else not self._better


def _median(costs: deque[float]) -> float:
    return sorted(costs)[len(costs) // 2]

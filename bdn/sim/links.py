"""Owns what carries bytes in the simulator: pipes that share their rate equally, and transfers through several pipes.

A pipe (a NIC's direction, a disk, a zone's uplink, the origin's egress) gives each of its transfers an equal share at
every moment: processor sharing, kept in virtual time so that an event costs O(log n) and not O(n). A transfer is in
all its pipes at once and done when the last of them has carried its bytes. Against exact max-min fairness this lets
a fast sender finish early towards a slow receiver, as if the network buffered between them; no pipe ever carries
more than its rate, and none idles while a transfer through it is unfinished there.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence

from bdn.sim.loop import SimLoop

_TINY = 1e-3  # bytes: rounding of virtual time, far below one real byte


class Pipe:
    """`rate` bytes/s in all, at most `flow_rate` bytes/s for one transfer."""

    __slots__ = ("_heap", "_loop", "_seq", "_t", "_timer_at", "_v", "carried", "flow_rate", "n", "name", "rate")

    def __init__(self, loop: SimLoop, name: str, rate: float, flow_rate: float = float("inf")) -> None:
        self._loop, self.name, self.rate, self.flow_rate = loop, name, rate, flow_rate
        self._heap: list[tuple[float, int, Transfer, int]] = []
        self._v = self._t = 0.0
        self._seq = self.n = 0
        self._timer_at = float("inf")
        self.carried = 0.0
        """Bytes of finished and abandoned transfers, as the pipe saw them."""

    def enter(self, transfer: Transfer, index: int) -> float:
        """Take a transfer in; returns the virtual time at which it began here."""
        self._advance()
        end = self._v + transfer.size
        self._seq += 1
        self.n += 1
        heapq.heappush(self._heap, (end, self._seq, transfer, index))
        if self._heap[0][1] == self._seq:
            self._arm()
        return self._v

    def abandon(self, began: float, size: int) -> float:
        """An unfinished transfer goes away; returns how many of its bytes this pipe had carried."""
        self._advance()
        carried = min(float(size), self._v - began)
        self.n -= 1
        self.carried += carried
        if self.n:
            self._arm()
        return carried

    def carried_since(self, began: float) -> float:
        """How many bytes of a transfer that began here at this virtual time have come through. Changes nothing."""
        return self._v + (self._loop._now - self._t) * self._speed() - began

    def set_rate(self, rate: float) -> None:
        self._advance()
        self.rate = rate
        if self._heap:
            self._arm()

    def _speed(self) -> float:
        return min(self.rate / self.n, self.flow_rate)

    def _advance(self) -> None:
        now = self._loop._now
        if self.n and now > self._t:
            self._v += (now - self._t) * self._speed()
        self._t = now

    def _arm(self) -> None:
        """Wake up when the first transfer may be done. A pipe that fills up meanwhile wakes early and arms again."""
        heap = self._heap
        while heap and heap[0][2].over:
            heapq.heappop(heap)
        if not heap:
            return
        at = self._t + max(0.0, heap[0][0] - self._v) / self._speed()
        if at < self._timer_at:
            self._timer_at = at
            self._loop.call_at(at, self._wake, at)

    def _wake(self, at: float) -> None:
        if at != self._timer_at:
            return
        self._timer_at = float("inf")
        self._advance()
        heap, limit = self._heap, self._v + _TINY
        while heap and (heap[0][0] <= limit or heap[0][2].over):
            _, _, transfer, index = heapq.heappop(heap)
            if not transfer.over:
                self.n -= 1
                self.carried += transfer.size
                transfer.passed(index)
        if heap:
            self._arm()


class Transfer:
    """`size` bytes on their way through `pipes`. Await `done`; `abort` ends it early."""

    __slots__ = ("_began", "_left", "_pipes", "came", "done", "over", "size")

    def __init__(self, loop: SimLoop, size: int, pipes: Sequence[Pipe]) -> None:
        self.size, self._pipes = size, pipes
        self.done: asyncio.Future[None] = asyncio.Future(loop=loop)
        self.over = False
        self.came = 0
        """Whole bytes that came through every pipe, once it is over."""
        self._left = len(pipes)
        self._began: list[float | None] = [pipe.enter(self, i) for i, pipe in enumerate(pipes)]

    @property
    def so_far(self) -> int:
        """Whole bytes that have come through every pipe until now."""
        if self.over:
            return self.came
        began = zip(self._pipes, self._began, strict=True)
        return int(min(self.size, *(pipe.carried_since(at) for pipe, at in began if at is not None)))

    def passed(self, index: int) -> None:
        self._began[index] = None
        self._left -= 1
        if not self._left:
            self.over = True
            self.came = self.size
            if not self.done.done():
                self.done.set_result(None)

    def abort(self, why: BaseException | None) -> int:
        """Stop it; whole bytes that came through every pipe. `why` is raised to whoever waits (None: nobody does)."""
        if self.over:
            return self.came
        self.over = True
        through = float(self.size)
        for pipe, began in zip(self._pipes, self._began, strict=True):
            if began is not None:
                through = min(through, pipe.abandon(began, self.size))
        self.came = int(through)
        if why is not None and not self.done.done():
            self.done.set_exception(why)
        return self.came

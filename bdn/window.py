"""Owns how much a node has in flight, and who may start next: strict priority, then equal shares by bytes.

Start-time fair queuing (Goyal, Vin, Cheng 1996): a pull that has had little starts before one that has had much, so a
3 GB model is not starved by a 140 GB one on the same node; and a waiting container goes before any preheat.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Window:
    """At most `slots` chunks and `bytes_max` bytes at once; one chunk is always let in, however large."""

    def __init__(self, *, slots: int, bytes_max: int) -> None:
        self.slots, self._bytes_max = slots, bytes_max
        self.used_slots = self.used_bytes = 0
        self._queue: list[tuple[int, float, int, int, asyncio.Future[None]]] = []
        self._seq = 0
        self._virtual = 0.0
        self._finish: dict[str, float] = {}

    @asynccontextmanager
    async def room(self, size: int, priority: int, payer: str) -> AsyncIterator[None]:
        """Wait for room for `size` bytes, charged to `payer`; given back on leaving the block."""
        await self.acquire(size, priority, payer)
        try:
            yield
        finally:
            self.release(size)

    async def acquire(self, size: int, priority: int, payer: str) -> None:
        start = max(self._virtual, self._finish.get(payer, 0.0))
        self._finish[payer] = start + size
        if not self._queue and self._fits(size):
            self._take(size, start)
            return
        turn = asyncio.get_running_loop().create_future()
        self._seq += 1
        heapq.heappush(self._queue, (priority, start, self._seq, size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)
            else:
                turn.cancel()
                self._grant()
            raise

    def release(self, size: int) -> None:
        self.used_slots -= 1
        self.used_bytes -= size
        self._grant()
        if not self.used_slots and not self._queue:
            self._finish.clear()  # Nobody is owed anything: this bounds the memory by the pulls at work.
            self._virtual = 0.0

    def resize(self, slots: int) -> None:
        """Allow more or fewer at once; what is in flight is left alone."""
        self.slots = slots
        self._grant()

    def _fits(self, size: int) -> bool:
        return self.used_slots < self.slots and (not self.used_slots or self.used_bytes + size <= self._bytes_max)

    def _take(self, size: int, start: float) -> None:
        self.used_slots += 1
        self.used_bytes += size
        self._virtual = max(self._virtual, start)

    def _grant(self) -> None:
        while self._queue:
            _, start, _, size, turn = self._queue[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._take(size, start)
                turn.set_result(None)
            heapq.heappop(self._queue)

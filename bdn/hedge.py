"""Owns when a slow peer is left for another that has the chunk. Never for the origin, and never without such another.

The second request follows the first, they do not run side by side: a chunk is written where it belongs in the file, and
two writers there could undo one another's verified bytes. What the slow one had sent is booked as wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bdn.digest import Digest
from bdn.flights import Flight
from bdn.ports import Clock

EVERY_S = 0.25  # How often what is in flight is looked at.
LATE_S = 1.0  # Below this nobody is late, however fast the others are.
LATE_TIMES = 4.0  # Later than that many times the usual.
HEDGES_MAX = 2  # For one chunk: a node that is slow with everyone is slow itself.
NEWEST = 0.1  # The newest chunk's weight in what is usual.
FADE = 0.95  # Of the best rate, each time it is looked at: half of it is forgotten in 3.4 s.


class Inflow:
    """How chunks come to this node from its peers: how long one usually takes from asking to the last byte, and how
    fast all of them came together at best."""

    def __init__(self) -> None:
        self.usual_s = self.best_bytes_per_s = 0.0
        self._ended_bytes = self._seen_bytes = 0
        self._seen_at = 0.0

    def took(self, seconds: float, size: int) -> None:
        self.usual_s += NEWEST * (seconds - self.usual_s) if self.usual_s else seconds
        self._ended_bytes += size

    def look(self, now: float, coming: int) -> None:
        """coming: bytes so far of the chunks that are under way. Call it now and then while any is."""
        seen, since_s = self._ended_bytes + coming, now - self._seen_at
        if since_s > 0:
            self.best_bytes_per_s = max((seen - self._seen_bytes) / since_s, FADE * self.best_bytes_per_s)
        self._seen_bytes, self._seen_at = seen, now

    def late(self, waited_s: float, received: int, size: int, coming: int) -> bool:
        """Whether another peer, asked now, is likely to be done first. coming: how many chunks share this node's link.

        Where the link is what is slow, all are late alike, and none would come sooner from somewhere else.
        """
        if waited_s < max(LATE_S, LATE_TIMES * self.usual_s):
            return False
        if not received:
            return True
        left_s = waited_s * (size - received) / received
        shared_s = coming * size / self.best_bytes_per_s if self.best_bytes_per_s else 0.0
        return left_s > max(LATE_S, self.usual_s, shared_s)


async def watch(
    flights: Mapping[Digest, Flight], inflow: Inflow, clock: Clock, better: Callable[[Flight, str], str | None]
) -> None:
    """While anything is in flight: leave peers that take unusually long. better: another that has the chunk."""
    while flights:
        await clock.sleep(EVERY_S)
        now = clock.now()
        asked = [f for f in flights.values() if f.asked is not None]
        received = [f.sink.received if f.sink is not None else 0 for f in asked]
        inflow.look(now, sum(received))
        coming = sum(size > 0 for size in received)
        for flight, size in zip(asked, received, strict=True):
            if flight.asked is None or flight.hedges >= HEDGES_MAX:
                continue
            if inflow.late(now - flight.asked_at, size, flight.chunk.size, coming):
                other = better(flight, flight.asked)
                if other is not None:
                    flight.hedge(other)

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
REST_S = 5.0  # How long one that was left is not asked again for this chunk.
NEWEST = 0.1  # The newest chunk's weight in what is usual.


class Pace:
    """How long this node usually waits for a chunk from a peer, from asking to the last byte."""

    def __init__(self) -> None:
        self.usual_s = 0.0

    def took(self, seconds: float) -> None:
        self.usual_s += NEWEST * (seconds - self.usual_s) if self.usual_s else seconds

    def late(self, waited_s: float, received: int, size: int) -> bool:
        """Whether another peer, asked now, is likely to be done first."""
        if waited_s < max(LATE_S, LATE_TIMES * self.usual_s):
            return False
        left_s = waited_s * (size - received) / received if received else float("inf")
        return left_s > max(LATE_S, self.usual_s)


async def watch(
    flights: Mapping[Digest, Flight], pace: Pace, clock: Clock, better: Callable[[Flight, str], str | None]
) -> None:
    """While anything is in flight: leave peers that take unusually long. better: another that has the chunk."""
    while flights:
        await clock.sleep(EVERY_S)
        now = clock.now()
        for flight in list(flights.values()):
            if flight.asked is None or flight.hedges >= HEDGES_MAX:
                continue
            received = flight.sink.received if flight.sink is not None else 0
            if pace.late(now - flight.asked_at, received, flight.chunk.size):
                other = better(flight, flight.asked)
                if other is not None:
                    flight.hedge(other)

"""Owns this node's reads of the origin: how many at once, when the next may start, and that a refusal holds all back.

Their slots are their own: an origin read must never queue behind a wait for a peer. Tags and manifests are read one
by one, as patiently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bdn.digest import Digest
from bdn.errors import Down, SourceDown
from bdn.manifest import Chunk
from bdn.policy import Limits
from bdn.ports import Clock, Origin, Sink
from bdn.sources import origin_pause_s
from bdn.throttle import Throttle
from bdn.window import Window

Leave = Callable[[], Awaitable[None]]
T = TypeVar("T")


class OriginReads:
    """origin: None where this node may not reach it. share, phase: see `Throttle`."""

    def __init__(
        self, origin: Origin | None, clock: Clock, limits: Limits, share: Callable[[Digest], float], phase: float
    ) -> None:
        self._origin, self._clock, self._limits, self._share = origin, clock, limits, share
        self.throttle = Throttle(limits.origin_concurrency, phase)
        self._slots = Window(slots=self.throttle.slots, bytes_max=limits.in_flight_bytes)

    async def read(
        self, manifest: Digest, chunk: Chunk, sink: Sink, *, priority: int, leave: Leave | None = None
    ) -> None:
        """The chunk's bytes into the sink, unchecked, once it is this read's turn. Raises what the port raises.

        leave: asked last, when the read could begin; what it raises ends the read.
        """
        if self._origin is None:
            raise SourceDown("the origin", "this node has none")
        self.throttle.begin(self._share(manifest))
        self._slots.resize(self.throttle.slots)
        async with self._slots.room(chunk.size, priority, manifest.hex):
            # One refusal holds back every read of this node, not only the one that was refused.
            wait = self.throttle.pause_until - self._clock.now()
            if wait > 0:
                await self._clock.sleep(wait)
            try:
                if leave is not None:
                    await leave()
                started = self._clock.now()
                await self._origin.fetch_into(chunk, sink, stall_s=self._limits.stall_s)
            except Down as why:
                asked = getattr(why, "retry_after_s", None)
                self.throttle.refused(
                    self._clock.now(), None if asked is None else min(asked, self._limits.origin_patience_s)
                )
                self._slots.resize(self.throttle.slots)
                raise
        self.throttle.done(chunk.size, self._clock.now() - started, self._share(manifest))
        self._slots.resize(self.throttle.slots)

    @property
    def there(self) -> bool:
        return self._origin is not None


async def patiently(
    read: Callable[[], Awaitable[T]], limits: Limits, clock: Clock, failed: Callable[[], None] = lambda: None
) -> T:
    """What `read` gives; an origin that is down or throttles is asked again, as it is for chunks, until its patience is
    over. failed: called each time it is."""
    failures, give_up_at = 0, clock.now() + limits.origin_patience_s
    while True:
        try:
            return await read()
        except Down as why:
            failed()
            failures += 1
            pause_s = origin_pause_s(why, failures, limits)
            if clock.now() + pause_s > give_up_at:
                raise
        await clock.sleep(pause_s)

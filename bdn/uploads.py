"""Owns this node's upload slots: a cap, a bounded queue in order of priority, and who was given what.

Above the cap an asker is named other holders, so that one popular chunk spreads as a tree from node to node. Where a
turn is long in coming, because this node's link is slow, the turns are for what nobody else has.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable

from bdn.digest import Digest
from bdn.errors import Busy
from bdn.ledger import Ledger
from bdn.ports import Ask

HOLDERS_NAMED = 8  # In one answer: enough to spread over, small on the wire.
CHUNKS_REMEMBERED = 1 << 16  # Whom a chunk was given to is advice, so the oldest may be forgotten.
LONG_S = 0.1  # Waited for a slot: several times what a chunk takes on its way out of a node as fast as the others.
SENT_ON_MAX = 2  # Times that one asker is sent on for one chunk: who comes back again has found nobody to ask there.
SENT_ON_REMEMBERED = 1 << 13
BUSY_S = 0.05  # When to come back, and never sooner: about what 8 MiB take on a busy 10 Gbit/s link.
BUSY_S_MAX = 5.0  # An asker comes back then, whatever it was told: nothing here stays busy for an hour.


class UploadLease:
    """A slot in use. Closed exactly once by whoever sends the bytes."""

    __slots__ = ("_closed", "_release")

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._closed = False

    def close(self, sent_bytes: int) -> None:
        assert not self._closed, "a lease was closed twice"
        self._closed = True
        self._release(sent_bytes)


class Uploads:
    """At most `slots` leases at once; at most `queue` askers wait for one."""

    def __init__(self, me: str, ledger: Ledger, *, slots: int, queue: int) -> None:
        self._me, self._ledger, self._slots, self._queue_max = me, ledger, slots, queue
        self.active = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        self._seq = 0
        self._given: dict[Digest, deque[str]] = {}
        self._sent_on: dict[tuple[Digest, str], int] = {}
        """How often an asker was sent to others for a chunk after a long wait, since it was last given that."""

    @property
    def load(self) -> int:
        """Slots taken and askers waiting: what others compare before they choose whom to ask."""
        return self.active + len(self._queue)

    def holders(self, digest: Digest, asker: str) -> tuple[str, ...]:
        """Who was given the chunk lately and can pass it on, newest last."""
        return tuple(n for n in self._given.get(digest, ()) if n != asker)

    async def lease(self, digest: Digest, ask: Ask) -> UploadLease:
        """A slot for one chunk that is here. Raises Busy, naming other holders, above the cap.

        Also after a long wait, where others were given the chunk meanwhile: all who come for a new chunk wait together,
        and a slow node would send it to each, one after the other, before it sent the next one to anybody.
        """
        if self.active >= self._slots:
            others = self.holders(digest, ask.asker)
            if len(self._queue) >= (self._slots if others else self._queue_max):
                raise Busy(self._me, holders=others, retry_after_s=BUSY_S)
            came = self._now()
            await self._turn(ask.priority)
            if self._now() - came > LONG_S and self._sent_on.get((digest, ask.asker), 0) < SENT_ON_MAX:
                self._send_on(digest, ask.asker)
        else:
            self.active += 1
        self._sent_on.pop((digest, ask.asker), None)
        self._remember(digest, ask.asker)
        return UploadLease(self._release)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _send_on(self, digest: Digest, asker: str) -> None:
        """Where others were given the chunk: give the turn to the next one and raise Busy."""
        others = self.holders(digest, asker)
        if others:
            times = self._sent_on.pop((digest, asker), 0)
            if len(self._sent_on) >= SENT_ON_REMEMBERED:
                del self._sent_on[next(iter(self._sent_on))]
            self._sent_on[(digest, asker)] = times + 1
            self._release(0)
            raise Busy(self._me, holders=others, retry_after_s=BUSY_S)

    def close(self) -> None:
        """Nobody gets a turn any more."""
        for _, _, turn in self._queue:
            turn.cancel()

    async def _turn(self, priority: int) -> None:
        """Wait for a slot; it is handed over by `_release`, so `active` is already right on return."""
        turn = asyncio.get_running_loop().create_future()
        self._seq += 1
        heapq.heappush(self._queue, (priority, self._seq, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(0)
            raise

    def _release(self, sent_bytes: int) -> None:
        self._ledger.sent_bytes += sent_bytes
        while self._queue:
            _, _, turn = heapq.heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self.active -= 1

    def _remember(self, digest: Digest, asker: str) -> None:
        given = self._given.get(digest)
        if given is None:
            if len(self._given) >= CHUNKS_REMEMBERED:
                del self._given[next(iter(self._given))]
            given = self._given[digest] = deque(maxlen=HOLDERS_NAMED)
        if asker not in given:
            given.append(asker)

"""Owns what follows a wrong chunk: its sender is told, and who is told reads that chunk back from its own disk.

Nothing is believed: a chunk that is as it should be stays. A false word costs one read, of one chunk a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt
from bdn.messages import encode_blame, parse_blame
from bdn.policy import Limits
from bdn.ports import Clock, Peers, Store
from bdn.roster import Node

TOPIC = "blame"
EVERY_S = 1.0  # Between two chunks read back: 13 ms of a core at 64 MiB a chunk.
AGAIN_S = 60.0  # What was as it should be is not read again for so long; senders are blamed for that long as well.
WAITING_MAX = 64  # Chunks to be read back; the rest are named again by whoever comes upon them.


class Blame:
    """One node's. spoilt: called for each model here that has lost the chunk; whole: whether it was complete."""

    def __init__(
        self,
        peers: Peers,
        store: Store,
        clock: Clock,
        limits: Limits,
        spawn: Callable[[Coroutine[None, None, None]], None],
        spoilt: Callable[[Digest, Digest, bool], None],
        say: Callable[[str], None],
    ) -> None:
        self._peers, self._store, self._clock, self._limits = peers, store, clock, limits
        self._spawn, self._spoilt, self._say = spawn, spoilt, say
        self._waiting: dict[Digest, None] = {}
        self._read_at: dict[Digest, float] = {}
        self._working = False

    def tell(self, node: Node, chunk: Digest, why: Corrupt) -> None:
        """Say so to the sender and to whoever reads this node's log; nobody waits for it."""
        self._say(f"{why.what}: it is told, and asked no more for this chunk")
        self._spawn(self._tell(node, chunk))

    async def _tell(self, node: Node, chunk: Digest) -> None:
        try:
            await self._peers.tell(node, TOPIC, encode_blame(chunk), stall_s=self._limits.stall_s)
        except BdnError as why:
            self._say(f"{node.name} does not hear that it sent chunk {chunk.short} wrong: {why}")

    def hear(self, body: bytes) -> None:
        """Another node's word that this one sent a chunk wrong. Raises Invalid for a broken one."""
        chunk, now = parse_blame(body), self._clock.now()
        self._read_at = {c: at for c, at in self._read_at.items() if at > now - AGAIN_S}
        if chunk in self._read_at or not self._store.has(chunk) or len(self._waiting) >= WAITING_MAX:
            return
        self._waiting[chunk] = None
        if not self._working:
            self._working = True
            self._spawn(self._read_back())

    async def _read_back(self) -> None:
        try:
            while self._waiting:
                chunk = next(iter(self._waiting))
                self._read_at[chunk] = self._clock.now()
                del self._waiting[chunk]
                try:
                    await self._recheck(chunk)
                except BdnError as why:  # The others still wait for their turn.
                    self._say(f"chunk {chunk.short} cannot be read back: {why}")
                await self._clock.sleep(EVERY_S)
        finally:
            self._working = False

    async def _recheck(self, chunk: Digest) -> None:
        spoilt = await self._store.recheck(chunk)
        for manifest, whole in spoilt.items():
            self._say(f"chunk {chunk.short} of model {manifest.short} went bad on this disk")
            self._spoilt(manifest, chunk, whole)
        if not spoilt:
            self._say(f"chunk {chunk.short} is as it should be here, though another node got it wrong")

"""Owns getting one model: every chunk of a manifest, a bounded number at once, then the files published whole.

A pull that ends early loses nothing: the store knows which chunks are verified, and the next run fetches the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.flights import Outcome
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Manifest
from bdn.policy import OriginUse
from bdn.ports import Clock, Tier
from bdn.resolver import Resolver
from bdn.roster import Roster
from bdn.window import Window

SYNC_S = 0.5  # How old a node's knowledge of the holders may get.
SYNC_NODES = 100  # With more members each speaks less often: a coordinator hears 200 messages a second at most.


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a pull stands. Bytes are of distinct chunks, so `done_bytes` reaches `total_bytes` exactly once."""

    done_bytes: int
    total_bytes: int
    done_chunks: int
    total_chunks: int


@dataclass(frozen=True)
class Delivered:
    """A complete model: where it lies, how long it took, and this pull's own account."""

    manifest: Digest
    path: str
    seconds: float
    ledger: Ledger


@dataclass
class Delivery:
    """One pull of one manifest on this node. Run it once; run another to resume."""

    manifest: Manifest
    resolver: Resolver
    window: Window
    clock: Clock
    priority: int = 0
    use: OriginUse = OriginUse.PREFER
    progress: Callable[[Progress], None] = lambda _: None
    ledger: Ledger = field(default_factory=Ledger)
    _done_bytes: int = 0
    _done_chunks: int = 0
    _there: set[Digest] = field(default_factory=set)

    async def run(self) -> Delivered:
        """Returns once the directory is whole. Raises the first chunk's failure after stopping the others."""
        started = self.clock.now()
        store, digest = self.resolver.store, self.manifest.digest
        await store.admit(self.manifest)
        path = store.published(digest)
        if path is None:
            self.resolver.join(self.manifest, self.use)
            talk = asyncio.ensure_future(self._keep_in_touch())
            try:
                await self._fetch_all()
                path = await store.publish(digest)
            finally:
                talk.cancel()
        else:
            self.resolver.join(self.manifest, self.use)
            self._skip(self.manifest.chunks)
        self.resolver.announce(digest)
        return Delivered(digest, path, self.clock.now() - started, self.ledger)

    async def _keep_in_touch(self) -> None:
        """Tell the coordinator what is here and learn who has what, now and then while the pull runs."""
        while True:
            await self.clock.sleep(SYNC_S * max(1.0, len(self.resolver.roster.nodes) / SYNC_NODES))
            await self.resolver.sync(self.manifest.digest)

    async def _fetch_all(self) -> None:
        verified = self.resolver.store.verified(self.manifest.digest)
        self._skip(tuple(c for c in self.manifest.chunks if c.digest in verified))
        self.resolver.plan(self.manifest.digest)
        while wanted := tuple(c for c in self.manifest.chunks if c.digest not in verified):
            await self._fetch(wanted)
            verified = self.resolver.store.verified(self.manifest.digest)  # Some may have gone bad here.

    async def _fetch(self, wanted: tuple[Chunk, ...]) -> None:
        own, rest = order(wanted, self.resolver.me, self.resolver.roster)
        limits = self.resolver.limits
        try:
            async with asyncio.TaskGroup() as group:
                for lane, width in ((own, limits.origin_concurrency), (rest, limits.in_flight_chunks)):
                    todo = iter(lane)
                    for _ in range(min(width, len(lane))):
                        group.create_task(self._work(todo, windowed=lane is rest))
        except BaseExceptionGroup as several:
            raise _first(several) from several

    async def _work(self, todo: Iterator[Chunk], *, windowed: bool) -> None:
        """One of several workers that share `todo`.

        A node's own chunks stay outside the window, which may be full of waits for other nodes: those wait for
        chunks that only reading one's own makes available somewhere. The origin's slots bound them instead.
        """
        payer = self.manifest.digest.hex
        for chunk in todo:
            if windowed:
                async with self.window.room(chunk.size, self.priority, payer):
                    outcome = await self.resolver.obtain(self.manifest.digest, chunk, priority=self.priority)
            else:
                outcome = await self.resolver.obtain(self.manifest.digest, chunk, priority=self.priority)
            self._account(chunk, outcome)

    def _account(self, chunk: Chunk, outcome: Outcome) -> None:
        self.ledger.got(chunk, outcome.tier, outcome.source)
        if outcome.reason:
            self.ledger.origin_reasons[outcome.reason] += 1
        for tier, size in outcome.wasted:
            self.ledger.wasted(tier, size)
        if chunk.digest not in self._there:
            self._advance((chunk,))

    def _skip(self, chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            self.ledger.got(chunk, Tier.NVME, self.resolver.me)
        self._advance(chunks)

    def _advance(self, chunks: tuple[Chunk, ...]) -> None:
        self._there.update(c.digest for c in chunks)
        self._done_chunks += len(chunks)
        self._done_bytes += sum(c.size for c in chunks)
        total = self.manifest
        self.progress(Progress(self._done_bytes, total.unique_bytes, self._done_chunks, len(total.chunks)))


def order(chunks: tuple[Chunk, ...], me: str, roster: Roster) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """This node's own chunks, and the others in the order in which it asks for them.

    Every owner reads its chunks in the manifest's order. The others ask in rounds: in each for what the owners have
    just read. An owner's k-th chunk is there after k reads, or sooner where it has many and reads several at once, so
    that all owners end together; asking for it too early would fill a node's window with waits (the fifty nodes of
    `cold-50` end after 1.16 of the bound then, and after 1.14 so).
    Within a round each node goes round the owners from its own place, so that no owner is asked by all at once, and
    what one node has got another has not.
    """
    place = {node.name: i for i, node in enumerate(roster.nodes)}
    mine, count = place.get(me, 0), max(1, len(place))
    lanes: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        owner = roster.owner(chunk.digest)
        lanes.setdefault(place[owner.name] if owner is not None else mine, []).append(chunk)
    own = lanes.pop(mine, []) if me in place else []
    rounds = max(1, len(chunks) // count)
    asked = [
        (min(k, rounds * k // len(lane) + 1), (at - mine) % count, k, chunk)
        for at, lane in lanes.items()
        for k, chunk in enumerate(lane)
    ]
    return tuple(own), tuple(chunk for *_, chunk in sorted(asked))


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first chunk's failure: the others only followed from it."""
    first = several.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first

"""Owns what is on its way: a chunk's flight, shared by everyone here who wants it; and the models taken part in.

It holds state only; `resolver` moves it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.errors import ChunkCorrupt, ChunkMissing, Corrupt, Missing, SourceDown
from bdn.holders import Bits, Burdens, Holders
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Manifest
from bdn.part import Part
from bdn.policy import OriginUse
from bdn.ports import Sink, Tier
from bdn.roster import Roster
from bdn.sources import Tried


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one chunk came to be in place. wasted: bytes that came before and were dropped, by tier. reason: why the
    origin was read, where it was."""

    tier: Tier
    source: str
    wasted: tuple[tuple[Tier, int], ...] = ()
    reason: str = ""


@dataclass
class Swarm:
    """One model that this node is pulling, or has: what it may be asked for."""

    model: Manifest
    part: Part
    use: OriginUse = OriginUse.PREFER
    burdens: Burdens = field(default_factory=Burdens)
    """Who owned how many of its chunks when this node began to pull it."""

    def plan(self, roster: Roster) -> None:
        """A pull begins: count who owns how much in the present view, for even shares of reads and uploads."""
        owned = Counter({n.name: 0 for n in roster.nodes if n.ready})
        owned.update(o.name for c in self.model.chunks if (o := roster.owner(c.digest)) is not None)
        self.burdens = Burdens(owned, len(self.model.chunks))

    def reads_share(self, me: str, there: int) -> float:
        """A node's part in the reads of the origin: what it owns, or more where few (`there`) take part."""
        return max(1 / max(1, there), self.burdens.share(me))

    @property
    def manifest(self) -> Digest:
        return self.part.manifest

    def lose(self, digest: Digest) -> None:
        """The chunk went bad or vanished here: say no longer that this node has it."""
        if digest in self.model.numbers:
            self.part.have.discard(self.model.numbers[digest])

    def chunk(self, digest: Digest) -> Chunk | None:
        i = self.model.numbers.get(digest)
        return None if i is None else self.model.chunks[i]


@dataclass
class Flight:
    """One chunk on its way, shared by everyone here who wants it, whoever asked first."""

    swarm: Swarm
    chunk: Chunk
    hops: int
    priority: int
    number: int
    """The chunk's place in the model."""
    tried: Tried
    """What it has learned of its sources so far."""
    sink: Sink | None = None
    tier: Tier = Tier.PEER
    """Of the source that is sending now."""
    reading_origin: bool = False
    asked: str | None = None
    """The peer that has been asked and has not answered to the end yet."""
    asked_at: float = 0.0
    called_off: bool = False
    """Called back from that peer, on purpose."""
    better: str | None = None
    """Why it was called back: this one has the chunk and is likely to be faster. None: to read the origin."""
    hedges: int = 0
    task: asyncio.Task[Outcome] | None = None
    waiting: int = 0
    wasted: list[tuple[Tier, int]] = field(default_factory=list)
    unsettled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and replaced each time a source fails: who counted on its bytes must look again."""

    def recall(self) -> None:
        """The coordinator has just given this chunk to this node, so others may already be waiting for it here: a
        flight that itself waits for another would close the circle. It goes to the origin instead."""
        if not (self.sink is not None and self.sink.received):
            self._call_off()

    def hedge(self, better: str) -> None:
        """Leave the slow peer for one that has the chunk."""
        if self._call_off():
            self.better = better
            self.hedges += 1

    def _call_off(self) -> bool:
        if self.asked is None or self.task is None or self.called_off:
            return False
        self.called_off = True
        return self.task.cancel()

    def waste(self, ledger: Ledger, sink: Sink) -> None:
        """Book what the source sent so far as of no use."""
        if sink.received:
            ledger.wasted(self.tier, sink.received)
            self.wasted.append((self.tier, sink.received))

    def start_over(self, ledger: Ledger, sink: Sink) -> None:
        """From the first byte, with another source."""
        self.waste(ledger, sink)
        sink.restart()
        self.disappoint()

    def disappoint(self) -> None:
        """The source failed, or there is none after all: who counted on it looks again."""
        self.unsettled.set()
        self.unsettled = asyncio.Event()

    @property
    def promised(self) -> bool:
        """This node reads it from the origin, or was told to: others are sent here for it, so it is brought to its end
        even if whoever wanted it has gone elsewhere."""
        return self.reading_origin or self.number in self.swarm.part.granted

    @property
    def settled(self) -> bool:
        """Bytes are coming from someone who waits for nobody, so it is safe for anyone to wait for this."""
        return self.promised or (self.sink is not None and self.sink.received > 0)


def check(chunk: Chunk, sink: Sink, source: str) -> None:
    """Raises ChunkCorrupt unless the sink holds the chunk's bytes."""
    got = sink.digest()
    if got != chunk.digest:
        raise ChunkCorrupt(chunk.digest, source=source, got=got)


async def until_here(flight: Flight, share: Coroutine[None, None, Outcome], me: str, *, watch: bool) -> None:
    """For another node: until the flight ended, or (watch) its source failed. Raises what the asker should hear."""
    digest, shared = flight.chunk.digest, asyncio.ensure_future(share)
    broken = asyncio.ensure_future(flight.unsettled.wait()) if watch else None
    try:
        await asyncio.wait([shared, broken] if broken else [shared], return_when=asyncio.FIRST_COMPLETED)
        if not shared.done():
            raise ChunkMissing(digest, source=me)
        why = shared.exception()
        if isinstance(why, Corrupt | Missing):
            raise ChunkMissing(digest, source=me) from why
        if why is not None:
            raise SourceDown(me, f"could not get chunk {digest.short} itself: {why}") from why
    finally:
        for waiter in (shared, broken):
            if waiter is not None:
                waiter.cancel()


def part_of(
    manifest: Manifest,
    verified: frozenset[Digest],
    me: str,
    roster: Callable[[], Roster],
    granted: Callable[[Digest], None],
) -> Part:
    """This node's part in a model of which it has `verified` already."""
    have = Bits(max(1, len(manifest.chunks)))
    for digest in verified:
        have.add(manifest.numbers[digest])

    def owned(after: int) -> Iterator[int]:
        view = roster()
        for i in range(after + 1, len(manifest.chunks)):
            owner = view.owner(manifest.chunks[i].digest)
            if owner is not None and owner.name == me and i not in have:
                yield i

    def on_grant(i: int) -> None:
        granted(manifest.chunks[i].digest)

    return Part(manifest.digest, have.size, have, owned, on_grant, Bits(have.size), Holders(have.size))

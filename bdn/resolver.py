"""Owns getting one chunk: from this store, then its owner or another holder, then the origin; and answering for it.

The same class runs in an agent and in the simulator. It decides nothing about where (see `sources`), keeps no
bytes, and opens no connection: it carries steps out through the ports and keeps the account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.errors import BdnError, Busy, ChunkCorrupt, ChunkMissing, Corrupt, Down, Missing, SourceDown
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Manifest
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Clock, Holding, Lease, Membership, Origin, Peers, Sink, Store, Tier
from bdn.roster import Node, Roster
from bdn.sources import AskPeer, GiveUp, Pause, Probe, ReadOrigin, Step, Tried, next_source
from bdn.standing import Standing
from bdn.uploads import Uploads
from bdn.window import Window

HOPS_MAX = 3  # Forwards of one request: more than two views deep means that the views are useless.
CORRUPT_ORIGIN_TRIES = 2  # A flipped bit on the way is worth one more read; a bad object is not.
ORIGIN_BACKOFF_S, ORIGIN_BACKOFF_S_MAX = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one chunk came to be in place. wasted: bytes that came before and were dropped, by tier."""

    tier: Tier
    source: str
    wasted: tuple[tuple[Tier, int], ...] = ()


@dataclass
class Swarm:
    """One model that this node is pulling, or has: what it may be asked for."""

    manifest: Digest
    chunks: dict[Digest, Chunk]
    use: OriginUse = OriginUse.PREFER


@dataclass
class Flight:
    """One chunk on its way, shared by everyone here who wants it, whoever asked first."""

    swarm: Swarm
    chunk: Chunk
    hops: int
    priority: int
    sink: Sink | None = None
    reading_origin: bool = False
    task: asyncio.Task[Outcome] | None = None
    waiting: int = 0
    wasted: list[tuple[Tier, int]] = field(default_factory=list)
    unsettled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and replaced each time a source fails: who counted on its bytes must look again."""

    @property
    def settled(self) -> bool:
        """Bytes are coming from someone who waits for nobody, so it is safe for anyone to wait for this."""
        return self.reading_origin or (self.sink is not None and self.sink.received > 0)


class Resolver:
    """One node's way to chunks, and its answers about them. See `ports.Answerer` for the second half.

    origin: None where this node may not reach it; its pulls then end with "unavailable" when no peer serves.
    """

    def __init__(
        self,
        me: str,
        store: Store,
        peers: Peers,
        origin: Origin | None,
        membership: Membership,
        clock: Clock,
        *,
        ledger: Ledger | None = None,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        self.me, self.store, self.ledger, self.limits = me, store, ledger or Ledger(), limits
        self._peers, self._origin, self._membership, self._clock = peers, origin, membership, clock
        self.standing = Standing()
        self.uploads = Uploads(me, slots=limits.uploads, queue=limits.upload_queue)
        self._swarms: dict[Digest, Swarm] = {}
        self._flights: dict[Digest, Flight] = {}
        self._origin_slots = Window(slots=limits.origin_concurrency, bytes_max=limits.in_flight_bytes)

    @property
    def roster(self) -> Roster:
        return self._membership.roster

    def join(self, manifest: Manifest, use: OriginUse = OriginUse.PREFER) -> None:
        """Take part in a model that the store has admitted: from now on others may ask this node for its chunks."""
        self._swarms[manifest.digest] = Swarm(manifest.digest, {c.digest: c for c in manifest.chunks}, use)

    def leave(self, manifest: Digest) -> None:
        """Stop taking part: what is on disk is still served, nothing is fetched for others any more."""
        self._swarms.pop(manifest, None)

    async def obtain(self, manifest: Digest, chunk: Chunk, *, priority: int = 0) -> Outcome:
        """Returns once a verified copy is in place in this model. The manifest must have been joined.

        Raises the last source's error when nobody could serve it within the limits.
        """
        flight = self._flights.get(chunk.digest) or self._launch(self._swarms[manifest], chunk, 0, priority)
        return await self._share(flight)

    # -- the answering half: ports.Answerer --

    async def answer(self, digest: Digest, ask: Ask) -> Lease:
        """See `ports.Answerer.answer`. Waits for a chunk on its way only where nobody can wait in a circle."""
        while not self.store.has(digest):
            flight = self._flights.get(digest)
            may_wait = ask.hops < HOPS_MAX and self._outranks(ask.asker, digest)
            if flight is None:
                swarm = self._swarms.get(ask.manifest)
                if not may_wait or swarm is None or digest not in swarm.chunks:
                    raise ChunkMissing(digest, source=self.me)
                if len(self._flights) >= self.limits.flights:
                    raise Busy(self.me, retry_after_s=1.0)
                flight = self._launch(swarm, swarm.chunks[digest], ask.hops + 1, ask.priority)
            if not may_wait and not flight.settled:
                raise ChunkMissing(digest, source=self.me)
            await self._await_for_other(flight, digest, watch=not may_wait)
        return await self.uploads.lease(digest, ask)

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return tuple(self._holding(d, ask.asker) for d in digests)

    async def told(self, topic: str, body: bytes) -> bytes:
        raise Missing(f"{self.me} knows no topic {topic!r}", where=self.me)

    def _holding(self, digest: Digest, asker: str) -> Holding:
        if self.store.has(digest):
            return Holding.HAVE
        flight = self._flights.get(digest)
        sure = flight is not None and (flight.settled or self._outranks(asker, digest))
        return Holding.FETCHING if sure else Holding.LACKS

    def _outranks(self, other: str, digest: Digest) -> bool:
        """Whether the other may wait for this node without limit."""
        return self.roster.score(other, digest) < self.roster.score(self.me, digest)

    async def _await_for_other(self, flight: Flight, digest: Digest, *, watch: bool) -> None:
        """Until the flight ended, or (watch) its source failed. Raises what the asker should hear."""
        shared = asyncio.ensure_future(self._share(flight))
        broken = asyncio.ensure_future(flight.unsettled.wait()) if watch else None
        try:
            await asyncio.wait([shared, broken] if broken else [shared], return_when=asyncio.FIRST_COMPLETED)
            if not shared.done():
                raise ChunkMissing(digest, source=self.me)
            why = shared.exception()
            if isinstance(why, Corrupt | Missing):
                raise ChunkMissing(digest, source=self.me) from why
            if why is not None:
                raise SourceDown(self.me, f"could not get chunk {digest.short} itself: {why}") from why
        finally:
            for waiter in (shared, broken):
                if waiter is not None:
                    waiter.cancel()

    # -- flights --

    def _launch(self, swarm: Swarm, chunk: Chunk, hops: int, priority: int) -> Flight:
        flight = Flight(swarm, chunk, hops, priority)
        flight.task = asyncio.ensure_future(self._fly(flight))
        self._flights[chunk.digest] = flight
        return flight

    async def _share(self, flight: Flight) -> Outcome:
        """Shared by all callers: cancelling one must not cancel the fetch that the others await."""
        assert flight.task is not None
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                flight.task.cancel()
                if self._flights.get(flight.chunk.digest) is flight:
                    del self._flights[flight.chunk.digest]

    async def _fly(self, flight: Flight) -> Outcome:
        chunk, manifest = flight.chunk, flight.swarm.manifest
        try:
            if self.store.has(chunk.digest) and await self.store.adopt(manifest, chunk):
                return self._arrived(flight, Outcome(Tier.NVME, self.me))
            flight.sink = self.store.sink(manifest, chunk)
            committed = False
            try:
                outcome = await self._fetch(flight, flight.sink)
                await self.store.commit(manifest, flight.sink)
                committed = True
            finally:
                if not committed:
                    self.store.discard(flight.sink)
            return self._arrived(flight, outcome)
        finally:
            if self._flights.get(chunk.digest) is flight:
                del self._flights[chunk.digest]

    def _arrived(self, flight: Flight, outcome: Outcome) -> Outcome:
        self.ledger.got(flight.chunk, outcome.tier, outcome.source)
        return Outcome(outcome.tier, outcome.source, tuple(flight.wasted))

    async def _fetch(self, flight: Flight, sink: Sink) -> Outcome:
        """Step after step until one source has sent the right bytes into the sink."""
        tried = Tried(flight.swarm.manifest)
        started = self._clock.now()
        origin_tries = 0
        last: BdnError | None = None
        while True:
            now = self._clock.now()
            step: Step = next_source(
                flight.chunk, self.me, self.roster, tried, self.standing, flight.swarm.use, now
            )  # fmt: skip
            if isinstance(step, GiveUp) or now - started > self.limits.patience_s:
                why = step.why if isinstance(step, GiveUp) else f"nobody served it for {self.limits.patience_s:g} s"
                whole = f"chunk {flight.chunk.digest.short}: {why}"
                raise tried.origin_error or last or SourceDown("the cluster", whole)
            if isinstance(step, Pause):
                await self._clock.sleep(step.until - now)
            elif isinstance(step, Probe):
                await self._probe(flight, step, tried)
            elif isinstance(step, ReadOrigin):
                origin_tries += 1
                last = await self._from_origin(flight, sink, tried, step.reason, origin_tries, now - started)
                if last is None:
                    return Outcome(Tier.ORIGIN, "origin")
            else:
                last = await self._from_peer(flight, sink, tried, step)
                if last is None:
                    return Outcome(Tier.PEER, step.node.name)

    async def _from_peer(self, flight: Flight, sink: Sink, tried: Tried, step: AskPeer) -> BdnError | None:
        """None: the sink holds the right bytes. Otherwise why not, with `tried` and the standing brought up to date."""
        node = step.node
        ask = Ask(flight.swarm.manifest, self.me, HOPS_MAX if step.settled else flight.hops, flight.priority)
        try:
            await self._peers.fetch_into(node, flight.chunk, ask, sink, stall_s=self.limits.stall_s)
            self._check(flight.chunk, sink, node.name)
        except Busy as why:
            self._drop(flight, sink, Tier.PEER, node.name, why)
            tried.busy[node.name] = self._clock.now() + why.retry_after_s
            tried.hint(why.holders)
            return why
        except (Missing, Down, Corrupt) as why:
            self._drop(flight, sink, Tier.PEER, node.name, why)
            tried.probed = False
            if step.settled and isinstance(why, Missing):
                tried.hints.remove(node.name)  # It was said to hold the chunk; as owner it may still be asked.
                return why
            tried.left[node.name] = why
            self.standing.failed(node.name, flight.swarm.manifest, why, self._clock.now())
            return why
        self.standing.answered(node.name)
        return None

    async def _from_origin(
        self, flight: Flight, sink: Sink, tried: Tried, reason: str, tries: int, waited_s: float
    ) -> BdnError | None:
        if self._origin is None:
            tried.origin_error = SourceDown("the origin", "this node has none")
            return tried.origin_error
        flight.reading_origin = True
        try:
            async with self._origin_slots.room(flight.chunk.size, flight.priority, flight.swarm.manifest.hex):
                await self._origin.fetch_into(flight.chunk, sink, stall_s=self.limits.stall_s)
            self._check(flight.chunk, sink, "origin")
        except (Missing, Down, Corrupt) as why:
            flight.reading_origin = False
            self._drop(flight, sink, Tier.ORIGIN, "origin", why)
            tried.probed = False  # Someone else may have had more luck meanwhile.
            out_of_tries = tries >= CORRUPT_ORIGIN_TRIES if isinstance(why, Corrupt) else isinstance(why, Missing)
            if out_of_tries or waited_s > self.limits.origin_patience_s:
                tried.origin_error = why
            backoff = min(ORIGIN_BACKOFF_S_MAX, ORIGIN_BACKOFF_S * 2.0 ** (tries - 1))
            asked = getattr(why, "retry_after_s", None)
            tried.origin_after = self._clock.now() + (backoff if asked is None else asked)
            return why
        finally:
            flight.reading_origin = False
        self.ledger.origin_reasons[reason] += 1
        return None

    async def _probe(self, flight: Flight, step: Probe, tried: Tried) -> None:
        """Ask the next ranks at once whether they hold the chunk or are getting it; hints go into `tried`."""
        tried.probed = True
        words = await asyncio.gather(*(self._ask_holding(flight, node) for node in step.nodes))
        for wanted in (Holding.HAVE, Holding.FETCHING):
            tried.hint(tuple(n.name for n, w in zip(step.nodes, words, strict=True) if w is wanted))

    async def _ask_holding(self, flight: Flight, node: Node) -> Holding:
        ask = Ask(flight.swarm.manifest, self.me, flight.hops, flight.priority)
        try:
            words = await self._peers.probe(node, [flight.chunk.digest], ask, stall_s=self.limits.stall_s)
        except Down as why:
            self.ledger.miss(node.name, why)
            self.standing.failed(node.name, flight.swarm.manifest, why, self._clock.now())
            return Holding.LACKS
        return words[0]

    def _check(self, chunk: Chunk, sink: Sink, source: str) -> None:
        got = sink.digest()
        if got != chunk.digest:
            raise ChunkCorrupt(chunk.digest, source=source, got=got)

    def _drop(self, flight: Flight, sink: Sink, tier: Tier, source: str, why: BdnError) -> None:
        """The source failed: account for what it sent, tell those who counted on it, start again at byte 0."""
        self.ledger.miss(source, why)
        if isinstance(why, Corrupt):
            self.ledger.corrupt_by_source[source] += 1
        if sink.received:
            self.ledger.wasted(tier, sink.received)
            flight.wasted.append((tier, sink.received))
        sink.restart()
        flight.unsettled.set()
        flight.unsettled = asyncio.Event()

"""Owns getting one chunk: from this store, then its owner or another holder, then the origin; and answering for it.

The same class runs in an agent and in the simulator. It decides nothing about where (see `sources`), keeps no
bytes, and opens no connection: it carries steps out through the ports and keeps the account.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from bdn.coordinator import Coordinator, Ruling
from bdn.digest import Digest
from bdn.errors import BdnError, Busy, ChunkCorrupt, ChunkMissing, Corrupt, Down, Missing, SourceDown
from bdn.flights import Flight, Outcome, Swarm, part_of
from bdn.holders import KnownChunk
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Manifest
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Clock, Holding, Lease, Membership, Origin, Peers, Sink, Store, Tier
from bdn.roster import Node, Roster
from bdn.sources import AskPeer, GiveUp, Pause, Probe, ReadOrigin, Tried, next_source
from bdn.standing import Standing
from bdn.throttle import Throttle
from bdn.uploads import Uploads
from bdn.window import Window

HOPS_MAX = 3  # Forwards of one request: more than two views deep means that the views are useless.
RULING_PAUSE_S, RULING_PAUSE_S_MAX = 0.05, 2.0  # Between asking a coordinator again about one chunk.
CORRUPT_ORIGIN_TRIES = 2  # A flipped bit on the way is worth one more read; a bad object is not.
ORIGIN_BACKOFF_S, ORIGIN_BACKOFF_S_MAX = 0.2, 10.0


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
        coordinate: bool = True,
    ) -> None:
        self.me, self.store, self.ledger, self.limits = me, store, ledger or Ledger(), limits
        self._peers, self._origin, self._membership, self._clock = peers, origin, membership, clock
        self.standing = Standing()
        self.uploads = Uploads(me, slots=limits.uploads, queue=limits.upload_queue)
        load = lambda: self.uploads.load  # noqa: E731
        self._coordinator = Coordinator(me, peers, membership, clock, self.standing, limits, load)
        self._coordinate = coordinate
        self._salt = Digest.of(me.encode()).raw[:8]
        self._asking: Counter[str] = Counter()
        """Chunks that this node is asking each of the others for."""
        self._announcements: set[asyncio.Task[None]] = set()
        self._swarms: dict[Digest, Swarm] = {}
        self._flights: dict[Digest, Flight] = {}
        self.throttle = Throttle(limits.origin_concurrency)
        self._origin_slots = Window(slots=self.throttle.slots, bytes_max=limits.in_flight_bytes)

    @property
    def roster(self) -> Roster:
        return self._membership.roster

    def join(self, manifest: Manifest, use: OriginUse = OriginUse.PREFER) -> None:
        """Take part in a model that the store has admitted: from now on others may ask this node for its chunks."""
        digest = manifest.digest
        part = part_of(manifest, self.store.verified(digest), self.me, lambda: self.roster, self._recall)
        self._swarms[digest] = Swarm(manifest, part, use)
        self._coordinator.join(part)

    async def sync(self, manifest: Digest) -> None:
        """Tell the model's coordinator what this node has, and learn who else has what."""
        if self._coordinate and manifest in self._swarms:
            await self._coordinator.sync(self._swarms[manifest].part)

    def announce(self, manifest: Digest) -> None:
        """As `sync`, without waiting for it: a complete copy is good news for others only."""
        task = asyncio.ensure_future(self.sync(manifest))
        self._announcements.add(task)
        task.add_done_callback(self._announcements.discard)

    def leave(self, manifest: Digest) -> None:
        """Stop taking part: what is on disk is still served, nothing is fetched for others any more."""
        self._swarms.pop(manifest, None)
        self._coordinator.leave(manifest)

    def close(self) -> None:
        """Stop every fetch and send those that wait for an upload away: the node is going down."""
        for flight in list(self._flights.values()):
            if flight.task is not None:
                flight.task.cancel()
        self.uploads.close()
        self._coordinator.close()
        for task in self._announcements:
            task.cancel()

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
                chunk = swarm.chunk(digest) if swarm is not None else None
                if swarm is None or chunk is None or not (may_wait or self._granted(swarm, digest)):
                    raise ChunkMissing(digest, source=self.me)
                if len(self._flights) >= self.limits.flights:
                    raise Busy(self.me, retry_after_s=1.0)
                flight = self._launch(swarm, chunk, min(ask.hops + 1, HOPS_MAX), ask.priority)
            if not may_wait and not flight.settled:
                raise ChunkMissing(digest, source=self.me)
            await self._await_for_other(flight, digest, watch=not may_wait)
        return await self.uploads.lease(digest, ask)

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return tuple(self._holding(d, ask) for d in digests)

    async def told(self, topic: str, body: bytes) -> bytes:
        return await self._coordinator.told(topic, body)

    def _granted(self, swarm: Swarm, digest: Digest) -> bool:
        return swarm.model.numbers[digest] in swarm.part.granted

    def _holding(self, digest: Digest, ask: Ask) -> Holding:
        if self.store.has(digest):
            return Holding.HAVE
        swarm = self._swarms.get(ask.manifest)
        if swarm is not None and digest in swarm.model.numbers and self._granted(swarm, digest):
            return Holding.FETCHING
        flight = self._flights.get(digest)
        sure = flight is not None and (flight.settled or self._outranks(ask.asker, digest))
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
        flight = Flight(swarm, chunk, hops, priority, swarm.model.numbers[chunk.digest])
        flight.task = asyncio.ensure_future(self._fly(flight))
        self._flights[chunk.digest] = flight
        return flight

    def _recall(self, digest: Digest) -> None:
        flight = self._flights.get(digest)
        if flight is not None:
            flight.recall()

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
                    self._waste(flight, flight.sink)
                    self.store.discard(flight.sink)
            return self._arrived(flight, outcome)
        finally:
            flight.swarm.part.granted.discard(flight.number)
            if self._flights.get(chunk.digest) is flight:
                del self._flights[chunk.digest]

    def _arrived(self, flight: Flight, outcome: Outcome) -> Outcome:
        self.ledger.got(flight.chunk, outcome.tier, outcome.source)
        flight.swarm.part.have.add(flight.number)
        return Outcome(outcome.tier, outcome.source, tuple(flight.wasted))

    async def _fetch(self, flight: Flight, sink: Sink) -> Outcome:
        """Step after step until one source has sent the right bytes into the sink."""
        part = flight.swarm.part
        tried = Tried(part.manifest, strangers=self._coordinator.strangers)
        salt = int.from_bytes(self._salt, "big") ^ int.from_bytes(flight.chunk.digest.raw[8:16], "big")
        started = self._clock.now()
        origin_tries = 0
        last: BdnError | None = None
        while True:
            now = self._clock.now()
            tried.granted = flight.number in part.granted
            known = KnownChunk(part.holders, flight.number, salt, self._asking)
            step = next_source(flight.chunk, self.me, self.roster, tried, self.standing, flight.swarm.use, now, known)
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
        node, flight.tier = step.node, Tier.PEER
        ask = Ask(flight.swarm.manifest, self.me, HOPS_MAX if step.settled else flight.hops, flight.priority)
        self._asking[node.name] += 1
        flight.asking = True
        try:
            await self._peers.fetch_into(node, flight.chunk, ask, sink, stall_s=self.limits.stall_s)
            self._check(flight.chunk, sink, node.name)
        except Busy as why:
            self._drop(flight, sink, node.name, why)
            tried.busy[node.name] = self._clock.now() + why.retry_after_s
            tried.hint(why.holders)
            return why
        except (Missing, Down, Corrupt) as why:
            self._drop(flight, sink, node.name, why)
            tried.probed = False
            if step.settled and isinstance(why, Missing):
                # It was said to hold the chunk; as owner it may still be asked.
                if node.name in tried.hints:
                    tried.hints.remove(node.name)
                if node.name not in tried.doubted:
                    tried.doubted.append(node.name)
                return why
            tried.left[node.name] = why
            self.standing.failed(node.name, flight.swarm.manifest, why, self._clock.now())
            return why
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not flight.recalled or task is None or task.uncancel():
                raise
            flight.recalled = False
            sink.restart()
            return Busy(node.name)
        finally:
            flight.asking = False
            self._asking[node.name] -= 1
        self.standing.answered(node.name)
        return None

    async def _from_origin(
        self, flight: Flight, sink: Sink, tried: Tried, reason: str, tries: int, waited_s: float
    ) -> BdnError | None:
        if self._origin is None:
            tried.origin_error = SourceDown("the origin", "this node has none")
            return tried.origin_error
        flight.reading_origin, flight.tier = True, Tier.ORIGIN
        try:
            async with self._origin_slots.room(flight.chunk.size, flight.priority, flight.swarm.manifest.hex):
                await self._unpaused()
                started = self._clock.now()
                await self._origin.fetch_into(flight.chunk, sink, stall_s=self.limits.stall_s)
            self._check(flight.chunk, sink, "origin")
        except (Missing, Down, Corrupt) as why:
            flight.reading_origin = False
            if isinstance(why, Down):
                self.throttle.refused(self._clock.now(), getattr(why, "retry_after_s", None))
                self._origin_slots.resize(self.throttle.slots)
            self._drop(flight, sink, "origin", why)
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
        self.throttle.done(flight.chunk.size, self._clock.now() - started)
        self._origin_slots.resize(self.throttle.slots)
        self.ledger.origin_reasons[reason] += 1
        return None

    async def _unpaused(self) -> None:
        """One refusal holds back every read of this node, not only the one that was refused."""
        wait = self.throttle.pause_until - self._clock.now()
        if wait > 0:
            await self._clock.sleep(wait)

    async def _probe(self, flight: Flight, step: Probe, tried: Tried) -> None:
        """Before the origin: the coordinator's word, or else what the next ranks say; hints go into `tried`."""
        tried.probed = True
        if self._coordinate and flight.swarm.use is not OriginUse.FORBID:
            failed = [n for n in tried.left if not tried.may_retry(n)]
            doubted = [n for n in tried.left if tried.may_retry(n)] + tried.doubted
            ruling = await self._coordinator.rule(flight.swarm.part, flight.number, failed, doubted)
            if ruling is not None:
                await self._obey(flight, ruling, tried)
                return
        words = await asyncio.gather(*(self._ask_holding(flight, node) for node in step.nodes))
        for wanted in (Holding.HAVE, Holding.FETCHING):
            tried.hint(tuple(n.name for n, w in zip(step.nodes, words, strict=True) if w is wanted))

    async def _obey(self, flight: Flight, ruling: Ruling, tried: Tried) -> None:
        """A grant is in `part.granted` already. Being sent to the same node again is a reason to wait, ever longer.

        Who denied the chunk a moment ago, because it did not take part yet, may be the very one that reads it now; and
        who could not be reached may be back: the coordinator has looked.
        """
        if ruling.read:
            return
        tried.probed = False
        tried.hint(ruling.ask)
        for name in ruling.ask:
            self.standing.present(name, flight.swarm.manifest)
            if tried.retry(name):
                self.standing.answered(name)
        if tried.rulings:
            await self._clock.sleep(min(RULING_PAUSE_S_MAX, RULING_PAUSE_S * 2.0 ** (tried.rulings - 1)))
        tried.rulings += 1

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

    def _waste(self, flight: Flight, sink: Sink) -> None:
        if sink.received:
            self.ledger.wasted(flight.tier, sink.received)
            flight.wasted.append((flight.tier, sink.received))

    def _drop(self, flight: Flight, sink: Sink, source: str, why: BdnError) -> None:
        """The source failed: account for what it sent, tell those who counted on it, start again at byte 0."""
        self.ledger.miss(source, why)
        if isinstance(why, Corrupt):
            self.ledger.corrupt_by_source[source] += 1
        self._waste(flight, sink)
        sink.restart()
        flight.unsettled.set()
        flight.unsettled = asyncio.Event()

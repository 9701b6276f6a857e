"""Owns one node's part in its models: each chunk is fetched once for all who want it, and answered for to the others.

The same class runs in an agent and in the simulator. How a chunk comes from its sources is `fetch`'s; it keeps no
bytes, and opens no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from bdn.blame import TOPIC, Blame
from bdn.coordinator import Coordinator
from bdn.digest import Digest
from bdn.errors import Busy, ChunkMissing
from bdn.fetch import HOPS_MAX, Fetcher, salt_of
from bdn.flights import Flight, Outcome, Swarm, part_of, until_here
from bdn.hedge import Inflow, watch
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Manifest
from bdn.origin_reads import OriginReads
from bdn.part import Part
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Claims, Clock, Holding, Lease, Membership, Origin, Peers, Store, Tier
from bdn.questions import Questions
from bdn.roster import Roster
from bdn.sources import Tried, asked_for, in_place_of
from bdn.standing import Standing
from bdn.strict import Strict
from bdn.uploads import Uploads


class Resolver:
    """One node's way to chunks, and its answers about them. See `ports.Answerer` and `ports.Documents` for the second
    half.

    origin: None where this node may not reach it; its pulls then end with "unavailable" when no peer serves.
    claims: each read of the origin is claimed there first (see `strict`).
    damaged: hears of each complete model that has lost a chunk here, because it went bad. say: for the log.
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
        claims: Claims | None = None,
        damaged: Callable[[Digest], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.me, self.store, self.ledger, self.limits = me, store, ledger or Ledger(), limits
        self._membership, self._clock = membership, clock
        self.standing = Standing()
        self.uploads = Uploads(me, self.ledger, slots=limits.uploads, queue=limits.upload_queue)
        load = lambda: self.uploads.load  # noqa: E731
        self._coordinator = Coordinator(me, peers, membership, clock, self.standing, limits, load)
        self._coordinate = coordinate
        self._background: set[asyncio.Task[None]] = set()
        self._damaged = damaged
        self._blame = Blame(peers, store, clock, limits, self._in_background, self._spoilt, say)
        self._inflow = Inflow()
        roster = lambda: self.roster  # noqa: E731
        questions = Questions(
            me, peers, roster, clock, self.standing, self.ledger, limits,
            self._coordinator if coordinate else None,
            None if claims is None else Strict(me, claims, clock, self.standing),
        )  # fmt: skip
        reads = OriginReads(origin, clock, limits, self._reads_share, salt_of(me) / 2.0**64)
        self._fetcher = Fetcher(
            me, peers, reads, roster, clock, self.standing, self.ledger, limits, questions, self._blame, self._inflow
        )
        self._watch: asyncio.Task[None] | None = None
        self._introduced: dict[Digest, str] = {}
        self._epoch = -1
        self._swarms: dict[Digest, Swarm] = {}
        self._flights: dict[Digest, Flight] = {}
        self._lost: set[Digest] = set()
        """Chunks that were on this disk and are not to be had any more, whatever the store still says."""

    @property
    def roster(self) -> Roster:
        return self._membership.roster

    def join(self, manifest: Manifest, use: OriginUse = OriginUse.PREFER) -> None:
        """Take part in a model that the store has admitted: from now on others may ask this node for its chunks."""
        digest = manifest.digest
        part = part_of(manifest, self.store.verified(digest), self.me, lambda: self.roster, self._recall)
        self._swarms[digest] = Swarm(manifest, part, use)
        self._coordinator.join(part)

    def part(self, manifest: Digest) -> Part:
        """What this node has of a joined model, and knows of the others'."""
        return self._swarms[manifest].part

    def plan(self, manifest: Digest) -> None:
        """See `Swarm.plan`."""
        self._swarms[manifest].plan(self.roster)

    def _reads_share(self, manifest: Digest) -> float:
        now = self._clock.now()
        there = sum(n.ready and not self.standing.avoided(n.name, manifest, now) for n in self.roster.nodes)
        return self._swarms[manifest].reads_share(self.me, there) if manifest in self._swarms else 0.0

    async def sync(self, manifest: Digest) -> None:
        """Tell the model's coordinator what this node has, and learn who else has what."""
        if self._coordinate and manifest in self._swarms:
            await self._coordinator.sync(self._swarms[manifest].part)

    def announce(self, manifest: Digest) -> None:
        """As `sync`, without waiting for it: a complete copy is good news for others only."""
        self._in_background(self.sync(manifest))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def introduce(self) -> None:
        """Announce every model here to its coordinator, unless that one has heard it from this node before."""
        for manifest in self._swarms:
            owner = self.roster.owner(manifest)
            if owner is not None and self._introduced.get(manifest) != owner.name:
                self._introduced[manifest] = owner.name
                self.announce(manifest)

    def leave(self, manifest: Digest) -> None:
        """Stop taking part: what is on disk is still served, nothing is fetched for others any more."""
        self._swarms.pop(manifest, None)
        self._introduced.pop(manifest, None)
        self._coordinator.leave(manifest)

    def close(self) -> None:
        """Stop every fetch and send those that wait for an upload away: the node is going down."""
        for flight in list(self._flights.values()):
            if flight.task is not None:
                flight.task.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self.uploads.close()
        self._coordinator.close()
        for task in self._background:
            task.cancel()

    async def obtain(self, manifest: Digest, chunk: Chunk, *, priority: int = 0) -> Outcome:
        """Returns once a verified copy is in place in this model. The manifest must have been joined.

        Raises the last source's error when nobody could serve it within the limits.
        """
        while True:
            flight = self._flights.get(chunk.digest) or self._launch(self._swarms[manifest], chunk, 0, priority)
            outcome = await self._share(flight)
            if flight.swarm.manifest == manifest:
                return outcome
            # It came for another model: from there it is put in place in this one, and counts as from this disk.

    # -- the answering half: ports.Answerer --

    async def answer(self, digest: Digest, ask: Ask) -> Lease:
        """See `ports.Answerer.answer`. Waits for a chunk on its way only where nobody can wait in a circle."""
        while not self.store.has(digest):
            self.missed(digest)
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
            await until_here(flight, self._share(flight), self.me, watch=not may_wait)
        return await self.uploads.lease(digest, ask)

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return tuple(self._holding(d, ask) for d in digests)

    def document(self, digest: Digest) -> bytes | None:
        """See `ports.Documents.document`."""
        found = (swarm.model.documents_by_digest.get(digest) for swarm in self._swarms.values())
        return next((body for body in found if body is not None), None)

    def whereabouts(self, manifest: Digest, asker: str) -> tuple[str, ...]:
        """See `ports.Documents.whereabouts`."""
        return tuple(n for n in self._coordinator.holders(manifest, asker) if n != self.me)

    def missed(self, digest: Digest) -> None:
        """See `ports.Answerer.missed`."""
        for swarm in self._swarms.values():
            swarm.lose(digest)
        if self.store.has(digest):
            self._lost.add(digest)

    async def told(self, topic: str, body: bytes) -> bytes:
        if topic == TOPIC:
            self._blame.hear(body)
            return b""
        return await self._coordinator.told(topic, body)

    def _spoilt(self, manifest: Digest, chunk: Digest, whole: bool) -> None:
        if manifest in self._swarms:
            self._swarms[manifest].lose(chunk)
            self.announce(manifest)
        if whole:
            self._damaged(manifest)

    def _granted(self, swarm: Swarm, digest: Digest) -> bool:
        return swarm.model.numbers[digest] in swarm.part.granted

    def _holding(self, digest: Digest, ask: Ask) -> Holding:
        if self.store.has(digest) and digest not in self._lost:
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

    # -- flights --

    def _launch(self, swarm: Swarm, chunk: Chunk, hops: int, priority: int) -> Flight:
        tried = Tried(swarm.manifest, strangers=self._coordinator.others.strangers)
        flight = Flight(swarm, chunk, hops, priority, swarm.model.numbers[chunk.digest], tried)
        flight.task = asyncio.ensure_future(self._fly(flight))
        flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # Nobody may be waiting.
        self._flights[chunk.digest] = flight
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(watch(self._flights, self._inflow, self._clock, self._better))
        return flight

    def _better(self, flight: Flight, slow: str) -> str | None:
        now, known = self._clock.now(), self._fetcher.known(flight)
        return in_place_of(slow, flight.chunk, self.me, self.roster, flight.tried, self.standing, now, known)

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
            if not flight.waiting and not flight.task.done() and not flight.promised:
                flight.task.cancel()
                if self._flights.get(flight.chunk.digest) is flight:
                    del self._flights[flight.chunk.digest]

    async def _fly(self, flight: Flight) -> Outcome:
        chunk, manifest = flight.chunk, flight.swarm.manifest
        try:
            if self.store.has(chunk.digest) and await self.store.adopt(manifest, chunk):
                return self._arrived(flight, Outcome(Tier.NVME, self.me))
            self.missed(chunk.digest)  # A coordinator has nothing to say to a node that says it has it.
            flight.sink = self.store.sink(manifest, chunk, hot=asked_for(chunk, self.me, self.roster))
            committed = False
            try:
                self._forget_who_left()
                outcome = await self._fetcher.fetch(flight, flight.sink)
                await self.store.commit(manifest, flight.sink)
                committed = True
            finally:
                if not committed:
                    flight.waste(self.ledger, flight.sink)
                    self.store.discard(flight.sink)
            return self._arrived(flight, outcome)
        finally:
            flight.swarm.part.granted.discard(flight.number)
            if self._flights.get(chunk.digest) is flight:
                del self._flights[chunk.digest]

    def _arrived(self, flight: Flight, outcome: Outcome) -> Outcome:
        self._lost.discard(flight.chunk.digest)
        # What was fetched for another node a moment ago is in the account already.
        if outcome.tier is not Tier.NVME or flight.number not in flight.swarm.part.have:
            self.ledger.got(flight.chunk, outcome.tier, outcome.source)
        flight.swarm.part.have.add(flight.number)
        return replace(outcome, wasted=tuple(flight.wasted))

    def _forget_who_left(self) -> None:
        """Once for each view: what is known of the others is bounded by the members."""
        if self.roster.epoch != self._epoch:
            self._epoch = self.roster.epoch
            self._coordinator.others.forget_members()
            there = frozenset(n.name for n in self.roster.nodes) | self._coordinator.others.strangers.keys()
            self.standing.forget(there)
            for swarm in self._swarms.values():
                swarm.part.holders.keep(there)

"""Owns the simulated machines: nodes with a disk and a NIC, the origin, and the ports that the core sees of them.

It moves sizes, not bytes: a sink's digest is the chunk's unless its sender is faulty.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from blake3 import blake3

from bdn.digest import Digest
from bdn.errors import BdnError, ChunkMissing, Missing, SourceDown, SourceSilent
from bdn.manifest import Chunk, Manifest
from bdn.ports import Ask, Claimed, Holding, Sink, Tier
from bdn.resolver import Resolver
from bdn.roster import Node, Roster
from bdn.sim.links import Pipe, Transfer
from bdn.sim.loop import SimLoop
from bdn.sim.scenario import Nodes, OriginSpec
from bdn.window import Window

GBIT = 1e9 / 8
WRONG = Digest(b"\xff" * 32)


@dataclass
class Trace:
    """Every transfer that ended, and its digest: equal runs have equal digests."""

    events: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """(end, source node or -1 for the origin, node, model-wide chunk number, bytes)"""
    carried: Counter[Tier] = field(default_factory=Counter)
    """What the links carried, by tier, finished or not."""

    def ended(self, at: float, source: int, node: int, chunk: int, size: int) -> None:
        self.events.append((at, source, node, chunk, size))
        self.carried[Tier.ORIGIN if source < 0 else Tier.PEER] += size

    def digest(self) -> str:
        state = blake3()
        for event in self.events:
            state.update(struct.pack("<dqqqq", *event))
        return Digest(state.digest()).hex


class SimSink:
    __slots__ = ("_good", "_received", "chunk", "coming")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self._received, self._good = chunk, 0, True
        self.coming: Transfer | None = None
        """What fills it now."""

    @property
    def received(self) -> int:
        """While bytes come as well: who looks after a slow source must see that they do."""
        return self._received if self.coming is None else self.coming.so_far

    def arrived(self, size: int) -> None:
        self.coming, self._received = None, size

    def write(self, piece: memoryview | bytes) -> None:
        raise AssertionError("the simulator moves no bytes")

    def restart(self) -> None:
        self._received, self._good = 0, True

    def spoil(self) -> None:
        self._good = False

    def digest(self) -> Digest:
        return self.chunk.digest if self._good and self.received == self.chunk.size else WRONG


class SimStore:
    """Sets of verified chunks; what is committed survives a restart of its node."""

    def __init__(self) -> None:
        self._have: set[Digest] = set()
        self._models: dict[Digest, tuple[Manifest, set[Digest]]] = {}
        self._published: set[Digest] = set()

    def fill(self, manifest: Manifest) -> None:
        chunks = {c.digest for c in manifest.chunks}
        self._have |= chunks
        self._models[manifest.digest] = (manifest, chunks)
        self._published.add(manifest.digest)

    def has(self, digest: Digest) -> bool:
        return digest in self._have

    def verified(self, manifest: Digest) -> frozenset[Digest]:
        return frozenset(self._models[manifest][1])

    async def admit(self, manifest: Manifest) -> None:
        self._models.setdefault(manifest.digest, (manifest, set()))

    async def adopt(self, manifest: Digest, chunk: Chunk) -> bool:
        self._models[manifest][1].add(chunk.digest)
        return True

    def sink(self, manifest: Digest, chunk: Chunk, *, hot: bool = False) -> SimSink:
        return SimSink(chunk)

    async def commit(self, manifest: Digest, sink: Sink) -> None:
        assert sink.digest() == sink.chunk.digest, "a wrong byte would have been kept"
        self._have.add(sink.chunk.digest)
        self._models[manifest][1].add(sink.chunk.digest)

    def discard(self, sink: Sink) -> None:
        """Nothing is held."""

    async def publish(self, manifest: Digest) -> str:
        whole, there = self._models[manifest]
        assert len(there) == len(whole.chunks), "published before it was whole"
        self._published.add(manifest)
        return "/sim"

    def published(self, manifest: Digest) -> str | None:
        return "/sim" if manifest in self._published else None

    def models(self) -> Iterable[Digest]:
        return tuple(self._models)

    async def recheck(self, digest: Digest) -> Mapping[Digest, bool]:
        return {}  # A liar's disk is sound; what it sends is not.


class SimMembership:
    """One node's view; `world` changes it when the news reaches this node."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    async def changes(self) -> AsyncIterator[Roster]:
        raise AssertionError("nothing in the simulator follows changes")
        yield self.roster


class Machine:
    """One node: its pipes outlive a crash, its resolver does not."""

    def __init__(self, loop: SimLoop, number: int, spec: Nodes) -> None:
        self.number, self.name = number, f"node-{number:04}"
        self.zone = f"zone-{number % spec.zones}" if spec.zones > 1 else ""
        nic = spec.nic_gbit * GBIT
        self.nic_rate, self.disk_rate = nic, spec.disk_gb_s * 1e9
        self.up = Pipe(loop, f"{self.name}/up", nic)
        self.into = Pipe(loop, f"{self.name}/in", min(nic, self.disk_rate))
        """The NIC's receiving side and the disk behind it: everything goes through both, so the slower one counts."""
        self.disk = Pipe(loop, f"{self.name}/disk", self.disk_rate)
        """Reads of a broken disk; a sound one serves from the page cache."""
        self.store = SimStore()
        self.resolver: Resolver | None = None
        self.window = Window(slots=1, bytes_max=1)
        self.tasks: set[asyncio.Task[object]] = set()
        self.transfers: dict[Transfer, Machine | None] = {}
        self.alive = self.corrupt = self.silent = False
        self.life = 0
        """Grows with each start, so that a request to an earlier life fails."""

    def scale(self, *, nic: float = 1.0, disk: float = 1.0) -> None:
        """Make the NIC or the disk that many times as fast."""
        self.nic_rate *= nic
        self.disk_rate *= disk
        self.up.set_rate(self.nic_rate)
        self.disk.set_rate(self.disk_rate)
        self.into.set_rate(min(self.nic_rate, self.disk_rate))


class World:
    """The machines, the origin and the links between them."""

    def __init__(self, loop: SimLoop, nodes: Nodes, origin: OriginSpec) -> None:
        self.loop, self.spec, self.trace = loop, nodes, Trace()
        self.machines = [Machine(loop, i, nodes) for i in range(nodes.count)]
        self.by_name = {m.name: m for m in self.machines}
        self.numbers: dict[Digest, int] = {}
        self.rtt_s = nodes.rtt_ms / 1e3
        self.origin = SimOrigin(self, origin)
        self.claims = SimClaims(self)
        zones = {m.zone for m in self.machines} if nodes.zone_gbit else set()
        self._zone_out = {z: Pipe(loop, f"{z}/out", nodes.zone_gbit * GBIT) for z in sorted(zones)}
        self._zone_in = {z: Pipe(loop, f"{z}/in", nodes.zone_gbit * GBIT) for z in sorted(zones)}
        self.cross_zone_bytes = 0
        self.told_messages = self.told_bytes = 0

    def number(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.numbers.setdefault(chunk.digest, len(self.numbers))

    def pause(self, seconds: float) -> asyncio.Future[None]:
        """Awaitable time: what `asyncio.sleep` does, at half its cost."""
        future: asyncio.Future[None] = asyncio.Future(loop=self.loop)
        self.loop.call_at(self.loop._now + seconds, _wake, future)
        return future

    def path(self, source: Machine | None, to: Machine) -> list[Pipe]:
        if source is None:
            return [self.origin.egress, to.into]
        pipes = [source.up, to.into]
        if source.disk_rate < source.nic_rate / 4:
            pipes.append(source.disk)
        if source.zone != to.zone and self._zone_out:
            pipes += [self._zone_out[source.zone], self._zone_in[to.zone]]
        return pipes

    async def move(self, source: Machine | None, to: Machine, chunk: Chunk, sink: SimSink) -> None:
        """Carry one chunk. Whatever ends it, the trace and the sink hold how many bytes came."""
        transfer = Transfer(self.loop, chunk.size, self.path(source, to))
        to.transfers[transfer] = source
        if source is not None:
            source.transfers[transfer] = source
        sink.coming = transfer
        try:
            await transfer.done
            sink.arrived(chunk.size)
        except BaseException:
            sink.arrived(transfer.abort(None))
            raise
        finally:
            to.transfers.pop(transfer, None)
            if source is not None:
                source.transfers.pop(transfer, None)
                self.cross_zone_bytes += sink.received if source.zone != to.zone else 0
            number = -1 if source is None else source.number
            self.trace.ended(self.loop._now, number, to.number, self.numbers[chunk.digest], sink.received)

    def kill(self, machine: Machine, *, silent: bool = False) -> None:
        """End a node's process: its tasks stop, its transfers break, what it committed stays on its disk."""
        resolver, machine.resolver, machine.silent = machine.resolver, None, silent
        machine.alive = False
        for transfer, source in list(machine.transfers.items()):
            # Uploads break for the receiver now; of a silent death it hears after its stall time (see `fetch_into`).
            transfer.abort(SourceDown(machine.name, "connection reset") if source is machine else None)
        for task in list(machine.tasks):
            task.cancel()
        if resolver is not None:
            resolver.close()


class SimPeers:
    """One node's calls to the others."""

    def __init__(self, world: World, me: Machine) -> None:
        self._world, self._me = world, me

    async def fetch_into(self, node: Node, chunk: Chunk, ask: Ask, sink: Sink, *, stall_s: float) -> None:
        assert isinstance(sink, SimSink)
        other, resolver = await self._reach(node, stall_s)
        life = other.life
        try:
            lease = await resolver.answer(chunk.digest, ask)
        except asyncio.CancelledError:
            if _cancelled():
                raise
            await self._lost(other, stall_s)
        sent = 0
        try:
            if other.life != life or other.resolver is None:
                await self._lost(other, stall_s)
            await self._world.move(other, self._me, chunk, sink)
        except SourceDown:
            await self._lost(other, stall_s)
        finally:
            sent = sink.received
            lease.close(sent)
        if other.corrupt:
            sink.spoil()

    async def probe(self, node: Node, chunks: Sequence[Digest], ask: Ask, *, stall_s: float) -> tuple[Holding, ...]:
        _, resolver = await self._reach(node, stall_s)
        return resolver.probe(chunks, ask)

    async def tell(self, node: Node, topic: str, body: bytes, *, stall_s: float) -> bytes:
        other, resolver = await self._reach(node, stall_s)
        try:
            answer = await resolver.told(topic, body)
        except asyncio.CancelledError:
            if _cancelled():
                raise
            await self._lost(other, stall_s)
        self._world.told_messages += 1
        self._world.told_bytes += len(body) + len(answer)
        return answer

    async def _reach(self, node: Node, stall_s: float) -> tuple[Machine, Resolver]:
        await self._world.pause(self._world.rtt_s)
        other = self._world.by_name[node.name]
        if other.resolver is None:
            await self._lost(other, stall_s)
        return other, other.resolver

    async def _lost(self, other: Machine, stall_s: float) -> NoReturn:
        if other.silent:
            await asyncio.sleep(stall_s)
            raise SourceSilent(other.name, stall_s)
        raise SourceDown(other.name, "connection refused")


class SimClaims:
    """Claims in the simulated bucket: each write is one round trip to the first byte."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[Digest, tuple[str, float, str]] = {}
        self.written = 0

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        await asyncio.sleep(self._world.origin.first_byte_s)
        if self._world.origin.down:
            raise SourceDown("origin", "connection refused")
        now, found = self._world.loop.time(), self._held.get(chunk)
        if found is None or (replace is not None and replace.mark == found[2]):
            self.written += 1
            self._held[chunk] = (holder, now, str(self.written))
            return Claimed(holder, 0.0, str(self.written), fresh=True)
        return Claimed(found[0], now - found[1], found[2])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _cancelled() -> bool:
    """Whether it is the asker that goes away, and not whom it asked."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class SimOrigin:
    """Object storage: a shared egress, a limit per connection, a time to the first byte, and its bad days."""

    def __init__(self, world: World, spec: OriginSpec) -> None:
        self._world, self._spec = world, spec
        self.egress = Pipe(world.loop, "origin", spec.gbit * GBIT, spec.connection_mb_s * 1e6)
        self.first_byte_s = spec.first_byte_ms / 1e3
        self.down = False
        self.active = self.refused = 0
        self.reads: Counter[int] = Counter()
        """By chunk number: how often each was sent, wholly or in part."""
        self.avoidable: list[tuple[float, str, int]] = []
        """(when, node, chunk number) of reads while another live node had the chunk or was reading it."""
        self._reading: Counter[int] = Counter()

    def port(self, me: Machine) -> SimOriginPort:
        return SimOriginPort(self._world, self, me)

    def _held(self, chunk: Chunk) -> bool:
        return any(m.resolver is not None and not m.corrupt and m.store.has(chunk.digest) for m in self._world.machines)

    async def send(self, me: Machine, chunk: Chunk, sink: SimSink) -> None:
        if self.down:
            await asyncio.sleep(self._world.rtt_s)
            raise SourceDown("origin", "connection refused")
        if self._spec.concurrency_max and self.active >= self._spec.concurrency_max:
            self.refused += 1
            await asyncio.sleep(self.first_byte_s)
            raise SourceDown("origin", "503 Slow Down", retry_after_s=1.0)
        self.active += 1
        try:
            await asyncio.sleep(self.first_byte_s)
            number = self._world.numbers[chunk.digest]
            if self.reads[number] and (self._reading[number] or self._held(chunk)):
                self.avoidable.append((self._world.loop.time(), me.name, number))
            self.reads[number] += 1
            self._reading[number] += 1
            try:
                await self._world.move(None, me, chunk, sink)
            finally:
                self._reading[number] -= 1
        finally:
            self.active -= 1


class SimOriginPort:
    """The origin as one node reaches it."""

    def __init__(self, world: World, origin: SimOrigin, me: Machine) -> None:
        self._world, self._origin, self._me = world, origin, me

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        assert isinstance(sink, SimSink)
        if chunk.digest not in self._world.numbers:
            raise ChunkMissing(chunk.digest, source="origin")
        await self._origin.send(self._me, chunk, sink)

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        raise self._none("document")

    async def read_tag(self, name: str, tag: str) -> Digest:
        raise self._none("tag")

    def _none(self, what: str) -> BdnError:
        return Missing(f"the simulated origin holds no {what}", where="origin")

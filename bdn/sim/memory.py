"""The ports in memory, with real bytes and real digests: a small cluster in one process, for tests and examples.

Faults are set from outside (`down`, `silent`, `corrupt`, `gate`), so a test states its world in plain values.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from bdn.clock import LoopClock
from bdn.delivery import Delivered, Delivery
from bdn.digest import Digest, Hasher
from bdn.errors import BdnError, ChunkMissing, Missing, ShortRead, SourceDown, SourceSilent
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Claimed, Claims, Holding, Sink
from bdn.resolver import Resolver
from bdn.roster import Node, Roster
from bdn.window import Window


def model(chunks: int, *, size: int = 64, seed: str = "m") -> tuple[Manifest, dict[Digest, bytes]]:
    """A one-file model and the bytes of its chunks."""
    pieces = [(f"{seed}/{i}/".encode() * size)[:size] for i in range(chunks)]
    extents = tuple(Extent(Chunk(Digest.of(p), size), 0, size) for p in pieces)
    file = File("weights.bin", chunks * size, 0o644, Digest.of(b"".join(pieces)), extents)
    return Manifest((file,)), {e.chunk.digest: p for e, p in zip(extents, pieces, strict=True)}


class MemorySink:
    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.restart()

    def restart(self) -> None:
        self.received = 0
        self.pieces: list[bytes] = []
        self._hasher = Hasher()

    def write(self, piece: memoryview | bytes) -> None:
        self.received += len(piece)
        if self.received > self.chunk.size:
            raise ShortRead(self.chunk.digest, source="?", got_bytes=self.received, want_bytes=self.chunk.size)
        self.pieces.append(bytes(piece))
        self._hasher.update(piece)

    def digest(self) -> Digest:
        return self._hasher.digest()


class MemoryStore:
    """Chunks by digest, and which of them are in place in which model."""

    def __init__(self) -> None:
        self.bytes: dict[Digest, bytes] = {}
        self._models: dict[Digest, tuple[Manifest, set[Digest]]] = {}
        self._published: dict[Digest, str] = {}
        self.open_sinks = 0
        self.rechecked: Counter[Digest] = Counter()
        self.hot: set[Digest] = set()
        """What it was told that others are about to ask for."""

    def has(self, digest: Digest) -> bool:
        return digest in self.bytes

    def verified(self, manifest: Digest) -> frozenset[Digest]:
        return frozenset(self._models[manifest][1])

    async def admit(self, manifest: Manifest) -> None:
        self._models.setdefault(manifest.digest, (manifest, set()))

    async def adopt(self, manifest: Digest, chunk: Chunk) -> bool:
        if chunk.digest not in self.bytes:
            return False
        self._models[manifest][1].add(chunk.digest)
        return True

    def sink(self, manifest: Digest, chunk: Chunk, *, hot: bool = False) -> MemorySink:
        assert manifest in self._models, "the model was not admitted"
        self.open_sinks += 1
        if hot:
            self.hot.add(chunk.digest)
        return MemorySink(chunk)

    async def commit(self, manifest: Digest, sink: object) -> None:
        assert isinstance(sink, MemorySink) and sink.digest() == sink.chunk.digest
        self.open_sinks -= 1
        self.bytes[sink.chunk.digest] = b"".join(sink.pieces)
        self._models[manifest][1].add(sink.chunk.digest)

    def discard(self, sink: object) -> None:
        self.open_sinks -= 1

    async def publish(self, manifest: Digest) -> str:
        whole, there = self._models[manifest]
        assert {c.digest for c in whole.chunks} == there, "published before it was whole"
        return self._published.setdefault(manifest, f"/memory/{manifest.hex}")

    def published(self, manifest: Digest) -> str | None:
        return self._published.get(manifest)

    def models(self) -> Iterable[Digest]:
        return tuple(self._models)

    async def recheck(self, digest: Digest) -> Mapping[Digest, bool]:
        self.rechecked[digest] += 1
        if Digest.of(self.bytes[digest]) == digest:
            return {}
        del self.bytes[digest]
        models = [m for m, (_, there) in self._models.items() if digest in there]
        for manifest in models:
            self._models[manifest][1].discard(digest)
        return {manifest: self._published.pop(manifest, None) is not None for manifest in models}


class CountingOrigin:
    """Sends chunks from memory and counts each read. `gate`: when set, every read waits for it."""

    def __init__(self, objects: dict[Digest, bytes]) -> None:
        self.objects = objects
        self.reads: Counter[Digest] = Counter()
        self.failures: list[BdnError] = []
        """Raised one by one, before anything is sent."""
        self.gate: asyncio.Event | None = None
        self.corrupt: set[Digest] = set()
        self.active = self.active_max = 0

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        self.reads[chunk.digest] += 1
        self.active += 1
        self.active_max = max(self.active, self.active_max)
        try:
            await asyncio.sleep(0.001)
            if self.failures:
                raise self.failures.pop(0)
            if self.gate is not None:
                await self.gate.wait()
            body = self.objects.get(chunk.digest)
            if body is None:
                raise ChunkMissing(chunk.digest, source="origin")
            sink.write(bytes(len(body)) if chunk.digest in self.corrupt else body)
        finally:
            self.active -= 1

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        raise Missing("no document in memory")

    async def read_tag(self, name: str, tag: str) -> Digest:
        raise Missing("no tag in memory")


class MemoryClaims:
    """Claims in memory; `age_s` makes every one of them that old."""

    def __init__(self) -> None:
        self.held: dict[Digest, tuple[str, str]] = {}
        self.age_s = 0.0
        self.written = 0

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        await asyncio.sleep(0.001)
        found = self.held.get(chunk)
        if found is None or (replace is not None and replace.mark == found[1]):
            self.written += 1
            self.held[chunk] = holder, str(self.written)
            return Claimed(holder, 0.0, str(self.written), fresh=True)
        return Claimed(found[0], self.age_s, found[1])


class MemoryMembership:
    """One node's view, replaced by hand."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    async def changes(self) -> AsyncIterator[Roster]:
        yield self.roster


class MemoryPeers:
    """One node's calls to the others, answered by their resolvers in this process."""

    def __init__(self, me: str, cluster: Cluster) -> None:
        self._me, self._cluster = me, cluster

    async def fetch_into(self, node: Node, chunk: Chunk, ask: Ask, sink: Sink, *, stall_s: float) -> None:
        self._cluster.asked[(self._me, node.name)] += 1
        other = await self._reach(node, stall_s)
        lease = await other.answer(chunk.digest, ask)
        body = self._cluster.stores[node.name].bytes.get(chunk.digest)
        if body is None:
            lease.close(0)
            other.missed(chunk.digest)
            raise ChunkMissing(chunk.digest, source=node.name)
        try:
            await asyncio.sleep(self._cluster.slow.get(node.name, 0.001))
            await self._reach(node, stall_s)
            sink.write(bytes(len(body)) if node.name in self._cluster.corrupt else body)
        finally:
            lease.close(sink.received)

    async def probe(self, node: Node, chunks: Sequence[Digest], ask: Ask, *, stall_s: float) -> tuple[Holding, ...]:
        self._cluster.probes[(self._me, node.name)] += 1
        return (await self._reach(node, stall_s)).probe(chunks, ask)

    async def tell(self, node: Node, topic: str, body: bytes, *, stall_s: float) -> bytes:
        answer = await (await self._reach(node, stall_s)).told(topic, body)
        await asyncio.sleep(self._cluster.late())
        return answer

    async def _reach(self, node: Node, stall_s: float) -> Resolver:
        await asyncio.sleep(0.0001)
        if node.name in self._cluster.silent:
            await asyncio.sleep(stall_s)
            raise SourceSilent(node.name, stall_s)
        if node.name in self._cluster.down or node.name not in self._cluster.resolvers:
            raise SourceDown(node.name, "connection refused")
        return self._cluster.resolvers[node.name]


class Cluster:
    """Nodes that know one another unless a test gives one another view. Build it inside the running loop."""

    def __init__(
        self,
        names: Sequence[str],
        origin: CountingOrigin,
        limits: Limits = Limits(),  # noqa: B008
        *,
        coordinate: bool = True,
        claims: Claims | None = None,
    ) -> None:
        self.roster = Roster(tuple(Node(n, n) for n in names))
        self.origin, self.limits, self.clock = origin, limits, LoopClock()
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.corrupt: set[str] = set()
        self.slow: dict[str, float] = {}
        self.late: Callable[[], float] = lambda: 0.0
        """How long the next answer to a message is on its way."""
        self.asked: Counter[tuple[str, str]] = Counter()
        self.probes: Counter[tuple[str, str]] = Counter()
        self.views = {n: MemoryMembership(self.roster) for n in names}
        self.stores = {n: MemoryStore() for n in names}
        self.resolvers = {
            n: Resolver(
                n, self.stores[n], MemoryPeers(n, self), origin, self.views[n], self.clock,
                limits=limits, coordinate=coordinate, claims=claims,
            )
            for n in names
        }  # fmt: skip

    def delivery(self, name: str, manifest: Manifest, use: OriginUse = OriginUse.PREFER) -> Delivery:
        window = Window(slots=self.limits.in_flight_chunks, bytes_max=self.limits.in_flight_bytes)
        return Delivery(manifest, self.resolvers[name], window, self.clock, use=use)

    async def pull(self, name: str, manifest: Manifest, use: OriginUse = OriginUse.PREFER) -> Delivered:
        return await self.delivery(name, manifest, use).run()

    async def pull_all(self, manifest: Manifest) -> list[Delivered]:
        return list(await asyncio.gather(*(self.pull(n, manifest) for n in self.resolvers)))

    async def join(self, name: str, manifest: Manifest) -> None:
        """Take part in a model without pulling it."""
        await self.stores[name].admit(manifest)
        self.resolvers[name].join(manifest)

    def ranked(self, digest: Digest) -> list[str]:
        return [n.name for n in self.roster.ranked(digest)]

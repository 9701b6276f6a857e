"""Fakes that implement ports in memory, with knobs: what a node holds, what it refuses, what it is slow at."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from bdn.digest import Digest, Hasher
from bdn.errors import BdnError, ChunkMissing, Missing, ShortRead, SourceDown
from bdn.manifest import Chunk, Manifest
from bdn.nvme_model import FileChunk
from bdn.ports import Ask, Holding, Listing, OpenChunk, Span, UpstreamFile


class MemorySink:
    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.data = bytearray()

    @property
    def received(self) -> int:
        return len(self.data)

    def write(self, piece: memoryview | bytes) -> None:
        if len(self.data) + len(piece) > self.chunk.size:
            raise ShortRead(self.chunk.digest, source="test", got_bytes=self.chunk.size + 1, want_bytes=self.chunk.size)
        self.data += piece

    def restart(self) -> None:
        self.data.clear()

    def digest(self) -> Digest:
        hasher = Hasher()
        hasher.update(bytes(self.data))
        return hasher.digest()


class FileShelf:
    """Chunks in one temporary file each."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self.bodies = {Digest.of(b): b for b in bodies}
        self.opened = 0

    def open(self, digest: Digest) -> OpenChunk | None:
        body = self.bodies.get(digest)
        if body is None:
            return None
        with tempfile.TemporaryFile() as file:
            file.write(b"before" + body)
            file.flush()
            self.opened += 1
            return FileChunk((Span(os.dup(file.fileno()), 6, len(body)),), len(body))


class Lease:
    def __init__(self, owner: ScriptedAnswerer) -> None:
        self._owner = owner

    def close(self, sent_bytes: int) -> None:
        self._owner.sent.append(sent_bytes)


class ScriptedAnswerer:
    """Answers at once, or after `gate` opens, or with an error; remembers who asked and what was sent."""

    def __init__(self, *, refuse: BdnError | None = None, gate: asyncio.Event | None = None) -> None:
        self.refuse, self.gate = refuse, gate
        self.asks: list[Ask] = []
        self.sent: list[int] = []
        self.gone: list[Digest] = []
        self.cancelled = asyncio.Event()
        self.asked = asyncio.Event()
        self.holdings: dict[Digest, Holding] = {}

    async def answer(self, digest: Digest, ask: Ask) -> Lease:
        self.asks.append(ask)
        self.asked.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.refuse is not None:
            raise self.refuse
        return Lease(self)

    def missed(self, digest: Digest) -> None:
        self.gone.append(digest)

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return tuple(self.holdings.get(d, Holding.LACKS) for d in digests)

    async def told(self, topic: str, body: bytes) -> bytes:
        if topic != "echo":
            raise Missing(f"no topic {topic}")
        return body[::-1]


@dataclass
class Library:
    """Implements `Documents`: what it has, whom it names, what it was asked."""

    manifests: Sequence[Manifest] = ()
    names: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def document(self, digest: Digest) -> bytes | None:
        return next((b for m in self.manifests for d, b in m.documents_by_digest.items() if d == digest), None)

    def whereabouts(self, manifest: Digest, asker: str) -> tuple[str, ...]:
        self.asked.append(asker)
        return self.names


def missing(digest: Digest) -> ChunkMissing:
    return ChunkMissing(digest, source="node-b")


class MemoryUpstream:
    """Files by path; counts every byte it gives, and can fail or lie as told."""

    def __init__(self, files: dict[str, bytes], *, revision: str = "abc", piece_bytes: int = 100_000) -> None:
        self.files, self.revision, self.piece_bytes = files, revision, piece_bytes
        self.bytes_read = 0
        self.modes: dict[str, int] = {}
        self.checksums: dict[str, tuple[tuple[str, str], ...]] = {}
        self.links: dict[str, str] = {}
        self.down_at: list[tuple[str, int]] = []
        """(path, offset): the stream breaks there, once."""
        self.lengths: dict[str, int] = {}

    async def listing(self) -> Listing:
        files = [
            UpstreamFile(p, self.lengths.get(p, len(b)), self.modes.get(p, 0o644), self.checksums.get(p, ()))
            for p, b in sorted(self.files.items())
        ]
        files += [UpstreamFile(p, 0, link_target=t) for p, t in self.links.items()]
        return Listing("memory:model", self.revision, tuple(files))

    async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        body, buffer = self.files[file.path], bytearray(self.piece_bytes)
        for at in range(offset, len(body), self.piece_bytes):
            for broken in list(self.down_at):
                if broken[0] == file.path and at >= broken[1]:
                    self.down_at.remove(broken)
                    raise SourceDown("memory", "reset", retry_after_s=0)
            piece = body[at : at + self.piece_bytes]
            buffer[: len(piece)] = piece
            self.bytes_read += len(piece)
            await asyncio.sleep(0)
            yield memoryview(buffer)[: len(piece)]

    async def close(self) -> None:
        pass

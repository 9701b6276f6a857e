"""A model as large as wanted that takes no disk where it is served from: 256 MiB of random bytes over and over, each
chunk with a number of its own. Started as `python -m benchmarks.stamped PORT GIGABYTES PEERS`: an origin on PORT, and
that many peers, each a listener of its own, on the ports after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence

import uvloop

from bdn.digest import Digest, Hasher
from bdn.errors import ChunkMissing
from bdn.http.head import Request
from bdn.http.peer import PeerServer
from bdn.http.server import HttpServer, Response
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.origins.layout import chunk_key, document_key, tag_key, write_pointer
from bdn.ports import Ask, Holding, Span
from benchmarks.data import NAME

BLOCK_BYTES, CHUNK_BYTES, STAMP_BYTES = 256 << 20, 8 << 20, 16


class StampedChunk:
    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans, self.size = spans, sum(s.size for s in spans)

    def close(self, sent_bytes: int = 0) -> None:
        """Nothing of its own is open; as a lease it has no limits."""


class Stamped:
    """The model, and every part that a server of it plays: shelf, answerer, handler of an origin's requests."""

    def __init__(self, total_bytes: int) -> None:
        self._block, self._stamps = os.memfd_create("block"), os.memfd_create("stamps")
        rng = random.Random(7)
        for at in range(0, BLOCK_BYTES, 1 << 20):
            os.pwrite(self._block, rng.randbytes(1 << 20), at)
        self._spans: dict[Digest, Sequence[Span]] = {}
        whole, extents = Hasher(), []
        for number in range(total_bytes // CHUNK_BYTES):
            spans, hasher = self._place(number), Hasher()
            for piece in self._bytes(spans):
                hasher.update(piece)
                whole.update(piece)
            digest = hasher.digest()
            self._spans[digest] = spans
            extents.append(Extent(Chunk(digest, CHUNK_BYTES), 0, CHUNK_BYTES))
        size = len(extents) * CHUNK_BYTES
        self.manifest = Manifest((File("model.safetensors", size, 0o644, whole.digest(), tuple(extents)),))
        documents = {"/" + document_key(Digest.of(body)): body for body in self.manifest.documents}
        self._bodies = {**documents, "/" + tag_key(NAME, "latest"): write_pointer(self.manifest.digest)}
        self._keys = {"/" + chunk_key(digest): digest for digest in self._spans}

    def _place(self, number: int) -> Sequence[Span]:
        os.pwrite(self._stamps, number.to_bytes(STAMP_BYTES, "little"), number * STAMP_BYTES)
        at = number * CHUNK_BYTES % BLOCK_BYTES
        stamp = Span(self._stamps, number * STAMP_BYTES, STAMP_BYTES)
        return stamp, Span(self._block, at, CHUNK_BYTES - STAMP_BYTES)

    def _bytes(self, spans: Sequence[Span]) -> Iterator[bytes]:
        for span in spans:
            for at in range(0, span.size, 1 << 20):
                yield os.pread(span.fd, min(1 << 20, span.size - at), span.offset + at)

    def open(self, digest: Digest) -> StampedChunk | None:
        return StampedChunk(self._spans[digest]) if digest in self._spans else None

    async def answer(self, digest: Digest, ask: Ask) -> StampedChunk:
        if digest not in self._spans:
            raise ChunkMissing(digest, source="bench")
        return StampedChunk(())

    def missed(self, digest: Digest) -> None:
        """Nothing here goes away."""

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return (Holding.HAVE,) * len(digests)

    async def told(self, topic: str, body: bytes) -> bytes:
        return b""

    async def handle(self, request: Request, body: bytes) -> Response:
        if request.path in self._keys:
            return Response(200, spans=self._spans[self._keys[request.path]])
        if request.path in self._bodies:
            return Response(200, body=self._bodies[request.path])
        return Response(404)


async def main() -> None:
    port, gigabytes, peers = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    model = Stamped(int(gigabytes * 1e9))
    for number in range(peers):
        await PeerServer(model, model).start("127.0.0.1", port + 1 + number)
    await HttpServer(model).start("127.0.0.1", port)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main())

"""Servers of ours as processes: `python -m benchmarks.serving PORT peer|origin DIR [BYTES_PER_S]`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bdn.digest import Digest
from bdn.errors import ChunkMissing
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.http.static import DirectoryServer
from bdn.nvme_model import FileChunk
from bdn.origins.layout import chunk_key
from bdn.ports import Ask, Holding, Span


class DirectoryNode:
    """A peer that has everything: an answerer that says yes, on the chunks of a mirrored directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, digest: Digest) -> FileChunk | None:
        try:
            fd = os.open(self.root / chunk_key(digest), os.O_RDONLY)
        except OSError:
            return None
        size = os.fstat(fd).st_size
        return FileChunk((Span(fd, 0, size),), size)

    async def answer(self, digest: Digest, ask: Ask) -> DirectoryNode:
        if not (self.root / chunk_key(digest)).exists():
            raise ChunkMissing(digest, source="bench")
        return self

    def close(self, sent_bytes: int = 0) -> None:
        """A lease without limits."""

    def missed(self, digest: Digest) -> None:
        """Nothing here goes away."""

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        return (Holding.HAVE,) * len(digests)

    async def told(self, topic: str, body: bytes) -> bytes:
        return b""


async def main() -> None:
    port, kind, root, *rate = sys.argv[1:]
    limits = ServerLimits(bytes_per_s=float(rate[0]) if rate else 0.0)
    node = DirectoryNode(Path(root))
    server = PeerServer(node, node, limits) if kind == "peer" else DirectoryServer(Path(root), limits)
    await server.start("127.0.0.1", int(port))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main())

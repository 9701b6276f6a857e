"""Whom a server drops: who drips its request or takes next to nothing of an answer, and nobody who is only slow."""

from __future__ import annotations

import asyncio
import random

import pytest
import uvloop

from bdn.digest import Digest
from bdn.http.head import Request
from bdn.http.server import HttpServer, Response, ServerLimits
from bdn.manifest import Chunk
from tests.bdn.fakes import FileShelf, ScriptedAnswerer
from tests.bdn.test_http_peers import Run, node

EITHER_LOOP = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
LIMITS = ServerLimits(stall_s=0.2)


@EITHER_LOOP
@pytest.mark.parametrize("begin", [b"G", b"POST /v1/probe HTTP/1.1\r\ncontent-length: 64\r\n\r\n"])
def test_an_asker_that_drips_its_request_is_dropped(run: Run, begin: bytes) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer(), stall_s=LIMITS.stall_s) as (_, peer, server):
            _, writer = await asyncio.open_connection(peer.host, peer.port)
            writer.write(begin)
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    writer.write(b"E")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            assert not server.http._connections
            writer.close()

    run(work())


@EITHER_LOOP
def test_an_asker_that_takes_next_to_nothing_gives_its_place_up(run: Run) -> None:
    body = bytes(16 << 20)  # More than the sockets between hold.
    chunk = Chunk(Digest.of(body), len(body))

    async def work() -> None:
        answerer = ScriptedAnswerer()
        async with node(answerer, FileShelf([body]), stall_s=LIMITS.stall_s) as (_, peer, server):
            reader, writer = await asyncio.open_connection(peer.host, peer.port, limit=1 << 10)
            ask = f"GET /v1/chunks/{chunk.digest.hex} HTTP/1.1\r\nx-bdn-asker: a\r\nx-bdn-manifest: {'0' * 64}\r\n\r\n"
            writer.write(ask.encode())
            for _ in range(1000):
                await reader.read(1)
                await asyncio.sleep(0.02)
                if not server.http._connections:
                    break
            assert not server.http._connections
            writer.close()
        [sent] = answerer.sent  # Told when the cancelled answer has ended, which stopping the server waits for.
        assert sent < len(body)

    run(work())


class Large:
    """Answers everything with a body of its own, not from a file."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def handle(self, request: Request, body: bytes) -> Response:
        return Response(200, body=self._body)


@EITHER_LOOP
def test_an_asker_that_takes_an_answer_slowly_gets_all_of_it(run: Run) -> None:
    body = random.Random(1).randbytes(12 << 20)  # More than the sockets between hold.

    async def work() -> None:
        server = HttpServer(Large(body), LIMITS)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0), limit=1 << 10)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        got = bytearray()
        while len(got) < len(body):
            piece = await reader.read(64 << 10)
            assert piece, f"dropped after {len(got)} bytes"
            got += piece
            await asyncio.sleep(0.02)
        assert got == body
        writer.close()
        await server.stop()

    run(work())

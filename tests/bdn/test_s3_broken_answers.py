"""What the mirror makes of a service, or a proxy before it, whose answers break off or are no HTTP."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bdn.digest import Digest
from bdn.errors import SourceDown, SourceSilent
from bdn.manifest import Chunk
from bdn.origins.layout import write_pointer
from bdn.origins.s3_writer import S3Writer
from bdn.origins.sigv4 import Credentials

TAG = write_pointer(Digest.of(b"a manifest"))
BODY = bytes(range(256)) * 4
CHUNK = Chunk(Digest.of(BODY), len(BODY))


async def at_a_service_that_says(*answers: bytes) -> tuple[S3Writer, asyncio.Server]:
    """One answer for each connection, which is closed after it; the last one again and again."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return S3Writer("s3://bucket/x", endpoint=f"http://127.0.0.1:{port}", keys=Credentials("a", "b")), server


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: e\r\n\r\n" % len(body) + body


def cut_off(body: bytes) -> bytes:
    return whole(body)[:-10]


@pytest.mark.parametrize(
    "broken",
    [
        cut_off(TAG),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nno length",
        b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
)
def test_a_broken_answer_is_asked_for_again_and_then_down(broken: bytes) -> None:
    async def work() -> None:
        writer, server = await at_a_service_that_says(broken, whole(TAG))
        assert await writer.read_tag("m", "latest") == Digest.of(b"a manifest")
        await writer.close()
        server.close()
        writer, server = await at_a_service_that_says(broken)
        writer._requests._proven = True
        with pytest.raises(SourceDown):
            await asyncio.wait_for(writer.read_tag("m", "latest"), 30)
        await writer.close()
        server.close()

    asyncio.run(work())


def test_a_service_that_takes_a_chunk_and_says_nothing_is_asked_once_more_only() -> None:
    asked = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.read()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        writer = S3Writer("s3://bucket/x", endpoint=endpoint, keys=Credentials("a", "b"), read_s=0.2)
        writer._answered = True
        for work in (writer.put(CHUNK, BODY), writer.read_tag("m", "latest")):
            with pytest.raises(SourceSilent):
                await asyncio.wait_for(work, 20)
        assert len(asked) == 4
        await writer.close()
        server.close()

    asyncio.run(work())


@pytest.mark.parametrize("proven", [False, True])
def test_a_service_behind_a_slow_link_gets_its_chunk(proven: bool) -> None:
    """A connection has 0.3 s to begin; the chunk takes longer than that."""
    body, came = bytes(8 << 20), []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"100-continue" in head:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        size = 0
        while size < len(body) and (piece := await reader.read(32 << 10)):
            size += len(piece)
            await asyncio.sleep(0.004)
        came.append(size)
        writer.write(whole(b""))
        await writer.drain()
        writer.close()

    async def work() -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        small.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(take, sock=small, limit=16 << 10)
        endpoint = f"http://127.0.0.1:{small.getsockname()[1]}"
        writer = S3Writer("s3://bucket/x", endpoint=endpoint, keys=Credentials("a", "b"), connect_s=0.3)
        writer._requests._proven = proven
        await asyncio.wait_for(writer.put(Chunk(Digest.of(body), len(body)), body), 60)
        assert came == [len(body)]
        await writer.close()
        server.close()

    asyncio.run(work())


def test_a_chunk_that_breaks_off_while_it_is_read_back_is_read_again() -> None:
    async def work() -> None:
        writer, server = await at_a_service_that_says(cut_off(BODY), whole(BODY))
        assert await writer.held([CHUNK], reread=True) == {CHUNK.digest}
        await writer.close()
        server.close()

    asyncio.run(work())


def test_an_object_of_no_readable_length_is_stored_again() -> None:
    async def work() -> None:
        writer, server = await at_a_service_that_says(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n")
        assert await writer.held([CHUNK]) == frozenset()
        await writer.close()
        server.close()

    asyncio.run(work())

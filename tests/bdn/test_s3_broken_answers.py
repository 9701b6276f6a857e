"""What the mirror makes of a service, or a proxy before it, whose answers break off or are no HTTP."""

from __future__ import annotations

import asyncio

import pytest

from bdn.digest import Digest
from bdn.errors import SourceDown
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

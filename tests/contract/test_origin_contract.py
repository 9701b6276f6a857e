"""What every origin promises, whoever stores it: the reading side and the mirror's side."""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from bdn.digest import Digest
from bdn.errors import ChunkMissing, Corrupt, Invalid, Missing, ShortRead
from bdn.http.static import DirectoryServer
from bdn.manifest import Chunk
from bdn.origins.open import OpenOrigin, open_origin, open_writer
from bdn.ports import OriginWriter
from tests.bdn.fakes import MemorySink
from tests.servers import ADMIN, S3Service

Both = tuple[OriginWriter, OpenOrigin]
Open = Callable[[], AbstractAsyncContextManager[Both]]
BODY = random.Random(5).randbytes(1_000_000)
CHUNK = Chunk(Digest.of(BODY), len(BODY))
OTHER = Digest.of(b"another")


@pytest.fixture(params=["directory", "http", "s3"])
def origin(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a writer and a reader of the same origin, the same one every time within a test."""
    place, endpoint = "", ""
    if request.param == "s3":
        service: S3Service = request.getfixturevalue("s3")
        endpoint, place = service.endpoint, service.place()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ADMIN[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ADMIN[1])

    @asynccontextmanager
    async def opened() -> AsyncIterator[Both]:
        url = place or str(tmp_path / "origin")
        writer = open_writer(url, endpoint=endpoint)
        server = None
        if request.param == "http":
            server = DirectoryServer(url)
            url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        reader = open_origin(url, endpoint=endpoint)
        yield writer, reader
        await reader.close()
        await writer.close()
        if server is not None:
            await server.stop()

    return opened


def test_a_stored_chunk_is_held_and_reads_back(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            assert await writer.held([CHUNK]) == frozenset()
            for _ in range(2):
                await writer.put(CHUNK, memoryview(bytearray(BODY)))
            assert await writer.held([CHUNK, Chunk(OTHER, 5)]) == {CHUNK.digest}
            sink = MemorySink(CHUNK)
            await reader.fetch_into(CHUNK, sink, stall_s=5)
            assert bytes(sink.data) == BODY

    asyncio.run(work())


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("size", [1 << 20, (3 << 20) + 4097])
def test_a_chunk_is_stored_whole_wherever_it_lies_in_memory(origin: Open, begin: int, size: int) -> None:
    """Beside a page's beginning it cannot be written past the page cache."""
    memory = mmap.mmap(-1, begin + size)
    memory[begin:] = body = random.Random(6).randbytes(size)
    chunk = Chunk(Digest.of(body), size)

    async def work() -> None:
        async with origin() as (writer, reader):
            await writer.put(chunk, memoryview(memory)[begin:])
            sink = MemorySink(chunk)
            await reader.fetch_into(chunk, sink, stall_s=5)
            assert bytes(sink.data) == body

    asyncio.run(work())


class LoopSink(MemorySink):
    """As those past the page cache: their memory belongs to the event loop."""

    def write(self, piece: memoryview | bytes) -> None:
        asyncio.get_running_loop()  # Raises RuntimeError in any other thread.
        super().write(piece)


def test_a_sink_is_written_from_the_event_loop(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            await writer.put(CHUNK, BODY)
            sink = LoopSink(CHUNK)
            sink.write(b"of an earlier source")
            await reader.fetch_into(CHUNK, sink, stall_s=5)
            assert bytes(sink.data) == BODY

    asyncio.run(work())


def test_what_is_not_there_is_missing(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            with pytest.raises(ChunkMissing):
                await reader.fetch_into(CHUNK, MemorySink(CHUNK), stall_s=5)
            with pytest.raises(Missing):
                await reader.read_document(OTHER, bytes_max=1000)
            with pytest.raises(Missing):
                await reader.read_tag("some/model", "latest")
            with pytest.raises(Missing):
                await writer.read_tag("some/model", "latest")
            assert await writer.recall(OTHER) is None

    asyncio.run(work())


def test_a_chunk_of_another_length_is_a_short_read(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            await writer.put(CHUNK, BODY)
            wrong = Chunk(CHUNK.digest, CHUNK.size + 1)
            assert await writer.held([wrong]) == frozenset()
            with pytest.raises(ShortRead):
                await reader.fetch_into(wrong, MemorySink(wrong), stall_s=5)

    asyncio.run(work())


def test_documents_read_back_and_a_changed_or_huge_one_is_refused(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            body = b'{"schema":"x"}\n'
            digest = Digest.of(body)
            await writer.put_document(digest, body)
            assert await reader.read_document(digest, bytes_max=1000) == body
            assert await writer.read_document(digest, bytes_max=1000) == body
            with pytest.raises(Corrupt):
                await reader.read_document(digest, bytes_max=5)
            await writer.put_document(OTHER, b"not what its name says")
            with pytest.raises(Corrupt):
                await reader.read_document(OTHER, bytes_max=1000)

    asyncio.run(work())


def test_a_tag_moves_only_from_where_it_was_expected(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            first, second = Digest.of(b"1"), Digest.of(b"2")
            await writer.move_tag("org/model", "latest", first, expect=None)
            assert await reader.read_tag("org/model", "latest") == first
            if writer.compares_and_swaps:
                with pytest.raises(Invalid):
                    await writer.move_tag("org/model", "latest", second, expect=None)
                with pytest.raises(Invalid):
                    await writer.move_tag("org/model", "latest", second, expect=OTHER)
                assert await reader.read_tag("org/model", "latest") == first
            await writer.move_tag("org/model", "latest", second, expect=first)
            assert await reader.read_tag("org/model", "latest") == second

    asyncio.run(work())


def test_a_tag_that_is_where_it_should_go_is_no_conflict(origin: Open) -> None:
    """Two mirrors of one model, at once: whoever came second was told that another writer had moved the tag."""

    async def work() -> None:
        async with origin() as (writer, reader):
            for _ in range(2):
                await writer.move_tag("org/model", "latest", OTHER, expect=None)
            assert await reader.read_tag("org/model", "latest") == OTHER

    asyncio.run(work())


def test_of_many_writers_one_moves_the_tag(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            if not writer.compares_and_swaps:
                pytest.skip("this store cannot compare and swap")
            wanted = [Digest.of(bytes([i])) for i in range(8)]
            moves = (writer.move_tag("m", "t", d, expect=None) for d in wanted)
            outcomes = await asyncio.gather(*moves, return_exceptions=True)
            won = [d for d, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
            assert len(won) == 1
            assert await reader.read_tag("m", "t") == won[0]

    asyncio.run(work())


def test_every_tag_is_listed(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            for name, tag in (("a", "latest"), ("org/b", "v1"), ("org/b", "v2")):
                await writer.move_tag(name, tag, OTHER, expect=None)
            listed = [(e.name, e.tag, e.manifest) async for e in reader.tags()]
            assert sorted(listed) == [("a", "latest", OTHER), ("org/b", "v1", OTHER), ("org/b", "v2", OTHER)]
            assert sorted([(e.name, e.tag, e.manifest) async for e in writer.tags()]) == sorted(listed)

    asyncio.run(work())


def test_what_a_source_gave_is_remembered(origin: Open) -> None:
    async def work() -> None:
        async with origin() as (writer, _):
            await writer.remember(OTHER, CHUNK.digest)
            assert await writer.recall(OTHER) == CHUNK.digest

    asyncio.run(work())


@pytest.mark.parametrize(
    ("name", "tag"), [("../x", "t"), ("a//b", "t"), ("A", "t"), ("a", ".."), ("a", "x/y"), ("", "t")]
)
def test_names_that_are_no_safe_path_are_refused(origin: Open, name: str, tag: str) -> None:
    async def work() -> None:
        async with origin() as (writer, reader):
            with pytest.raises(Invalid):
                await writer.move_tag(name, tag, OTHER, expect=None)
            with pytest.raises(Invalid):
                await reader.read_tag(name, tag)

    asyncio.run(work())

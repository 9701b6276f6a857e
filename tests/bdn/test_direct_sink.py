"""Past the page cache: bytes lie where they belong at any alignment, memory goes round, and nothing lands late."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from bdn.aio import Writes
from bdn.arena import Arena
from bdn.digest import Digest
from bdn.direct_sink import DirectSink
from bdn.manifest import Chunk

BLOCK = 8192


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def make(path: Path, body: bytes, arena: Arena, base: int = 0, *, keep: bool = False) -> DirectSink:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    return DirectSink(Chunk(Digest.of(body), len(body)), fd, base, path=str(path), arena=arena, keep=keep)


def receive(sink: DirectSink, body: bytes, piece: int) -> None:
    """As a connection does that reads into the sink's own memory."""
    at = 0
    while at < len(body):
        room = sink.room()
        assert room is not None
        size = min(piece, len(room), len(body) - at)
        room[:size] = body[at : at + size]
        sink.filled(size)
        at += size


def blocks_left(arena: Arena) -> int:
    taken = []
    while (block := arena.take()) is not None:
        taken.append(block)
    arena.give_back(taken)
    return len(taken)


@pytest.mark.parametrize("base", [0, 1, 4095, 4096, 5000])
@pytest.mark.parametrize("size", [1, 4095, 4096, 8192, 8193, 30_001])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("private", [0, 2])
def test_a_body_lies_in_its_file_at_any_alignment(
    tmp_path: Path, base: int, size: int, keep: bool, private: int
) -> None:
    async def work() -> None:
        before, body, arena = (
            random.Random(1).randbytes(60_000),
            random.Random(size).randbytes(size),
            Arena(3, private, BLOCK),
        )
        (tmp_path / "file").write_bytes(before)
        sink = make(tmp_path / "file", body, arena, base, keep=keep)
        receive(sink, bytes(size)[: size // 2], 999)
        sink.restart()
        receive(sink, body, 3000)
        assert sink.digest() == sink.chunk.digest
        await sink.quiet()
        sink.settled = True
        sink.close()
        assert (tmp_path / "file").read_bytes() == before[:base] + body + before[base + size :]
        kept = arena.open(sink.chunk.digest)
        assert (kept is not None) == (keep and base % 4096 + size <= 3 * BLOCK)
        if kept is not None:
            assert b"".join(os.pread(s.fd, s.size, s.offset) for s in kept.spans) == body
            kept.close()
        assert blocks_left(arena) == 3 + private, "every block came back, once"
        arena.close()

    run(work())


def test_memory_goes_round_in_the_way_that_costs_less(tmp_path: Path) -> None:
    """Each full block's cost is told; which of the ways is cheaper is for `blocks` to find."""

    told: list[float] = []

    class Telling(Arena):
        def filled(self, block: int, seconds: float) -> None:
            told.append(seconds)

    async def work() -> None:
        arena = Telling(0, 8, BLOCK)
        body = random.Random(0).randbytes(3 * BLOCK)
        sink = make(tmp_path / "file", body, arena, base=100)
        receive(sink, body, 999)
        await sink.quiet()
        assert len(told) == 2, "the first block is short of what lies before it, the last of what is missing behind"
        assert all(seconds > 0 for seconds in told)
        sink.settled = True
        sink.close()
        arena.close()

    run(work())


def test_with_no_block_to_be_had_the_bytes_go_the_usual_way(tmp_path: Path) -> None:
    async def work() -> None:
        arena, body = Arena(1, 0, BLOCK), random.Random(0).randbytes(20_000)
        block = arena.take()
        sink = make(tmp_path / "file", body, arena, 4)
        assert block is not None and sink.room() is None
        sink.write(body[:5000])
        arena.give_back([block])
        sink.write(body[5000:])
        await sink.quiet()
        assert sink.digest() == sink.chunk.digest
        sink.close()
        assert (tmp_path / "file").read_bytes()[4:] == body
        arena.close()

    run(work())


def test_without_asynchronous_writes_the_bytes_go_the_usual_way(tmp_path: Path) -> None:
    async def work() -> None:
        arena, body = Arena(2, 0, BLOCK), random.Random(0).randbytes(20_000)
        arena.writes.available = False
        sink = make(tmp_path / "file", body, arena, 4)
        receive(sink, body, BLOCK)
        assert sink.buffered and not sink.busy
        sink.close()
        assert (tmp_path / "file").read_bytes()[4:] == body

    run(work())


def test_once_a_revoked_sink_is_quiet_nothing_more_lands(tmp_path: Path) -> None:
    async def work() -> None:
        arena, body, path = Arena(4, 0, BLOCK), random.Random(0).randbytes(32_768), tmp_path / "file"
        sink = make(path, body, arena)
        sink.write(body[:20_000])
        sink.revoke()
        await sink.quiet()
        path.write_bytes(b"the winner's")
        sink.write(body[20_000:])
        sink.close()
        assert path.read_bytes() == b"the winner's" and blocks_left(arena) == 4
        arena.close()

    run(work())


def test_a_sink_closed_while_its_bytes_fly_says_so_until_they_landed(tmp_path: Path) -> None:
    """Whoever takes its place must not write to the same file before."""

    async def work() -> None:
        arena, body = Arena(4, 0, BLOCK), random.Random(0).randbytes(32_768)
        sink = make(tmp_path / "file", body, arena)
        sink.write(body)
        assert sink.busy
        sink.close()
        assert sink.busy and blocks_left(arena) < 4, "memory that is being written from is not free"
        await sink.quiet()
        assert not sink.busy and blocks_left(arena) == 4
        arena.close()

    run(work())


def test_a_second_attempt_waits_for_what_the_first_still_writes(tmp_path: Path) -> None:
    async def work() -> None:
        arena, body = Arena(8, 0, BLOCK), random.Random(0).randbytes(32_768)
        for n in range(50):
            sink = make(tmp_path / f"file-{n}", body, arena)
            receive(sink, bytes(24_576), BLOCK)
            sink.restart()
            receive(sink, body, BLOCK)
            await sink.quiet()
            sink.close()
            assert (tmp_path / f"file-{n}").read_bytes() == body
        assert blocks_left(arena) == 8
        arena.close()

    run(work())


def test_a_chunk_that_is_being_sent_keeps_its_memory(tmp_path: Path) -> None:
    async def work() -> None:
        arena = Arena(2, 0)
        for body in (b"one", b"two"):
            sink = make(tmp_path / body.decode(), body, arena, keep=True)
            sink.write(body)
            sink.settled = True
            sink.close()
        sending = arena.open(Digest.of(b"one"))
        assert sending is not None
        taken = arena.take()
        assert taken is not None and arena.open(Digest.of(b"two")) is None
        assert arena.take() is None, "one is being filled, one is being sent"
        assert os.pread(sending.spans[0].fd, 3, sending.spans[0].offset) == b"one"
        sending.close()
        assert arena.take() is not None
        arena.close()

    run(work())


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        writes, results, path = Writes(4), asyncio.Queue[int](), tmp_path / "file"
        path.write_bytes(b"")
        fd = os.open(path, os.O_RDONLY)
        arena = Arena(1, 0, BLOCK)
        begun = writes.submit(fd, arena.address, 4096, 0, results.put_nowait)
        assert not begun or await results.get() < 0
        os.close(fd)
        writes.close()
        arena.close()

    run(work())

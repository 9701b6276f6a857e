"""The loop is woken for a quick source's bytes by the half MiB; nothing that came is held back, and no source is called
silent while bytes of it lie there unread. Over real sockets, and nothing in it depends on how fast this machine is."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bdn.digest import Digest
from bdn.errors import SourceDown, SourceSilent
from bdn.http.head import Head
from bdn.http.lowwater import MARK_BYTES, LowWater
from bdn.http.receive import WholeChunk
from bdn.http.wire import BUFFER_BYTES, Wire, connect
from bdn.manifest import Chunk
from tests.bdn.fakes import MemorySink
from tests.bdn.test_http_tls import certificate

__all__ = ["certificate"]
Run = Callable[[Coroutine[Any, Any, None]], None]
Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
BODY = random.Random(5).randbytes(3 * MARK_BYTES + 12_345)
LONG_S = 60.0  # A source that is called silent after so long fails the test: nothing here waits for it otherwise.


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    start: Run = request.param
    return start


class Watched(MemorySink):
    """Looks at the kernel's mark at each piece, and can wait until so many bytes were seen. room: as an arena's."""

    def __init__(self, body: bytes, wire: Wire, *, room: bool) -> None:
        super().__init__(Chunk(Digest.of(body), len(body)))
        self.body, self.marks, self._wire = body, list[tuple[int, int]](), wire
        self._memory, self._has_room = memoryview(bytearray(len(body))), room
        self._more = asyncio.Event()

    def room(self) -> memoryview | None:
        return self._memory[self.received : self.received + 100_000] if self._has_room else None

    def filled(self, size: int) -> None:
        self.write(self._memory[self.received : self.received + size])

    def hold(self, resume: Callable[[], None]) -> bool:
        return False

    def write(self, piece: memoryview | bytes) -> None:
        self.marks.append((mark(self._wire), self.chunk.size - self.received))
        super().write(piece)
        self._more.set()

    async def seen(self, size: int) -> None:
        while self.received < size:
            self._more.clear()
            await self._more.wait()


def mark(wire: Wire) -> int:
    """What the kernel holds, not what we think it does."""
    assert wire._transport is not None
    return int(wire._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))


@asynccontextmanager
async def source(*scripts: Script, tls: tuple[Path, Path] | None = None) -> AsyncIterator[Wire]:
    """One connection to a server that answers one request after the other by these scripts."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for script in scripts:
                await reader.readuntil(b"\r\n\r\n")
                await script(writer)
                await writer.drain()
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    context = client = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        client = ssl.create_default_context(cafile=str(tls[0]))
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    wire = await connect("source", "127.0.0.1", server.sockets[0].getsockname()[1], buffer, client)
    try:
        yield wire
    finally:
        wire.abort()
        server.close()


async def ask(wire: Wire, sink: Watched, stall_s: float = LONG_S, *, quick: bool = True) -> Head:
    if quick:
        wire._low._quick = True  # As after a body that came quickly, however busy this machine is.
    head, _ = await wire.exchange(b"GET / HTTP/1.1\r\n\r\n", WholeChunk(sink, "source"), stall_s=stall_s)
    return head


def head(size: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\n\r\n".encode()


def whole(body: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(body)) + body)

    return script


def begun(sink: Callable[[], Watched], size: int, then: Script) -> Script:
    """The head and so much of the body; `then` once that was seen, however far below the mark it is."""

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY)))
        for at in range(0, size, 10_000):
            writer.write(BODY[at : min(size, at + 10_000)])
            await sink().seen(min(size, at + 10_000))
        await then(writer)

    return script


ROOM = pytest.mark.parametrize("room", [True, False], ids=["landing", "buffered"])


@ROOM
@pytest.mark.parametrize("size", [1, MARK_BYTES - 1, MARK_BYTES, MARK_BYTES + 1, 2 * MARK_BYTES, len(BODY)])
def test_the_mark_is_never_above_what_is_left_and_down_for_the_next_head(run: Run, room: bool, size: int) -> None:
    """The source sends a body's end, or a head, and waits: both come without a byte more."""
    body = BODY[:size]

    async def missing(writer: asyncio.StreamWriter) -> None:
        writer.write(head(0, "404 Not Found"))

    async def work() -> None:
        async with source(whole(body), missing, whole(body)) as wire:
            for status in (200, 404, 200):
                sink = Watched(body, wire, room=room)
                assert (await ask(wire, sink)).status == status
                assert mark(wire) == 1
                assert bytes(sink.data) == (body if status == 200 else b"")
                assert all(1 <= at <= left for at, left in sink.marks)

    run(work())


@ROOM
def test_the_mark_is_up_only_over_a_source_that_was_quick(run: Run, room: bool) -> None:
    async def work() -> None:
        async with source(whole(BODY), whole(BODY)) as wire:
            first, second = Watched(BODY, wire, room=room), Watched(BODY, wire, room=room)
            await ask(wire, first, quick=False)
            assert {at for at, _ in first.marks} == {1}
            await ask(wire, second)
            assert second.marks[0][0] == MARK_BYTES

    run(work())


@ROOM
def test_what_lies_below_the_mark_is_seen_before_anything_else_comes(run: Run, room: bool) -> None:
    """Quick once, then slow: each piece waits until the last one was seen, so one held back would wait for ever."""

    async def work() -> None:
        async with source(whole(BODY), begun(lambda: sink, 30_000, rest)) as wire:
            await ask(wire, Watched(BODY, wire, room=room))
            sink = Watched(BODY, wire, room=room)
            await ask(wire, sink)
            assert bytes(sink.data) == BODY and mark(wire) == 1

    async def rest(writer: asyncio.StreamWriter) -> None:
        writer.write(BODY[30_000:])

    run(work())


@ROOM
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_source_that_stalls_below_the_mark_is_silent_once_all_was_read(run: Run, room: bool, size: int) -> None:
    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY)) + BODY[:size])
        await asyncio.sleep(LONG_S)

    async def work() -> None:
        async with source(stall) as wire:
            sink = Watched(BODY, wire, room=room)
            with pytest.raises(SourceSilent):
                await ask(wire, sink, 0.3)
            assert bytes(sink.data) == BODY[:size]

    run(work())


def test_a_source_that_drips_below_the_mark_is_left(run: Run) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def work() -> None:
        async with source(begun(lambda: sink, 0, drip)) as wire:
            sink = Watched(BODY, wire, room=True)
            with pytest.raises(SourceSilent):
                await ask(wire, sink, 0.3)
            assert sink.received

    run(work())


@ROOM
@pytest.mark.parametrize("reset", [False, True])
def test_a_source_that_hangs_up_below_the_mark_is_down_at_once(run: Run, room: bool, reset: bool) -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        if reset:
            writer.transport.abort()
        else:
            writer.close()

    async def work() -> None:
        async with source(begun(lambda: sink, 10_000, hang_up)) as wire:
            sink = Watched(BODY, wire, room=room)
            with pytest.raises(SourceDown):
                await ask(wire, sink)
            assert bytes(sink.data) == BODY[:10_000] and not wire.usable

    run(work())


def test_a_receive_buffer_below_the_mark_wakes_the_loop_when_it_is_full(run: Run) -> None:
    async def work() -> None:
        async with source(whole(BODY), whole(BODY)) as wire:
            assert wire._transport is not None
            wire._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            for _ in range(2):
                sink = Watched(BODY, wire, room=True)
                await ask(wire, sink)
                assert bytes(sink.data) == BODY
                assert all(at <= left for at, left in sink.marks)

    run(work())


def test_what_the_socket_holds_of_tls_says_nothing_of_the_body(run: Run, certificate: tuple[Path, Path]) -> None:
    async def work() -> None:
        async with source(whole(BODY), whole(BODY), tls=certificate) as wire:
            for _ in range(2):
                sink = Watched(BODY, wire, room=True)
                await ask(wire, sink)
                assert bytes(sink.data) == BODY and {at for at, _ in sink.marks} == {1}

    run(work())


def test_who_was_slow_is_read_as_its_bytes_come_until_it_is_quick_again() -> None:
    ours, theirs = socket.socketpair()
    low, at = LowWater(ours.fileno()), 0.0

    def kernels() -> int:
        return ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    with ours, theirs:
        for seconds, up in [(0.1, False), (30.0, True), (0.1, False), (0.0, True), (0.0, True)]:
            low.begin(len(BODY), at)
            assert low.up == up and kernels() == (MARK_BYTES if up else 1)
            low.end(at := at + seconds)
            assert not low.up and kernels() == 1
        low.begin(MARK_BYTES - 1, at)
        assert not low.up, "shorter than the mark"
        low.end(at + 30)
        low.begin(len(BODY), at)
        low.fit(77)
        assert kernels() == 77, "a short body says nothing of the source"
        low.leave()
        low.end(at)
        assert kernels() == 77, "its number may be another's by now"

"""A sink with memory of its own: the socket is read into it, and is left alone while the disk is behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from bdn.errors import DiskFull
from tests.bdn.fakes import FileShelf, MemorySink, ScriptedAnswerer
from tests.bdn.test_http_peers import ASK, BODY, CHUNK, node

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    start: Run = request.param
    return start


class LandingSink(MemorySink):
    """`behind` times it asks to be left alone, for `rest_s` each."""

    def __init__(self, *, behind: int = 0, rest_s: float = 0.0, full: bool = False) -> None:
        super().__init__(CHUNK)
        self.memory, self.behind, self.rest_s, self.full = bytearray(CHUNK.size), behind, rest_s, full
        self.resting = self.disturbed = False

    def room(self) -> memoryview:
        return memoryview(self.memory)[self.received : self.received + 100_000]

    def filled(self, size: int) -> None:
        self.disturbed = self.disturbed or self.resting
        if self.full:
            raise DiskFull("/cache", 1, 0)
        self.write(bytes(self.memory[self.received : self.received + size]))

    def hold(self, resume: Callable[[], None]) -> bool:
        if not self.behind:
            return False
        self.behind -= 1
        self.resting = True

        def go_on() -> None:
            self.resting = False
            resume()

        asyncio.get_running_loop().call_later(self.rest_s, go_on)
        return True


def test_a_socket_is_left_alone_while_the_disk_is_behind(run: Run) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer(), FileShelf([BODY])) as (client, peer, _):
            sink = LandingSink(behind=5, rest_s=0.01)
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=10)
            assert bytes(sink.data) == BODY and not sink.disturbed and not sink.behind

    run(work())


def test_waiting_for_the_disk_is_not_the_sources_silence(run: Run) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer(), FileShelf([BODY])) as (client, peer, _):
            sink = LandingSink(behind=1, rest_s=0.5)
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=0.2)
            assert bytes(sink.data) == BODY

    run(work())


def test_what_the_sink_raises_reaches_who_asked(run: Run) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer(), FileShelf([BODY])) as (client, peer, _):
            with pytest.raises(DiskFull):
                await client.fetch_into(peer, CHUNK, ASK, LandingSink(full=True), stall_s=10)

    run(work())

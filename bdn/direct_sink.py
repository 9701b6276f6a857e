"""Owns a chunk's way past the page cache: into blocks of the arena, hashed while hot, each written when it is full,
while the next is filled."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bdn.arena import Arena
from bdn.errors import BdnError
from bdn.manifest import Chunk
from bdn.ports import Span
from bdn.sinks import PAGE, FileSink, open_direct, write_at

HOT_BYTES = 512 << 10  # How much is received before it is hashed: it must still be in the core's own cache then.


class _Write(NamedTuple):
    """The whole pages of a block: `size` bytes at `at` in the arena, for `offset` in the file."""

    block: int
    at: int
    size: int
    offset: int


class DirectSink(FileSink):
    """A `FileSink` in place whose bytes are received into memory and written with O_DIRECT, several writes at once.

    It holds no block before its first byte and gives each back once it is written: sinks that wait cost nothing. With
    no block to be had it is a plain `FileSink`.
    """

    def __init__(self, chunk: Chunk, fd: int, base: int, *, path: str, arena: Arena, keep: bool = False) -> None:
        """keep: once verified, the chunk stays in memory to be sent from, as long as there is room."""
        super().__init__(chunk, fd, base, path=path, in_place=True)
        self._arena = arena
        self._direct_fd = open_direct(path) if arena.writes.available else -1
        self._block: int | None = None
        self._begin = self._end = 0
        """Of the bytes in the block that are not written yet, as offsets in the arena."""
        self._asked_s = self._filling_s = 0.0
        """When room was asked for, and how long filling the block has taken so far. By the clock that needs no system
        call: a look at the thread's own processor time is one, twice for each piece."""
        self._worth_keeping = self._keep = keep
        self._kept: list[int] = []
        self._spans: list[Span] = []
        self._in_air: set[int] = set()
        self._queued: deque[_Write] = deque()
        """Not begun: writes of an earlier attempt are still under way, and which of two would win is undefined."""
        self._stale = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._failed: BdnError | None = None

    def room(self) -> memoryview | None:
        if self._block is None and not self._next_block():
            return None
        assert self._block is not None
        limit = min(self._block + self._arena.block_bytes, self._end + self.chunk.size - self.received)
        self._asked_s = time.perf_counter()
        return self._arena.memory[self._end : min(self._end + HOT_BYTES, limit)]

    def filled(self, size: int) -> None:
        assert self._block is not None
        self._filling_s += time.perf_counter() - self._asked_s
        self._hasher.update(self._arena.memory[self._end : self._end + size])
        self._end += size
        self.received += size
        if self._end == self._block + self._arena.block_bytes or self.received == self.chunk.size:
            self._flush(self._block)

    def hold(self, resume: Callable[[], None]) -> bool:
        return self._arena.writes.hold(resume)

    def write(self, piece: memoryview | bytes) -> None:
        self._refuse_more(len(piece))
        rest = memoryview(piece)
        while rest:
            room = self.room()
            if room is None:
                super().write(rest)
                return
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self.filled(size)
            rest = rest[size:]

    def _next_block(self) -> bool:
        block = self._arena.take(to_keep=self._keep)
        if block is None and self._keep:
            self._forget()
            block = self._arena.take()
        while block is None and self._arena.writes.pending:
            self._arena.writes.wait()  # The disk is what everyone waits for now.
            block = self._arena.take()
        self._block, self._filling_s = block, 0.0
        if block is not None:  # Memory and file agree modulo the page: all but the edges goes to disk as it lies.
            self._begin = self._end = block + (self.base + self.received) % PAGE
        return block is not None

    def _flush(self, block: int) -> None:
        """The partial pages at its ends go the usual way: they may belong to a neighbour too."""
        begin, end = self._begin, self._end
        at = self.received - (end - begin)
        self._block = None
        if end - begin == self._arena.block_bytes:
            self._arena.filled(block, self._filling_s)
        if self._keep:
            self._kept.append(block)
            self._spans.append(self._arena.span(begin, end - begin))
        head = min(-begin % PAGE, end - begin)
        middle = (end - begin - head) // PAGE * PAGE if self._direct_fd >= 0 else 0
        memory = self._arena.memory
        try:
            if head:
                self._put(memory[begin : begin + head], at)
            if begin + head + middle < end:
                self._put(memory[begin + head + middle : end], at + head + middle)
        except BdnError:
            self._land(block)
            raise
        if middle and not self._revoked:
            self._begin_write(_Write(block, begin + head, middle, self.base + at + head))
        else:
            self._land(block)

    def _begin_write(self, write: _Write) -> None:
        self._quiet.clear()
        if self._stale:
            self._queued.append(write)
            return
        self._in_air.add(write.block)
        address = self._arena.address + write.at
        if not self._arena.writes.submit(
            self._direct_fd, address, write.size, write.offset, lambda got: self._wrote(write, got)
        ):
            self._wrote(write, 0)

    def _wrote(self, write: _Write, got: int) -> None:
        self._in_air.discard(write.block)
        if got != write.size and not self._stale and not self._revoked and self.fd >= 0:
            try:  # Once more the plain way: it succeeds, or says what is wrong.
                write_at(self.fd, self._arena.memory[write.at : write.at + write.size], write.offset, self.path)
            except BdnError as why:
                self._failed = why
        self._land(write.block)
        if not self._in_air:
            self._stale = False
            queued, self._queued = self._queued, deque()
            for each in queued:
                self._begin_write(each)
        if not self._in_air and not self._queued:
            self._quiet.set()

    def _land(self, block: int) -> None:
        """The block is on disk, or worth nothing any more."""
        if block not in self._kept:
            self._arena.give_back([block])

    def _forget(self) -> None:
        """Others have the memory: this chunk will be served from its file."""
        self._keep = False
        kept, self._kept = self._kept, []
        self._spans.clear()
        busy = {*self._in_air, *(w.block for w in self._queued)}
        self._arena.give_back([b for b in kept if b not in busy])

    def _drop(self) -> None:
        """What came so far is worth nothing; what is being written must end before its memory is free."""
        self._forget()
        self._arena.give_back([w.block for w in self._queued])
        self._queued.clear()
        if self._block is not None:
            self._arena.give_back([self._block])
            self._block = None
        self._stale = bool(self._in_air)

    def restart(self) -> None:
        super().restart()
        self._drop()
        self._keep, self._failed = self._worth_keeping, None

    @property
    def buffered(self) -> bool:
        return self._direct_fd < 0

    @property
    def busy(self) -> bool:
        return bool(self._in_air or self._queued)

    async def quiet(self) -> None:
        await self._quiet.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        if self.fd < 0:
            return
        if self.settled and self._spans and sum(s.size for s in self._spans) == self.chunk.size:
            self._arena.keep(self.chunk.digest, self._kept, tuple(self._spans))
            self._kept = []
        self._drop()
        super().close()
        if self._direct_fd >= 0:
            os.close(self._direct_fd)

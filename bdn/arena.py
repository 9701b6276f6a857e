"""Owns the memory that chunks pass through when they are not to pass through the page cache.

Blocks: one is filled from the socket, hashed while hot, and written with O_DIRECT from the same memory; `blocks` says
which is filled next. Private blocks lie in huge pages: a memfd's small ones, each of which is pinned for every write,
make a pull a fifth dearer. The chunks that others will come for, those that this node owns, go through shared blocks
instead, those of a memfd: there they stay, verified, until the memory is needed, and are served by sendfile; their
files are cold, and eight nodes that pull at once take a fifth longer where nothing is kept.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from bdn.aio import Writes
from bdn.blocks import Blocks
from bdn.digest import Digest
from bdn.ports import Span
from bdn.sinks import PAGE

HUGE_PAGE = 2 << 20
BLOCK_BYTES = 1 << 20  # One write: smaller ones cost more each, larger ones fall out of the cache.
SHARED_BLOCKS = 128  # An agent that pulls stays under 300 MB with all of them touched.
PRIVATE_BLOCKS = 32  # Bodies that arrive, blocks on their way to the disk, and enough besides for one to rest.


@dataclass
class _Kept:
    """A verified chunk: `blocks` by their offsets in the memfd, `spans` the bytes in them."""

    blocks: list[int]
    spans: Sequence[Span]
    pins: int = 0
    dropped: bool = field(default=False)


class Arena:
    """A bounded number of blocks. Verified chunks that nobody is being sent make room for new ones, oldest first."""

    def __init__(
        self, shared: int = SHARED_BLOCKS, private: int = PRIVATE_BLOCKS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.block_bytes = block_bytes + -block_bytes % PAGE
        self._private_bytes = private * self.block_bytes + -private * self.block_bytes % HUGE_PAGE
        self.fd = os.memfd_create("bdn-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, shared * self.block_bytes)
        self.address, self.memory = _mapped(self._private_bytes, self.fd, shared * self.block_bytes)
        self.writes = Writes(private + shared)
        self._private = Blocks(i * self.block_bytes for i in reversed(range(private)))
        self._shared = [self._private_bytes + i * self.block_bytes for i in reversed(range(shared))]
        self._kept: dict[Digest, _Kept] = {}

    def take(self, *, to_keep: bool = False) -> int | None:
        """A block's offset in `memory`; None when all are in use.

        to_keep: only one whose bytes others can be sent from.
        """
        if not to_keep and (private := self._private.take()) is not None:
            return private
        while not self._shared:
            oldest = next((d for d, kept in self._kept.items() if kept.pins == 0), None)
            if oldest is None:
                return None
            self._shared += self._kept.pop(oldest).blocks
        return self._shared.pop()

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block < self._private_bytes:
                self._private.give_back(block)
            else:
                self._shared.append(block)

    def filled(self, block: int, seconds: float) -> None:
        """A block that is still in use took so many seconds to fill, hashing not counted."""
        if block < self._private_bytes:
            self._private.cost(block, seconds / self.block_bytes)

    def span(self, begin: int, size: int) -> Span:
        """Bytes of a block that was taken to keep, as sendfile wants them."""
        return Span(self.fd, begin - self._private_bytes, size)

    def keep(self, digest: Digest, blocks: list[int], spans: Sequence[Span]) -> None:
        """The chunk in these blocks is verified: serve it from here until they are needed."""
        if digest in self._kept:
            self._shared += blocks
        else:
            self._kept[digest] = _Kept(blocks, spans)

    def drop(self, digest: Digest) -> None:
        kept = self._kept.pop(digest, None)
        if kept is not None:
            kept.dropped = True
            if kept.pins == 0:
                self._shared += kept.blocks

    def open(self, digest: Digest) -> ArenaChunk | None:
        kept = self._kept.pop(digest, None)
        if kept is None:
            return None
        self._kept[digest] = kept  # Asked for just now: the last to go.
        kept.pins += 1
        return ArenaChunk(self, kept)

    def unpin(self, kept: _Kept) -> None:
        kept.pins -= 1
        if kept.pins == 0 and kept.dropped:
            self._shared += kept.blocks

    def close(self) -> None:
        self.writes.close()
        os.close(self.fd)


class ArenaChunk:
    """An `OpenChunk` in memory: its blocks are not taken again while it is being sent."""

    def __init__(self, arena: Arena, kept: _Kept) -> None:
        self._arena, self._kept = arena, kept
        self.spans = kept.spans
        self.size = sum(span.size for span in kept.spans)

    def close(self) -> None:
        self._arena.unpin(self._kept)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_MAP_FIXED = 0x10


def _mapped(private_bytes: int, fd: int, shared_bytes: int) -> tuple[int, memoryview]:
    """Anonymous memory and then the file's, as one: the address, where a huge page can start, and a view.
    Mapped until the process ends: views of it may outlive the arena."""
    size = private_bytes + shared_bytes
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _map(0, size + HUGE_PAGE, anonymous, -1)
    start += -start % HUGE_PAGE
    if shared_bytes:
        _map(start + private_bytes, shared_bytes, mmap.MAP_SHARED | _MAP_FIXED, fd)
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(private_bytes), mmap.MADV_HUGEPAGE)  # A wish, not a need.
    return start, memoryview((ctypes.c_char * size).from_address(start)).cast("B")


def _map(address: int, size: int, flags: int, fd: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    where = _libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(size), protection, flags, fd, ctypes.c_long(0))
    if where is None or where == ctypes.c_void_p(-1).value:
        raise MemoryError(f"no address space for {size} bytes")
    return int(where)

"""Owns the memory that chunks pass through when they are not to pass through the page cache.

A slot of one memfd receives a whole chunk: straight from the socket, hashed while hot, and written to disk from the
same memory with O_DIRECT once its digest is right, so no unverified byte reaches the disk. Until the slot is needed
again, peers are served from it by sendfile: a chunk need not be on disk to be passed on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

from bdn.chunking import CHUNK_BYTES
from bdn.digest import Digest, Hasher
from bdn.errors import ShortRead
from bdn.manifest import Chunk
from bdn.ports import Span

PAGE = 4096
SLOT_BYTES = CHUNK_BYTES + CHUNK_BYTES // 2 + 2 * PAGE  # The longest chunk of our own cuts, and room to align it.
SLOTS = 16  # 128 to 192 MiB: an agent that pulls stays under 300 MB.
HOT_BYTES = 256 << 10  # How much is received before it is hashed: it must still be in the core's own cache then.


class Slot:
    """One chunk's place. `size` bytes from `start` (in the memfd) are a verified chunk when `digest` is set."""

    def __init__(self, arena: Arena, base: int) -> None:
        self.arena, self.base = arena, base
        self.start, self.size = base, 0
        self.digest: Digest | None = None
        self.pins = 0


class Arena:
    """A bounded number of slots. Those that hold a verified chunk nobody is sending are taken again, oldest first."""

    def __init__(self, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        self.slot_bytes = slot_bytes + -slot_bytes % PAGE
        self.fd = os.memfd_create("bdn-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.slot_bytes * slots)
        self._map = mmap.mmap(self.fd, self.slot_bytes * slots)
        with contextlib.suppress(OSError):  # Large pages where they are to be had: a fault in 512, cheaper O_DIRECT.
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.memory = memoryview(self._map)
        self._free = [Slot(self, i * self.slot_bytes) for i in reversed(range(slots))]
        self._kept: dict[Digest, Slot] = {}

    def take(self, size: int) -> Slot | None:
        """A slot for `size` bytes at any alignment, or None when all are in use."""
        if size + PAGE > self.slot_bytes:
            return None
        if self._free:
            return self._free.pop()
        for digest, slot in self._kept.items():
            if slot.pins == 0:
                del self._kept[digest]
                slot.digest = None
                return slot
        return None

    def give_back(self, slot: Slot) -> None:
        if slot.digest is None:
            self._free.append(slot)

    def keep(self, slot: Slot, digest: Digest) -> None:
        """The chunk in the slot is verified and on disk: serve it from here until the slot is needed."""
        if digest in self._kept:
            self._free.append(slot)
            return
        slot.digest = digest
        self._kept[digest] = slot

    def drop(self, digest: Digest) -> None:
        slot = self._kept.pop(digest, None)
        if slot is not None:
            slot.digest = None
            if slot.pins == 0:
                self._free.append(slot)

    def open(self, digest: Digest) -> ArenaChunk | None:
        slot = self._kept.get(digest)
        if slot is None:
            return None
        self._kept[digest] = self._kept.pop(digest)  # Asked for just now: the last to go.
        return ArenaChunk(slot)

    def close(self) -> None:
        os.close(self.fd)


class ArenaChunk:
    """An `OpenChunk` in memory: its slot is not taken again while it is being sent."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.size = slot.size
        self.spans: Sequence[Span] = (Span(slot.arena.fd, slot.start, slot.size),)
        slot.pins += 1

    def close(self) -> None:
        slot = self._slot
        slot.pins -= 1
        if slot.pins == 0 and slot.digest is None:
            slot.arena.give_back(slot)


class ArenaSink:
    """A `Sink` that a socket can be read into directly: `room` is where the next bytes go, `filled` says they came."""

    in_place = False
    revoked = False
    path = ""

    def __init__(self, chunk: Chunk, slot: Slot, file_offset: int) -> None:
        self.chunk, self.slot = chunk, slot
        self.received = 0
        # Memory and file agree modulo the page, so that all but the edges can go to disk as they lie.
        slot.start, slot.size = slot.base + file_offset % PAGE, chunk.size
        self.fd, self.base = slot.arena.fd, slot.start
        self._body = slot.arena.memory[slot.start : slot.start + chunk.size]
        self._hasher = Hasher()
        self.settled = False

    def room(self) -> memoryview:
        return self._body[self.received : self.received + HOT_BYTES]

    def filled(self, size: int) -> None:
        self._hasher.update(self._body[self.received : self.received + size])
        self.received += size

    def write(self, piece: memoryview | bytes) -> None:
        end = self.received + len(piece)
        if end > self.chunk.size:
            raise ShortRead(self.chunk.digest, source="the sender", got_bytes=end, want_bytes=self.chunk.size)
        self._body[self.received : end] = piece
        self._hasher.update(piece)
        self.received = end

    def restart(self) -> None:
        self.received = 0
        self._hasher = Hasher()

    def digest(self) -> Digest:
        return self._hasher.digest()

    def body(self) -> memoryview:
        return self._body

    def close(self) -> None:
        """Back to the arena: kept for serving if its chunk was settled, free otherwise."""
        if self.fd >= 0:
            self.fd = -1
            self._body = memoryview(b"")
            if self.settled:
                self.slot.arena.keep(self.slot, self.chunk.digest)
            else:
                self.slot.arena.give_back(self.slot)

"""Owns the last metre of a chunk: hashed while it is hot in cache, written once at its final offset.

The buffer is the caller's and small (256 KiB): above 512 KiB buffered writes fall out of the CPU's cache and cost
five times as much. A sink is written by one task and never outlives its chunk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from enum import StrEnum
from pathlib import Path

from bdn.digest import Digest, Hasher
from bdn.errors import Corrupt, DiskFull, Invalid, ShortRead
from bdn.manifest import Chunk

_SYNC_FILE_RANGE_WRITE = 2
PAGE = 4096
MEMORY_FACTOR = 2  # Room for the model in the page cache and as much again for whoever loads it.
SAMPLE_BYTES = 32 << 20
DIRECT_BYTES_MIN = 1 << 30  # The slots' own first touch (128 MiB) must be small beside what they save.
COST_MAX_S = 0.35e-9  # Core-seconds a byte: 0.15 to 0.25e-9 is what a buffered write into warm memory takes.


class FileSink:
    """A `Sink` on `size` bytes of an open file from `base`. Owns the descriptor."""

    def __init__(self, chunk: Chunk, fd: int, base: int, *, path: str, in_place: bool) -> None:
        self.chunk = chunk
        self.received = 0
        self.fd, self.base, self.path, self.in_place = fd, base, path, in_place
        self.revoked = False
        """Another copy of the chunk was committed first: bytes that still come must not touch the file."""
        self._hasher = Hasher()
        self.write_cpu_s = 0.0

    def write(self, piece: memoryview | bytes) -> None:
        size = len(piece)
        if self.received + size > self.chunk.size:
            raise ShortRead(
                self.chunk.digest, source="the sender", got_bytes=self.received + size, want_bytes=self.chunk.size
            )
        self._hasher.update(piece)
        if not self.revoked:
            start = time.thread_time()
            write_at(self.fd, piece, self.base + self.received, self.path)
            self.write_cpu_s += time.thread_time() - start
        self.received += size

    def in_file(self, piece: memoryview) -> None:
        """The next bytes, which lie at their place already: blocks shared with another file of this disk."""
        self._hasher.update(piece)
        self.received += len(piece)

    def restart(self) -> None:
        self.received = 0
        self._hasher = Hasher()

    def digest(self) -> Digest:
        return self._hasher.digest()

    @property
    def open(self) -> bool:
        return self.fd >= 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def write_at(fd: int, piece: memoryview | bytes, offset: int, path: str) -> None:
    """All of `piece` at `offset`; raises DiskFull, or Invalid where the disk itself fails."""
    try:
        done = os.pwrite(fd, piece, offset)
        while done < len(piece):
            done += os.pwrite(fd, memoryview(piece)[done:], offset + done)
    except OSError as why:
        raise disk_error(why, path, len(piece)) from why


def disk_error(why: OSError, path: str, need_bytes: int) -> Invalid | Corrupt:
    if why.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path, need_bytes, free_bytes(os.path.dirname(path)))
    if why.errno == errno.EIO:
        return Corrupt(f"the disk failed: {why.strerror}", where=path, hint="check the device (dmesg, smartctl)")
    return Invalid(f"cannot write: {why.strerror}", where=path, hint="check the directory's owner and mount")


def free_bytes(path: str) -> int:
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


_libc = ctypes.CDLL(None, use_errno=True)


def reserve(fd: int, size: int, path: str) -> None:
    """Give the file its full length with blocks behind it: ENOSPC comes now, and writes cost half as much CPU.

    Not os.posix_fallocate: where the file system cannot, glibc writes zeros instead.
    """
    if size == 0:
        return
    if _libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(size)) != 0:
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise disk_error(OSError(code, os.strerror(code)), path, size)
        os.ftruncate(fd, size)


def start_writeback(fd: int, offset: int, size: int) -> None:
    """Hand these pages to the disk now, without waiting: a pull must not end in one storm of dirty pages."""
    _libc.sync_file_range(fd, ctypes.c_long(offset), ctypes.c_long(size), _SYNC_FILE_RANGE_WRITE)


def sync_file_system(path: str) -> None:
    """One call where thousands of files were written: an fsync each would wait for the disk thousands of times."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise disk_error(OSError(code, os.strerror(code)), path, 0)
    finally:
        os.close(fd)


def write_direct(body: memoryview, offset: int, path: str) -> bool:
    """`body` into the file past the page cache; its memory must be aligned as `offset` is, modulo a page. The partial
    pages at its ends go the usual way: they may belong to a neighbour too. False where O_DIRECT is not to be had."""
    head = min(-offset % PAGE, len(body))
    middle = (len(body) - head) // PAGE * PAGE
    if middle:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as why:
            if why.errno == errno.EINVAL:
                return False
            raise disk_error(why, path, len(body)) from why
        try:
            write_at(fd, body[head : head + middle], offset + head, path)
        finally:
            os.close(fd)
    if head or head + middle < len(body):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(fd, body[:head], offset, path)
            write_at(fd, body[head + middle :], offset + head + middle, path)
        finally:
            os.close(fd)
    return True


class SinkChoice(StrEnum):
    AUTO = "auto"
    BUFFERED = "buffered"
    DIRECT = "direct"


class SinkPolicy:
    """Decides how the next chunk goes to disk: through the page cache, which leaves the files hot for the loader, or
    past it, which costs a third of the CPU where memory is short or its first touch is dear.

    auto: buffered while memory is plentiful and buffered writes were measured to be cheap.
    """

    def __init__(self, choice: SinkChoice = SinkChoice.AUTO) -> None:
        self.choice = choice
        self._bytes = 0
        self._cpu_s = 0.0

    def direct(self, model_bytes: int, available_bytes: int) -> bool:
        if self.choice is not SinkChoice.AUTO:
            return self.choice is SinkChoice.DIRECT
        if available_bytes < MEMORY_FACTOR * model_bytes:
            return True
        if model_bytes < DIRECT_BYTES_MIN:
            return False
        return self._bytes >= SAMPLE_BYTES and self._cpu_s / self._bytes > COST_MAX_S

    def note(self, size: int, cpu_s: float) -> None:
        """A buffered chunk was written at this cost. Old samples fade, so that a change is noticed."""
        if self._bytes > 4 * SAMPLE_BYTES:
            self._bytes //= 2
            self._cpu_s /= 2
        self._bytes += size
        self._cpu_s += cpu_s


def available_memory() -> int:
    """What the page cache may take without pushing anyone out: the machine's word, and the container's limit."""
    available = 1 << 62
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) << 10
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            inactive = next(
                int(line.split()[1])
                for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
                if line.startswith("inactive_file")
            )
            available = min(available, int(limit) - int(used) + inactive)
    return available

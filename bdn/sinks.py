"""Owns the last metre of a chunk: hashed while it is hot in cache, written once at its final offset.

The buffer is the caller's and small (256 KiB): above 512 KiB buffered writes fall out of the CPU's cache and cost
five times as much. A sink is written by one task and never outlives its chunk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from bdn.digest import Digest, Hasher
from bdn.errors import Corrupt, DiskFull, Invalid, ShortRead
from bdn.manifest import Chunk
from bdn.shortage import shortage

_SYNC_FILE_RANGE_WRITE = 2
PAGE = 4096
MEMORY_FACTOR = 2  # Room for the model in the page cache and as much again for whoever loads it.
DIRECT_BYTES_MIN = 256 << 20  # Measured: see benchmarks/README.md.


class FileSink:
    """A `Sink` on `size` bytes of an open file from `base`. Owns the descriptor. One thread at a time writes."""

    def __init__(self, chunk: Chunk, fd: int, base: int, *, path: str, in_place: bool) -> None:
        self.chunk = chunk
        self.received = 0
        self.fd, self.base, self.path, self.in_place = fd, base, path, in_place
        self.settled = False
        """Its chunk is verified and marked; memory that still holds it may be served from."""
        self._hasher = Hasher()
        self._revoked = False
        self._writing = threading.Lock()

    def room(self) -> memoryview | None:
        """Where the next bytes may be received without a copy, if there is such a place; then say `filled`."""
        return None

    def filled(self, size: int) -> None:
        raise AssertionError("no room was given")

    def hold(self, resume: Callable[[], None]) -> bool:
        """Whether to bring no more until `resume` is called, because the disk is behind."""
        return False

    def write(self, piece: memoryview | bytes) -> None:
        self._refuse_more(len(piece))
        self._hasher.update(piece)
        self._put(piece, self.received)
        self.received += len(piece)

    def _refuse_more(self, size: int) -> None:
        end, want = self.received + size, self.chunk.size
        if end > want:
            raise ShortRead(self.chunk.digest, source="the sender", got_bytes=end, want_bytes=want)

    def _put(self, piece: memoryview | bytes, at: int) -> None:
        with self._writing:
            if not self._revoked:
                write_at(self.fd, piece, self.base + at, self.path)

    def revoke(self) -> None:
        """Another copy of the chunk is committed first: once the sink is quiet, no byte of it touches the file."""
        with self._writing:
            self._revoked = True

    @property
    def buffered(self) -> bool:
        """Whether its bytes are in the page cache."""
        return True

    @property
    def busy(self) -> bool:
        """Whether bytes are still on their way to the file, even if it is closed."""
        return False

    async def quiet(self) -> None:
        """Returns once every byte taken is in the file. Raises what the disk said to those that were under way."""

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
    if (short := shortage(why)) is not None:
        return short
    if why.errno in (errno.ENOSPC, errno.EDQUOT):
        place = os.path.dirname(os.path.abspath(path))
        while not os.path.exists(place):  # What could not be made is often the directory itself.
            place = os.path.dirname(place)
        return DiskFull(path, need_bytes, free_bytes(place))
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
    """One call where thousands of files were written: an fsync each would wait for the disk thousands of times.

    Raises OSError, for what any file on it met; the kernel says it once.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(fd)


def open_direct(path: str) -> int:
    """A descriptor that writes past the page cache, or -1 where the file system has no such thing (tmpfs)."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as why:
        if why.errno == errno.EINVAL:
            return -1
        raise disk_error(why, path, 0) from why


class SinkChoice(StrEnum):
    AUTO = "auto"
    BUFFERED = "buffered"
    DIRECT = "direct"


def past_the_cache(choice: SinkChoice, model_bytes: int, available_bytes: Callable[[], int]) -> bool:
    """Whether a model's chunks go to disk past the page cache: cheaper to write and nobody's memory is pushed out, but
    the files are cold for whoever loads them through it.

    auto: large models, and small ones where memory is short.
    """
    if choice is not SinkChoice.AUTO:
        return choice is SinkChoice.DIRECT
    return model_bytes >= DIRECT_BYTES_MIN or available_bytes() < MEMORY_FACTOR * model_bytes


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

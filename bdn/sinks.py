"""Owns the last metre of a chunk: hashed while it is hot in cache, written once at its final offset.

The buffer is the caller's and small (256 KiB): above 512 KiB buffered writes fall out of the CPU's cache and cost
five times as much. A sink is written by one task and never outlives its chunk.
"""

from __future__ import annotations

import ctypes
import errno
import os

from bdn.digest import Digest, Hasher
from bdn.errors import Corrupt, DiskFull, Invalid, ShortRead
from bdn.manifest import Chunk

_SYNC_FILE_RANGE_WRITE = 2


class FileSink:
    """A `Sink` on `size` bytes of an open file from `base`. Owns the descriptor."""

    def __init__(self, chunk: Chunk, fd: int, base: int, *, path: str, in_place: bool) -> None:
        self.chunk = chunk
        self.received = 0
        self.fd, self.base, self.path, self.in_place = fd, base, path, in_place
        self.revoked = False
        """Another copy of the chunk was committed first: bytes that still come must not touch the file."""
        self._hasher = Hasher()

    def write(self, piece: memoryview | bytes) -> None:
        size = len(piece)
        if self.received + size > self.chunk.size:
            raise ShortRead(
                self.chunk.digest, source="the sender", got_bytes=self.received + size, want_bytes=self.chunk.size
            )
        self._hasher.update(piece)
        if not self.revoked:
            write_at(self.fd, piece, self.base + self.received, self.path)
        self.received += size

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
    return Invalid(f"cannot write: {why.strerror}", where=path, hint="check the cache directory's owner and mount")


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

"""Owns a directory on this machine as an upstream. It follows no link out of it and names no path above it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bdn.errors import Corrupt, Invalid
from bdn.ports import Listing, UpstreamFile

_PIECE_BYTES = 4 << 20  # A turn of a thread each, and past the page cache nothing is read ahead.
_DIRECT_BYTES_MIN = 8 << 20
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # What was a file and now is none, a link or a socket.


class DirectoryUpstream:
    """Every regular file and symlink below `root`, sorted. Read as it is: there is no revision to pin."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def within(self, other: Path) -> str | None:
        """The path of another directory below this one, `.` for itself; None for one that lies elsewhere."""
        other, root = other.resolve(), self._root.resolve()
        return str(other.relative_to(root)) if other.is_relative_to(root) else None

    async def listing(self) -> Listing:
        """The revision is empty and the source is the directory's name alone: both enter the manifest's digest,
        and the same files mirrored from elsewhere must have the same name."""
        return await asyncio.to_thread(self._list)

    def _list(self) -> Listing:
        try:
            if not stat.S_ISDIR(os.stat(self._root).st_mode):
                raise Invalid(f"{self._root} is not a directory", hint="name the directory that holds the model")
            files = tuple(sorted(self._walk(""), key=lambda f: f.path))
        except FileNotFoundError as why:
            if self._root.exists():
                raise _changed(why.filename, "listed") from None
            raise Invalid(
                f"there is no directory {self._root}", hint="a source is a directory, hf://, s3:// or https://"
            ) from None
        except OSError as why:
            raise Invalid(f"cannot read {why.filename}: {why.strerror}", hint="check its owner and mode") from None
        return Listing(f"dir:{self._root.resolve().name}", "", files)

    def _walk(self, below: str) -> Iterator[UpstreamFile]:
        with os.scandir(self._root / below) as entries:
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                if entry.is_symlink():
                    yield UpstreamFile(path, 0, link_target=os.readlink(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    yield from self._walk(path)
                elif entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    if not os.access(entry.path, os.R_OK):
                        raise PermissionError(13, "permission denied", entry.path)
                    yield UpstreamFile(path, info.st_size, info.st_mode & 0o777)
                else:
                    raise Invalid(f"{entry.path} is a socket, pipe or device", hint="move it out of the directory")

    async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        path = self._root / file.path
        # Begins with a page, as a direct read must.
        view = memoryview(mmap.mmap(-1, min(max(file.size, 1), _PIECE_BYTES)))
        try:
            # What has become a pipe since it was listed must not be waited for.
            descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as why:
            if why.errno in _GONE:
                raise _changed(path) from None
            raise Invalid(f"cannot read {path}: {why.strerror}", hint="check its owner and mode") from None
        at = offset
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _changed(path)
            before = _state(descriptor)
            if file.size >= _DIRECT_BYTES_MIN and _cold(descriptor, file.size):
                with contextlib.suppress(OSError):  # Where the file system has no such thing.
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT)
            while at < file.size:
                count = await asyncio.to_thread(_read, descriptor, view, at)
                count = min(count, file.size - at)  # Of one that grew, or of its last page.
                at += count
                if not count or before[0] != file.size or (at == file.size and _state(descriptor) != before):
                    raise _changed(path)
                yield view[:count]
        except OSError as why:
            raise Invalid(f"cannot read {path}: {why.strerror}") from None
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        pass


def _changed(path: Path | str, when: str = "read") -> Corrupt:
    return Corrupt(f"{path} changed while it was {when}", hint="mirror it again when it rests")


def _read(descriptor: int, view: memoryview, at: int) -> int:
    try:
        return os.preadv(descriptor, [view], at)
    except OSError as why:
        if why.errno != errno.EINVAL:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)  # From this offset it cannot be read past the cache.
        return os.preadv(descriptor, [view], at)


class _CacheStat(ctypes.Structure):
    """struct cachestat of linux/mman.h, in pages."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


_CACHESTAT = 451  # On every architecture; kernels before 6.5 have none.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _cold(descriptor: int, size: int) -> bool:
    """Whether less than half of the file is in memory: then reading it past the page cache costs half the CPU, and
    pushes out nobody's pages. False where the kernel does not say."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), _CacheStat()
    failed = _libc.syscall(_CACHESTAT, ctypes.c_long(descriptor), ctypes.byref(whole), ctypes.byref(found), 0)
    return not failed and found.cached * mmap.PAGESIZE < size // 2


def _state(descriptor: int) -> tuple[int, int]:
    """What every write to a file changes: half of an old file and half of a new one are no model."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns

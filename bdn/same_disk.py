"""Owns moving a chunk's bytes between files of one disk: blocks shared where the file system can, copied where not,
and a pack of small files put together again from the files that hold it."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from bdn.digest import Digest, Hasher
from bdn.errors import Corrupt
from bdn.manifest import Placement
from bdn.ports import OpenChunk, Span
from bdn.shortage import shortage
from bdn.sinks import PAGE, FileSink, write_at

PIECE_BYTES = 256 << 10  # Fits the core's own cache, as everywhere on the data path.
_FICLONERANGE = 0x4020940D  # ioctl_ficlonerange(2): Btrfs, XFS, bcachefs; ext4 says EOPNOTSUPP.


def take_over(source: OpenChunk, sink: FileSink) -> None:
    """Bring a chunk of this disk into `sink`, hashed as it passes: a copy is checked exactly as a fetch is."""
    for span in source.spans:
        start, end = (0, 0)
        if sink.fd >= 0 and span.size == sink.chunk.size:
            start, end = _share(span, sink)
        for at, stop, shared in ((0, start, False), (start, end, True), (end, span.size, False)):
            if not _pass_on(span, at, stop, sink, shared):
                return


def _pass_on(span: Span, at: int, stop: int, sink: FileSink, shared: bool) -> bool:
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(stop - at, 0))))
    while at < stop:
        got = os.preadv(span.fd, [buffer[: stop - at]], span.offset + at)
        if got == 0:
            return False
        if shared:
            sink.in_file(buffer[:got])
        else:
            sink.write(buffer[:got])
        at += got
    return True


def _share(span: Span, sink: FileSink) -> tuple[int, int]:
    """Let both files have the same blocks for as much of the span as alignment allows; which part of it that was.

    A fine-tune with the header of its base has every chunk at the same offset, so nearly all of it can be shared.
    """
    start, end = sharable(span.offset, sink.base, span.size)
    if start == end:
        return 0, 0
    request = struct.pack("=qQQQ", span.fd, span.offset + start, end - start, sink.base + start)
    try:
        fcntl.ioctl(sink.fd, _FICLONERANGE, request)
    except OSError:  # Another file system, or one that shares nothing: bytes are copied instead.
        return 0, 0
    return start, end


def sharable(source_at: int, target_at: int, size: int) -> tuple[int, int]:
    """The whole pages of a span that lie on page boundaries in both files, as offsets into it; (0, 0) for none."""
    start = -source_at % PAGE
    end = start + (size - start) // PAGE * PAGE
    return (start, end) if (source_at - target_at) % PAGE == 0 and start < end else (0, 0)


def copy_out(source_fd: int, at: int, target_fd: int, place: Placement, path: str) -> None:
    """`place`'s part of the chunk that lies at `at` in one file, into its place in another."""
    done = 0
    while done < place.size:
        piece = os.pread(source_fd, min(PIECE_BYTES, place.size - done), at + place.chunk_offset + done)
        if not piece:
            raise Corrupt("a file shrank while it was copied", where=path, hint="pull the model again")
        write_at(target_fd, piece, place.file_offset + done, path)
        done += len(piece)


def covers(places: Sequence[Placement], size: int) -> bool:
    """Whether the places hold every byte of a chunk between them, as they do for every pack that we cut."""
    reached = 0
    for place in sorted(places, key=lambda p: p.chunk_offset):
        if place.chunk_offset > reached:
            return False
        reached = max(reached, place.chunk_offset + place.size)
    return reached == size


def put_together(root: Path, places: Sequence[Placement]) -> int:
    """A descriptor of anonymous memory with the chunk that `places` under `root` cover. Raises OSError."""
    fd = os.memfd_create("bdn-pack", os.MFD_CLOEXEC)
    try:
        for place in places:
            source = os.open(root / place.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                body = os.pread(source, place.size, place.file_offset)
            finally:
                os.close(source)
            if len(body) != place.size:
                raise OSError(f"{place.path} is too short")
            os.pwrite(fd, body, place.chunk_offset)
    except BaseException:
        os.close(fd)
        raise
    return fd


def hash_is(path: Path, offset: int, size: int, want: Digest) -> bool:
    """Whether these bytes of a file are there and have that digest. Raises Invalid where this machine lacks what it
    takes to look: nothing is known of the bytes then, and a good model must not be given up for it."""
    hasher, buffer = Hasher(), memoryview(bytearray(PIECE_BYTES))
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as why:
        raise_shortage(why)
        return False
    try:
        while size:
            got = os.preadv(fd, [buffer[: min(size, PIECE_BYTES)]], offset)
            if got == 0:
                return False
            hasher.update(buffer[:got])
            offset, size = offset + got, size - got
    except OSError as why:
        raise_shortage(why)
        return False
    finally:
        os.close(fd)
    return hasher.digest() == want


def raise_shortage(why: OSError) -> None:
    """Raises Invalid for what says nothing of the file, such as that no descriptor is left."""
    if (short := shortage(why)) is not None:
        raise short from why


def points_to(path: Path, target: str) -> bool:
    """Whether a symbolic link is there and says so, wherever it leads."""
    try:
        return os.readlink(path) == target
    except OSError:
        return False

"""Owns an origin in a directory: read in place, written whole or not at all, served by any static HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from bdn.digest import Digest, Hasher
from bdn.documents import checked
from bdn.errors import ChunkMissing, Corrupt, DiskFull, Invalid, Missing, ShortRead
from bdn.manifest import Chunk, canonical
from bdn.origins.layout import (
    TAG_BYTES_MAX,
    chunk_key,
    damaged_tags,
    document_key,
    mirrored_key,
    read_pointer,
    split_tag_path,
    tag_key,
    write_pointer,
)
from bdn.ports import Sink, TagEntry
from bdn.sinks import PAGE, disk_error

READ_PIECE_BYTES = 256 << 10
FETCH_PIECE_BYTES = 1 << 20  # A turn of a thread each: smaller pieces cost more in turns than in reading.
DIRECT_BYTES_MIN = 1 << 20
TAGS_LOCK = "tags.lock"
TAGS_INDEX = "tags.json"  # What a static server cannot list for itself.
INDEX_BYTES_MAX = 16 << 20


class DirectoryOrigin:
    """An `Origin` on a directory of this machine, or on one that it mounts."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise Invalid("there is no such origin directory", where=str(self.root), hint="mirror a model there first")

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        """Read in threads, because a mounted directory may be slow; written from here, where a sink belongs."""
        buffer = memoryview(bytearray(min(FETCH_PIECE_BYTES, chunk.size)))
        done = 0
        while done < chunk.size:
            got = await asyncio.to_thread(self._read_piece, chunk, done, buffer)
            if not done and sink.received:
                sink.restart()
            sink.write(buffer[:got])
            done += got

    def _read_piece(self, chunk: Chunk, at: int, buffer: memoryview) -> int:
        """Opens the file each time: a caller that is cancelled leaves no descriptor to a thread that still reads."""
        path = self.root / chunk_key(chunk.digest)
        try:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                got = os.preadv(file.fileno(), [buffer], at) if size == chunk.size else 0
        except FileNotFoundError:
            raise ChunkMissing(chunk.digest, source=str(self.root)) from None
        except OSError as why:
            raise Invalid(f"cannot read a chunk: {why.strerror}", where=str(path)) from why
        if not got:
            there = at if size == chunk.size else size
            raise ShortRead(chunk.digest, source=str(self.root), got_bytes=there, want_bytes=chunk.size)
        return got

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        return await asyncio.to_thread(_read_document, self.root, digest, bytes_max)

    async def read_tag(self, name: str, tag: str) -> Digest:
        return await asyncio.to_thread(_read_tag, self.root, name, tag)

    async def tags(self) -> AsyncIterator[TagEntry]:
        good, bad = await asyncio.to_thread(_tags, self.root)
        for entry in good:
            yield entry
        if bad:
            raise damaged_tags(bad, str(self.root))

    async def close(self) -> None:
        pass


class DirectoryWriter:
    """An `OriginWriter` on a directory, safe against a second writer and against dying at any point."""

    compares_and_swaps = True

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._partial = self.root / ".partial"
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            _sweep(self._partial)
            self._mend_index()
        except OSError as why:
            raise Invalid(f"cannot write there: {why.strerror}", where=str(self.root)) from why

    def _mend_index(self) -> None:
        """A mirror that was killed between its tag and the list of tags has left the tag out of it."""
        if self._stale_index() is not None:
            with _locked(self._partial / TAGS_LOCK):  # The other may not have been killed, and be about to write it.
                if (index := self._stale_index()) is not None:
                    self._write(TAGS_INDEX, index)

    def _stale_index(self) -> bytes | None:
        """The list of tags as it should be, where it is not so."""
        index = canonical({f"{e.name}:{e.tag}": str(e.manifest) for e in _tags(self.root)[0]})
        try:
            there = _read(self.root / TAGS_INDEX, INDEX_BYTES_MAX)
        except Corrupt:
            there = b""
        return None if index == there or (there is None and index == canonical({})) else index

    async def held(self, chunks: Sequence[Chunk], *, reread: bool = False) -> frozenset[Digest]:
        return await asyncio.to_thread(lambda: frozenset(c.digest for c in chunks if self._has(c)))

    def _has(self, chunk: Chunk) -> bool:
        """By digest, not by name and length: a chunk that rotted on this disk is stored again, which repairs it."""
        hasher, left = Hasher(), chunk.size
        try:
            with open(self.root / chunk_key(chunk.digest), "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != chunk.size:
                    return False
                buffer = memoryview(bytearray(min(chunk.size, READ_PIECE_BYTES)))
                while left and (got := file.readinto(buffer)):
                    hasher.update(buffer[:got])
                    left -= got
        except OSError:
            return False
        return hasher.digest() == chunk.digest

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        await asyncio.to_thread(self._write, chunk_key(chunk.digest), body)

    async def put_document(self, digest: Digest, body: bytes) -> None:
        await asyncio.to_thread(self._write, document_key(digest), body)

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        return await asyncio.to_thread(_read_document, self.root, digest, bytes_max)

    async def read_tag(self, name: str, tag: str) -> Digest:
        return await asyncio.to_thread(_read_tag, self.root, name, tag)

    async def move_tag(self, name: str, tag: str, manifest: Digest, *, expect: Digest | None) -> None:
        await asyncio.to_thread(self._move_tag, name, tag, manifest, expect)

    def _move_tag(self, name: str, tag: str, manifest: Digest, expect: Digest | None) -> None:
        with _locked(self._partial / TAGS_LOCK):
            try:
                now: Digest | None = _read_tag(self.root, name, tag)
            except (Missing, Corrupt):  # A damaged tag points to nothing, and this is how it is repaired.
                now = None
            if now not in (expect, manifest):  # Another mirror of the same model has had the same to say.
                raise Invalid(
                    f"{name}:{tag} was moved by another writer, to {now.short if now else 'nothing'}",
                    where=str(self.root),
                    hint="look at what it points to now, then mirror again",
                )
            # Listed before the tag moves: what cannot be read must not fail a mirror that has published.
            index = {f"{e.name}:{e.tag}": str(e.manifest) for e in _tags(self.root)[0]}
            index[f"{name}:{tag}"] = str(manifest)
            self._write(tag_key(name, tag), write_pointer(manifest))
            self._write(TAGS_INDEX, canonical(index))

    async def tags(self) -> AsyncIterator[TagEntry]:
        good, bad = await asyncio.to_thread(_tags, self.root)
        for entry in good:
            yield entry
        if bad:
            raise damaged_tags(bad, str(self.root))

    async def recall(self, what: Digest) -> Digest | None:
        body = await asyncio.to_thread(_read, self.root / mirrored_key(what), TAG_BYTES_MAX)
        return None if body is None else read_pointer(body, mirrored_key(what))

    async def remember(self, what: Digest, manifest: Digest) -> None:
        await asyncio.to_thread(self._write, mirrored_key(what), write_pointer(manifest))

    async def close(self) -> None:
        pass

    def _write(self, key: str, body: bytes | memoryview) -> None:
        """Whole or not at all, also after a power cut: an object is trusted by its name and length from then on.

        The temporary name is drawn, not counted: two containers that share an origin have the same process ids, and
        one would publish what the other writes.
        """
        temporary, target = self._partial / secrets.token_hex(16), self.root / key
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                with contextlib.suppress(OSError):  # Without locks nothing is swept, and nothing is lost.
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                view = memoryview(body)
                at = _write_pages(fd, view) if len(view) >= DIRECT_BYTES_MIN else 0
                while at < len(view):
                    at += os.pwrite(fd, view[at : at + (1 << 20)], at)
                os.fsync(fd)
                os.replace(temporary, target)
            finally:
                os.close(fd)
        except OSError as why:
            with contextlib.suppress(OSError):
                temporary.unlink()
            failed = disk_error(why, str(target), len(body))
            raise failed if isinstance(failed, DiskFull) else Invalid(failed.what, where=str(target)) from why


def _sweep(partial: Path) -> None:
    """Removes what killed mirrors left. Who still writes holds a lock until its object is in place; an empty one may
    have been made this moment and is not locked yet."""
    for path in partial.iterdir():
        if path.name == TAGS_LOCK:
            continue
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _write_pages(fd: int, view: memoryview) -> int:
    """The whole pages of `view` past the page cache: how many bytes were written so, 0 where the file system or where
    the memory lies does not allow it.

    Through it a mirror costs twice the CPU, and pushes out as much of what others read as it writes.
    """
    at, whole = 0, len(view) // PAGE * PAGE
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        while at < whole:
            at += os.pwrite(fd, view[at:whole], at)
    except OSError as why:
        if why.errno != errno.EINVAL:
            raise
        return 0
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    return at


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        if path.stat().st_size > bytes_max:
            raise Corrupt(f"an object of {path.stat().st_size} bytes, at most {bytes_max} expected", where=str(path))
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as why:
        raise Invalid(f"cannot read: {why.strerror}", where=str(path)) from why


def _read_document(root: Path, digest: Digest, bytes_max: int) -> bytes:
    body = _read(root / document_key(digest), bytes_max)
    if body is None:
        raise Missing(f"manifest document {digest.short} is not there", where=str(root))
    return checked(body, digest, str(root), "mirror again")


def _read_tag(root: Path, name: str, tag: str) -> Digest:
    body = _read(root / tag_key(name, tag), TAG_BYTES_MAX)
    if body is None:
        raise Missing(f"there is no {name}:{tag}", where=str(root), hint="list what is there with `bdn ls`")
    return read_pointer(body, f"{root}/{tag_key(name, tag)}")


def _tags(root: Path) -> tuple[list[TagEntry], list[str]]:
    """The tags that can be read, and the names of those that are damaged."""
    base, good, bad = root / "tags", [], []
    for path in sorted(base.rglob("*")):
        named = split_tag_path(str(path.relative_to(base)))
        if named is not None and path.is_file():
            try:
                good.append(TagEntry(*named, _read_tag(root, *named)))
            except Corrupt:
                bad.append(":".join(named))
    return good, bad

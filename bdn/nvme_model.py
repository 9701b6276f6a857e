"""Owns one model's place on disk: its files while they fill, its packs, its bitfield, and the moment it is whole."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bdn.arena import Arena
from bdn.bitfield import Bitfield
from bdn.digest import Digest
from bdn.direct_sink import DirectSink
from bdn.errors import BdnError
from bdn.manifest import Chunk, File, Manifest, Placement, distinct_chunks
from bdn.pack_sink import PackSink
from bdn.ports import Span
from bdn.same_disk import copy_out, covers, hash_is, points_to, put_together, raise_shortage
from bdn.sinks import FileSink, disk_error, reserve, start_writeback, sync_file_system
from bdn.staged_files import StagedFiles

RESERVE_BYTES_MIN = 1 << 20  # Smaller files are written in one call; reserving them only doubles the system calls.
SYNC_EACH_MAX = 64  # Up to so many files are synced one by one; beyond, one syncfs is cheaper than the waits.


def _nobody(size: int) -> None:
    """Hears what small files took, where nobody wants to know."""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """An `OpenChunk` on one descriptor of its own: deleting or renaming the model does not disturb a transfer."""

    spans: Sequence[Span]
    size: int

    def close(self) -> None:
        for span in self.spans:
            os.close(span.fd)


class ModelOnDisk:
    """Blocking calls only; the store decides which of them are worth a thread."""

    def __init__(self, root: Path, manifest: Manifest, boot: str) -> None:
        self.manifest, self.digest = manifest, manifest.digest
        self._final = root / "models" / self.digest.hex
        self._staging = root / "staging" / self.digest.hex
        self._state = root / "state" / self.digest.hex
        self._chunks = distinct_chunks(sorted(manifest.files, key=lambda f: f.path))
        self._index = {chunk.digest: at for at, chunk in enumerate(self._chunks)}
        self._files = {file.path: file for file in manifest.files}
        self.spread = frozenset(c.digest for c in self._chunks if self._is_spread(c))
        """Packs that lie in their small files alone, with no copy beside them."""
        self._in_place: dict[Digest, FileSink] = {}
        self._private = 0
        self._staged = StagedFiles(self._staging, self._state / "packs")
        # No chunk is believed after a power cut before the first sync, and without one nobody misses the manifest:
        # it is synced with the first chunks, also where a process that died wrote it.
        self._dirty = {str(path) for path in (*_documents(self._state, manifest), self._state)}
        self._marks = threading.Lock()  # A bit and the file behind it must enter the same sync, or neither.
        self.unsynced_bytes = 0
        self.published = self._final.is_dir()
        self._bits = Bitfield(self._state, len(self._chunks), boot)
        if lost := self.lost():
            self.forget(*lost)
        self._sweep()

    @staticmethod
    def create(root: Path, manifest: Manifest, boot: str, others: Sequence[ModelOnDisk]) -> ModelOnDisk:
        """Files-to-be with their space reserved; raises DiskFull with nothing left behind that counts."""
        staging, state = root / "staging" / manifest.digest.hex, root / "state" / manifest.digest.hex
        staging.mkdir(parents=True, exist_ok=True)
        (state / "packs").mkdir(parents=True, exist_ok=True)
        for path, body in _documents(state, manifest).items():
            path.write_bytes(body)
        model = ModelOnDisk(root, manifest, boot)
        model.prepare(others)
        return model

    def prepare(self, others: Sequence[ModelOnDisk]) -> None:
        """Link what complete models on this disk have whole, reserve the rest. Again after a crash, changes nothing."""
        if self.published:
            return
        self._link_from(others)
        for file in self.manifest.files:
            if file.size < RESERVE_BYTES_MIN and len(file.extents) <= 1:
                continue
            path = self._staged.path(file.path)
            if not _has_size(path, file.size):
                fd = self._staged.open_own(path)
                try:
                    reserve(fd, file.size, str(path))
                finally:
                    os.close(fd)

    @property
    def directory(self) -> Path:
        return self._final if self.published else self._staging

    def vanished(self) -> bool:
        """Whether somebody else deleted or moved the directory of a complete model: nothing of it is here."""
        return self.published and not self._final.is_dir()

    def verified_chunks(self) -> Iterable[Digest]:
        return [c.digest for at, c in enumerate(self._chunks) if at in self._bits]

    async def prevail(self, sink: FileSink) -> None:
        """Before `settle`: its own bytes are in the file, and those of another copy of the chunk come no more."""
        await sink.quiet()
        rival = self._in_place.get(sink.chunk.digest)
        if rival is not None and rival is not sink:
            rival.revoke()
            with contextlib.suppress(BdnError):  # What the disk said to the other is the other's to tell.
                await rival.quiet()

    def quick(self, sink: FileSink) -> bool:
        """Whether to settle it at once, without a thread, because it is but one bit: every place is written already."""
        return sink.in_place and (isinstance(sink, PackSink) or len(self.manifest.placements[sink.chunk.digest]) == 1)

    # Writing

    def sink(
        self, chunk: Chunk, arena: Arena | None = None, *, keep: bool = False, wrote: Callable[[int], None] = _nobody
    ) -> FileSink:
        """In the file itself for the first taker, past the page cache where there is an arena; beside it for a second
        (a hedge), so that no unverified byte can ever land on verified ones. wrote: hears of bytes in small files."""
        verified = self._index[chunk.digest] in self._bits
        places = self.manifest.placements[chunk.digest]
        home = self._home(chunk.digest, places)
        rival = self._in_place.get(chunk.digest)
        free = rival is None or not (rival.open or rival.busy)
        if chunk.digest in self.spread and not verified and free and (files := self._one_after_another(places)):
            pack = self._in_place[chunk.digest] = PackSink(chunk, files, self._staged, wrote)
            return pack
        if home is not None and not verified and free:
            path = self._staged.path(home.path)
            fd, at, name = self._staged.open_own(path), home.file_offset, str(path)
            sink = (
                FileSink(chunk, fd, at, path=name, in_place=True)
                if arena is None
                else DirectSink(chunk, fd, at, path=name, arena=arena, keep=keep)
            )
            self._in_place[chunk.digest] = sink
            return sink
        self._private += 1
        path = self._state / "packs" / f"{chunk.digest.hex}.part{self._private}"
        return FileSink(chunk, self._staged.open_own(path), 0, path=str(path), in_place=False)

    def release(self, sink: FileSink) -> None:
        """A sink whose last bytes are still on their way keeps its place until they have landed."""
        if self._in_place.get(sink.chunk.digest) is sink and not sink.busy:
            del self._in_place[sink.chunk.digest]
        if not sink.in_place and sink.path.startswith(f"{self._state}/"):
            Path(sink.path).unlink(missing_ok=True)

    def settle(self, sink: FileSink) -> None:
        """Every placement of a checked chunk in place, then its bit. A chunk that is there already changes nothing."""
        digest = sink.chunk.digest
        if self._index[digest] in self._bits:
            return
        places = self.manifest.placements[digest]
        home = self._home(digest, places)
        spread = digest in self.spread
        home_path = str(self._pack(digest) if home is None else self._staged.path(home.path))
        if isinstance(sink, PackSink):
            # More names than are synced one by one say no more than that many are.
            self._mark(sink.chunk, [f"{self._staging}/{p.path}" for p in places[: SYNC_EACH_MAX + 1]])
            return
        for place in places:
            if place != home or not sink.in_place:
                self._copy_out(sink.fd, sink.base, place)
        if home is None and not spread:
            os.replace(sink.path, home_path)
        if sink.buffered:
            start_writeback(sink.fd, sink.base, sink.chunk.size)
        self._mark(sink.chunk, () if spread else (home_path,))

    def _mark(self, chunk: Chunk, paths: Iterable[str]) -> None:
        with self._marks:
            self._dirty.update(paths)
            self._bits.set(self._index[chunk.digest])
            self.unsynced_bytes += chunk.size

    def _link_from(self, others: Sequence[ModelOnDisk]) -> None:
        """Whole files that a complete model has are linked, not copied and not read again: they were verified when
        they were written and nothing writes to a complete model. Never written through: see `_open_own`."""
        had = {_identity(f): m._final / f.path for m in others for f in m.manifest.files if f.size and not f.packed}
        linked: dict[str, File] = {}
        for file in self.manifest.files if had else ():
            source = had.get(_identity(file))
            if source is None or file.packed or self._complete(file):
                continue
            temporary = self._state / "packs" / "link"
            try:
                temporary.unlink(missing_ok=True)
                os.link(source, temporary)
                os.replace(temporary, self._staged.path(file.path))
            except OSError:
                continue  # A file system without links: the chunks are adopted one by one instead.
            linked[file.path] = file
        for file in linked.values():
            for extent in file.extents:
                self._spread(extent.chunk, linked)

    def _spread(self, chunk: Chunk, linked: Mapping[str, File]) -> None:
        places = self.manifest.placements[chunk.digest]
        home = next(p for p in places if p.path in linked)
        fd = os.open(self._staged.path(home.path), os.O_RDONLY)
        try:
            for place in places:
                if place.path not in linked:
                    self._copy_out(fd, home.file_offset, place)
        finally:
            os.close(fd)
        self._mark(chunk, (str(self._staged.path(home.path)),))

    def _complete(self, file: File) -> bool:
        return all(self._index[e.chunk.digest] in self._bits for e in file.extents)

    def sync(self) -> None:
        """What is verified now survives a power cut."""
        with self._marks:
            dirty, self._dirty = self._dirty, set()
            self.unsynced_bytes = 0
            snapshot = self._bits.snapshot()
        try:
            if len(dirty) > SYNC_EACH_MAX:
                sync_file_system(str(self._state))
            else:
                for path in sorted(dirty):
                    _fsync(Path(path))
        except OSError as why:
            with self._marks:
                self._dirty |= dirty
            raise disk_error(why, str(self._staging), 0) from why
        self._bits.make_durable(snapshot)

    def publish(self) -> None:
        """Sync everything, set modes, then one rename: the model's directory is absent or whole."""
        assert self._bits.full, f"{self.digest.short} is not complete"
        self._staged.finish(self.manifest.files, self.manifest.symlinks)
        self.sync()
        for directory in self._staged.directories():
            _fsync(directory)
        os.rename(self._staging, self._final)
        _fsync(self._final.parent)
        self.published = True
        self._staged.forget()

    def forget(self, *digests: Digest) -> None:
        """Bytes went bad: the model is not whole until they are fetched again, into files of their own."""
        if self.vanished():
            return
        try:
            if self.published:
                os.rename(self._final, self._staging)
                self.published = False
                self._staged.forget()
            self._bits.clear(at for d in digests if (at := self._index[d]) in self._bits)
            for digest in digests:
                self._pack(digest).unlink(missing_ok=True)
        except OSError as why:
            raise disk_error(why, str(self._state), 0) from why

    def close(self) -> None:
        self._bits.close()

    # Reading

    def open(self, digest: Digest) -> FileChunk | None:
        """None: it is not here. Raises Invalid where it could not be opened, for want of a descriptor or of memory."""
        at = self._index.get(digest)
        if at is None or at not in self._bits:
            return None
        size, places = self._chunks[at].size, self.manifest.placements[digest]
        home = self._home(digest, places)
        before = self.directory
        # A thread may be moving the directory: to where it is complete, or back when a chunk of it went bad.
        for directory in (before, self._staging if before == self._final else self._final):
            try:
                if digest in self.spread:
                    fd = put_together(directory, places)
                else:
                    path = self._pack(digest) if home is None else directory / home.path
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                break
            except OSError as why:
                raise_shortage(why)
                continue
        else:
            return None
        return FileChunk((Span(fd, 0 if home is None else home.file_offset, size),), size)

    def intact(self, digest: Digest) -> bool:
        """Whether every placement on disk still has the chunk's bytes."""
        size, places = self._chunks[self._index[digest]].size, self.manifest.placements[digest]
        beside = self._home(digest, places) is None and digest not in self.spread
        if beside and not hash_is(self._pack(digest), 0, size, digest):
            return False
        for place in places:
            path = self.directory / place.path
            want = digest if place.size == size else self._files[place.path].digest
            if not hash_is(path, place.file_offset, place.size, want):
                return False
        return True

    # Inside

    def _home(self, digest: Digest, places: Sequence[Placement]) -> Placement | None:
        """The place that holds the whole chunk and from which it is served; None for a pack of small files."""
        size = self._chunks[self._index[digest]].size
        return next((p for p in places if p.size == size), None)

    def _one_after_another(self, places: Sequence[Placement]) -> list[File]:
        """The whole files that a pack consists of, in its order; none where they share bytes of it."""
        ordered = sorted(places, key=lambda p: p.chunk_offset)
        ends = [p.chunk_offset + p.size for p in ordered]
        apart = all(p.chunk_offset == end for p, end in zip(ordered[1:], ends, strict=False))
        return [self._files[p.path] for p in ordered] if apart else []

    def _is_spread(self, chunk: Chunk) -> bool:
        places = self.manifest.placements[chunk.digest]
        return all(p.size != chunk.size for p in places) and covers(places, chunk.size)

    def _pack(self, digest: Digest) -> Path:
        return self._state / "packs" / digest.hex

    def _copy_out(self, source: int, at: int, place: Placement) -> None:
        """From a chunk that lies at `at` in a file, into its place."""
        path = self._staged.path(place.path)
        fd = self._staged.open_own(path)
        try:
            copy_out(source, at, fd, place, str(path))
        finally:
            os.close(fd)
        with self._marks:
            self._dirty.add(str(path))

    def lost(self) -> tuple[Digest, ...] | None:
        """Chunks that are not here whatever the bits say: their file is missing, short or long. None where all that was
        published stands; an empty file or a link that is gone costs no chunk."""
        bits, index = self._bits, self._index
        files = self.manifest.files if self.published or bits.held else ()
        there = [f for f in files if self.published or any(index[e.chunk.digest] in bits for e in f.extents)]
        changed = [f for f in there if not _has_size(self.directory / f.path, f.size)]
        links = all(points_to(self.directory / link.path, link.target) for link in self.manifest.symlinks)
        if self.published and links and not changed:
            return None
        return tuple(d for d in dict.fromkeys(e.chunk.digest for f in changed for e in f.extents) if index[d] in bits)

    def _sweep(self) -> None:
        """Throw away what a process that died left half written beside the files."""
        kept = {d.hex for d in self._index if d not in self.spread}
        for path in (self._state / "packs").glob("*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _identity(file: File) -> tuple[Digest, int, int]:
    return file.digest, file.size, file.mode


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _documents(state: Path, manifest: Manifest) -> dict[Path, bytes]:
    """What a restart knows the model by."""
    first, *lists = manifest.documents
    return {state / "manifest": first, **{state / f"list-{Digest.of(body).hex}": body for body in lists}}


def write_whole(path: Path, body: bytes) -> None:
    """The old file or the new one, whatever happens in between."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(body)
    _fsync(temporary)
    os.replace(temporary, path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

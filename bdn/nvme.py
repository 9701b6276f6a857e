"""Owns this node's disk: models as whole files in place, which of their chunks are verified, one owner per directory.

Under the root: `models/<hex>` are complete models, nothing else ever appears there; `staging/<hex>` are files still
being filled; `state/<hex>` holds each model's manifest documents, names and bitfield. A chunk is written once, at its
final offset, a pack of small files into these files: no chunk store beside them, no reassembly.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path

from bdn.arena import PRIVATE_BLOCKS, SHARED_BLOCKS, Arena
from bdn.bitfield import boot_id
from bdn.digest import Digest
from bdn.errors import ChunkCorrupt, Corrupt, DiskFull, Invalid
from bdn.manifest import Chunk, Manifest, parse
from bdn.names import Names
from bdn.nvme_model import ModelOnDisk
from bdn.ports import OpenChunk, Sink
from bdn.same_disk import take_over
from bdn.sinks import FileSink, SinkChoice, available_memory, free_bytes, past_the_cache
from bdn.write_behind import WriteBehind

SYNC_WINDOW_BYTES = 512 << 20  # The most work a power cut may cost; smaller windows make the disk wait more often.
SPARE_BYTES = 64 << 20  # Left free beside a model for metadata, so that the last file does not fail on an inode block.


class NvmeStore:
    """A `Store` and a `Shelf` on one directory. Use from one event loop; `close` gives the directory up."""

    def __init__(
        self,
        root: str | Path,
        *,
        sync_window_bytes: int = SYNC_WINDOW_BYTES,
        write: SinkChoice = SinkChoice.AUTO,
        arena_blocks: tuple[int, int] = (SHARED_BLOCKS, PRIVATE_BLOCKS),
    ) -> None:
        self.root = Path(root).absolute()
        self._write = write
        self._arena_blocks = arena_blocks
        self._arena: Arena | None = None
        """Made at the first chunk that goes past the page cache; a node that only serves from files needs none."""
        self._sync_window_bytes = sync_window_bytes
        self._models: dict[Digest, ModelOnDisk] = {}
        self._where: dict[Digest, list[ModelOnDisk]] = {}
        self._admission = asyncio.Lock()
        self._names = Names(self.root / "state")
        self._naming = asyncio.Lock()
        self._behind = WriteBehind(self.root)
        self._thrown = 0
        self.bad_chunks = 0
        """Found on this disk with other bytes than once were verified, and forgotten."""
        self._syncs: dict[Digest, asyncio.Task[None]] = {}
        self._boot = boot_id()
        self._lock_fd = self._own()
        for name in ("models", "staging", "state", "trash"):
            (self.root / name).mkdir(exist_ok=True)
        self._load()

    def _own(self) -> int:
        """The lock is the kernel's: it goes when the process does, however it ends."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as why:
            raise Invalid(
                f"the store cannot be used: {why.strerror}",
                where=str(self.root),
                hint="name a directory that this user may write",
            ) from why
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Invalid(
                f"the store belongs to a running agent (process {owner or 'unknown'})",
                where=str(self.root),
                hint="stop that agent, or give this one another --store",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        return fd

    def _load(self) -> None:
        shutil.rmtree(self.root / "trash", ignore_errors=True)
        (self.root / "trash").mkdir(exist_ok=True)
        for state in sorted((self.root / "state").iterdir()):
            manifest = _read_manifest(state)
            if manifest is None:
                self._throw_away(state.name)
                continue
            model = ModelOnDisk(self.root, manifest, self._boot)
            model.prepare(())
            self._enter(model)
            self._names.load(model.digest)
        known = {m.digest.hex for m in self._models.values()}
        for part in ("models", "staging"):
            for directory in sorted((self.root / part).iterdir()):
                if directory.name not in known:
                    self._throw_away(directory.name)

    def _enter(self, model: ModelOnDisk) -> None:
        self._models[model.digest] = model
        for chunk in model.verified_chunks():
            self._note(chunk, model)

    def _note(self, digest: Digest, model: ModelOnDisk) -> None:
        holders = self._where.setdefault(digest, [])
        if model not in holders:
            holders.append(model)

    def _unnote(self, digests: Iterable[Digest], model: ModelOnDisk) -> None:
        for digest in digests:
            holders = self._where.get(digest, [])
            if model in holders:
                holders.remove(model)
            if not holders:
                self._where.pop(digest, None)

    def _throw_away(self, name: str) -> None:
        """Out of sight by rename first, so that dying halfway leaves nothing that looks like a model."""
        for part in ("models", "staging", "state"):
            if (self.root / part / name).exists():
                self._thrown += 1
                target = self.root / "trash" / f"{self._thrown}-{part}-{name}"
                os.rename(self.root / part / name, target)
                shutil.rmtree(target, ignore_errors=True)

    # Store

    def has(self, digest: Digest) -> bool:
        return digest in self._where

    def verified(self, manifest: Digest) -> frozenset[Digest]:
        return frozenset(self._model(manifest).verified_chunks())

    async def admit(self, manifest: Manifest) -> None:
        async with self._admission:
            if self._stands(manifest.digest):
                await self._mend(self._models[manifest.digest])
                return
            if manifest.digest in self._models:
                await self.remove(manifest.digest)
            complete = self._complete
            had = {f.digest for m in complete for f in m.manifest.files}
            need = sum(f.size for f in manifest.files if f.digest not in had) + SPARE_BYTES
            free = free_bytes(str(self.root))
            if need > free:
                raise DiskFull(str(self.root), need, free)
            try:
                model = await asyncio.to_thread(ModelOnDisk.create, self.root, manifest, self._boot, complete)
            except BaseException:
                self._throw_away(manifest.digest.hex)
                raise
            self._enter(model)

    async def adopt(self, manifest: Digest, chunk: Chunk) -> bool:
        model = self._model(manifest)
        for holder in list(self._where.get(chunk.digest, ())):
            if holder is model:
                return True
            source = holder.open(chunk.digest)
            if source is None:
                continue
            sink = model.sink(chunk, wrote=self._behind.wrote)
            try:
                await _to_the_end(asyncio.to_thread(take_over, source, sink))
                if sink.received == chunk.size and sink.digest() == chunk.digest:
                    await self.commit(manifest, sink)
                    return True
                await self.found_bad(holder.digest, chunk.digest)
            finally:
                source.close()
                self.discard(sink)
        return False

    def sink(self, manifest: Digest, chunk: Chunk, *, hot: bool = False) -> FileSink:
        model = self._model(manifest)
        arena = None
        if past_the_cache(self._write, model.manifest.total_bytes, available_memory):
            arena = self._arena = self._arena or Arena(*self._arena_blocks)
        return model.sink(chunk, arena, keep=hot, wrote=self._behind.wrote)

    async def commit(self, manifest: Digest, sink: Sink) -> None:
        assert isinstance(sink, FileSink)
        chunk = sink.chunk
        if not self._right(sink):
            raise ChunkCorrupt(chunk.digest, source="a sink that was not checked", got=sink.digest())
        model = self._model(manifest)
        await model.prevail(sink)
        if model.quick(sink):
            model.settle(sink)
        else:
            await _to_the_end(asyncio.to_thread(model.settle, sink))
        sink.settled = True
        model.release(sink)
        sink.close()
        self._note(chunk.digest, model)
        if model.unsynced_bytes >= self._sync_window_bytes and manifest not in self._syncs:
            task = asyncio.create_task(asyncio.to_thread(model.sync))
            self._syncs[manifest] = task
            task.add_done_callback(lambda done: self._synced(manifest, done))

    def _synced(self, manifest: Digest, task: asyncio.Task[None]) -> None:
        """One that failed stays, for `publish` to raise what the disk said: it does not say it again."""
        if task.cancelled() or task.exception() is None:
            self._syncs.pop(manifest, None)

    @staticmethod
    def _right(sink: Sink) -> bool:
        return sink.received == sink.chunk.size and sink.digest() == sink.chunk.digest

    def discard(self, sink: Sink) -> None:
        assert isinstance(sink, FileSink)
        for model in self._models.values():
            model.release(sink)
        sink.close()

    async def publish(self, manifest: Digest) -> str:
        model = self._model(manifest)
        if not model.published:
            running = self._syncs.get(manifest)
            if running is not None:
                await asyncio.wait({running})
                self._syncs.pop(manifest, None)
                running.result()
            await self._behind.settled()
            await asyncio.to_thread(model.publish)
        return str(model.directory)

    def published(self, manifest: Digest) -> str | None:
        model = self._models.get(manifest)
        return str(model.directory) if model is not None and model.published and not model.vanished() else None

    def models(self) -> Iterable[Digest]:
        return tuple(self._models)

    # Beyond the port

    def manifest(self, manifest: Digest) -> Manifest:
        return self._model(manifest).manifest

    def names(self, manifest: Digest) -> tuple[str, ...]:
        """Under which names it was pulled, the latest last; a restart keeps them."""
        return self._names.of(manifest)

    async def note_name(self, manifest: Digest, name: str) -> None:
        """An admitted model's name; a model that had it before has it no longer."""
        self._model(manifest)
        async with self._naming:
            await _to_the_end(asyncio.to_thread(self._names.note, manifest, name))

    def open(self, digest: Digest) -> OpenChunk | None:
        """The `Shelf` side: a verified chunk, from the file it lies in."""
        if self._arena is not None and (in_memory := self._arena.open(digest)) is not None:
            return in_memory
        for model in self._where.get(digest, ()):
            found = model.open(digest)
            if found is not None:
                return found
        return None

    async def found_bad(self, manifest: Digest, *digests: Digest) -> None:
        """The bytes on disk are not the chunks' any more: forget them here; the next pull of the model heals it."""
        model = self._model(manifest)
        self.bad_chunks += len(digests)
        for digest in digests:
            if self._arena is not None:
                self._arena.drop(digest)
        self._unnote(digests, model)
        await asyncio.to_thread(model.forget, *digests)

    async def _mend(self, model: ModelOnDisk) -> None:
        """A complete model that somebody took files from is incomplete again, and the next pull brings what is gone."""
        lost = await asyncio.to_thread(model.lost) if model.published else None
        if lost is not None:
            await self.found_bad(model.digest, *lost)
            await asyncio.to_thread(model.prepare, self._complete)
            self._enter(model)

    async def verify(self, manifest: Digest) -> tuple[Digest, ...]:
        """Read a model back and hash it: the chunks whose bytes went bad (each is forgotten). Empty when all is well.

        Costs one read of the model at disk speed and 0.2 core-seconds per GB.
        """
        model, bad = self._model(manifest), []
        if model.vanished():
            return tuple(sorted(model.verified_chunks()))
        for digest in sorted(model.verified_chunks()):
            if not await asyncio.to_thread(model.intact, digest):
                await self.found_bad(manifest, digest)
                bad.append(digest)
        return tuple(bad)

    async def recheck(self, digest: Digest) -> Mapping[Digest, bool]:
        if self._arena is not None:
            self._arena.drop(digest)
        lost = {}
        for model in list(self._where.get(digest, ())):
            whole, good = model.published, model.vanished() or await asyncio.to_thread(model.intact, digest)
            if not good and self._models.get(model.digest) is model:
                await self.found_bad(model.digest, digest)
                lost[model.digest] = whole
        return lost

    async def remove(self, manifest: Digest) -> None:
        """Delete a model, complete or not. Files that another model shares with it by hard link stay there."""
        model = self._model(manifest)
        self._unnote(model.verified_chunks(), model)
        del self._models[manifest]
        self._names.forget(manifest)
        model.close()
        await asyncio.to_thread(self._throw_away, manifest.hex)

    def close(self) -> None:
        for model in self._models.values():
            model.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._behind.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def _complete(self) -> list[ModelOnDisk]:
        return [m for m in self._models.values() if m.published]

    def _stands(self, manifest: Digest) -> bool:
        model = self._models.get(manifest)
        return model is not None and not model.vanished()

    def _model(self, manifest: Digest) -> ModelOnDisk:
        model = self._models.get(manifest)
        assert model is not None, f"{manifest.short} was not admitted"
        return model


async def _to_the_end(work: Awaitable[None]) -> None:
    """A thread that writes cannot be stopped: when the caller is cancelled, its buffers must live until it is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # Heard of: who was cancelled has nobody to tell it to.
        raise


def _read_manifest(state: Path) -> Manifest | None:
    """What was admitted under this name, or None where a crash or the disk left something else."""
    try:
        hex_name = Digest.from_hex(state.name)
        root = (state / "manifest").read_bytes()
        manifest = parse(root, lambda digest: (state / f"list-{digest.hex}").read_bytes())
    except (OSError, ValueError, Invalid, Corrupt):
        return None
    return manifest if manifest.digest == hex_name else None

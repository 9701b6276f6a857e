"""Owns push time: an upstream is read once, cut, hashed and stored; then its manifest, then the tag that names it.

Nothing is visible before the tag: documents follow the chunks they name, the tag follows the documents. An interrupted
mirror leaves chunks that the next one finds and skips. Memory is bounded by `window_bytes`, disk is not used at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bdn.chunking import CHUNK_BYTES, PACK_FILE_BYTES_MAX, Small, cutting, packs
from bdn.digest import Digest
from bdn.documents import read_manifest_with
from bdn.errors import BdnError, Corrupt, Missing
from bdn.manifest import DOCUMENT_BYTES_MAX, Chunk, Extent, File, Manifest, Symlink, canonical, check_links, check_paths
from bdn.mirror_file import Buffer, FileCutter, Taken, Window, read_all
from bdn.ports import Listing, OriginWriter, Upstream, UpstreamFile
from bdn.upstreams.patterns import chosen

UPLOADS = 8
FILES_AT_ONCE = 4
PACKS_AT_ONCE = 2
SMALL_FILES_AT_ONCE = 8  # Of one pack: at a hub each costs a round trip.
WINDOW_BYTES = 192 << 20


@dataclass
class MirrorProgress:
    """Counted up while it runs; a progress callback gets the same object every time."""

    bytes_total: int = 0
    bytes_read: int = 0
    bytes_uploaded: int = 0
    chunks_total: int = 0
    """Distinct chunks seen so far."""
    chunks_reused: int = 0
    """Of these, how many the origin had."""
    files_total: int = 0
    files_done: int = 0


@dataclass(frozen=True, slots=True)
class MirrorResult:
    manifest: Digest
    source: str
    revision: str
    files: int
    model_bytes: int
    bytes_read: int
    bytes_uploaded: int
    chunks_total: int
    chunks_reused: int
    remembered: bool
    """The origin knew this source at this revision: the upstream's files were not read at all."""
    tag_moved: bool


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What to mirror, and under which name."""

    name: str
    tag: str = "latest"
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    """Further facts to record, such as that a check was overridden."""
    uploads: int = UPLOADS
    window_bytes: int = WINDOW_BYTES
    chunk_bytes: int = CHUNK_BYTES
    verify: bool = False
    """Read every chunk that the origin has back and store the damaged ones again; otherwise a bucket's are believed
    by their length."""

    @property
    def packed_below_bytes(self) -> int:
        """Smaller files share a chunk with others."""
        return min(PACK_FILE_BYTES_MAX, self.chunk_bytes)


async def mirror(
    upstream: Upstream,
    writer: OriginWriter,
    plan: MirrorPlan,
    progress: Callable[[MirrorProgress], None] = lambda progress: None,
) -> MirrorResult:
    """Read once, store what is new, name it. A second mirror of the same revision reads and stores nothing.

    Raises what the upstream and the writer raise; whatever happens, the tag is as before or points to a whole model.
    """
    listing = await upstream.listing()
    files = chosen(listing, plan.allow, plan.ignore)
    check_paths(f.path for f in files)
    check_links(Symlink(f.path, f.link_target) for f in files if f.link_target is not None)
    expect = await _current(writer, plan)
    what = _what(listing, files, plan)
    known = await _remembered(writer, what) if what is not None else None
    if known is not None and plan.verify and not await _intact(writer, known, plan.uploads):
        known = None
    run = _Run(upstream, writer, plan, progress)
    if known is None:
        manifest = await run.manifest(listing, files)
        for body in (*manifest.documents[1:], manifest.documents[0]):
            await writer.put_document(Digest.of(body), body)
        if what is not None:
            await writer.remember(what, manifest.digest)
        digest = manifest.digest
    else:
        digest = known
    moved = digest != expect
    if moved:
        await writer.move_tag(plan.name, plan.tag, digest, expect=expect)
    count = run.count
    return MirrorResult(
        manifest=digest, source=listing.source, revision=listing.revision, files=len(files),
        model_bytes=sum(f.size for f in files if f.link_target is None), bytes_read=count.bytes_read,
        bytes_uploaded=count.bytes_uploaded, chunks_total=count.chunks_total, chunks_reused=count.chunks_reused,
        remembered=known is not None, tag_moved=moved,
    )  # fmt: skip


async def _current(writer: OriginWriter, plan: MirrorPlan) -> Digest | None:
    try:
        return await writer.read_tag(plan.name, plan.tag)
    except (Missing, Corrupt):
        return None  # A damaged tag names nothing; moving it is what repairs it.


def _what(listing: Listing, files: Sequence[UpstreamFile], plan: MirrorPlan) -> Digest | None:
    """Names a result before it is computed; None where the upstream pins nothing and must be read to be known."""
    if not listing.revision and not all(f.checksums for f in files if f.size and f.link_target is None):
        return None
    facts = [[f.path, f.size, f.mode, f.link_target or "", [list(c) for c in f.checksums]] for f in files]
    provenance = [list(fact) for fact in plan.provenance]
    return Digest.of(canonical([cutting(plan.chunk_bytes), listing.source, listing.revision, provenance, facts]))


async def _remembered(writer: OriginWriter, what: Digest) -> Digest | None:
    try:
        known = await writer.recall(what)
    except Corrupt:
        return None
    if known is None:
        return None
    try:
        await writer.read_document(known, bytes_max=DOCUMENT_BYTES_MAX)
    except BdnError:
        return None  # Swept or damaged since: mirror it again.
    return known


async def _intact(writer: OriginWriter, known: Digest, at_once: int) -> bool:
    """Whether the origin still has every byte of a model that it remembers."""
    try:
        read = partial(writer.read_document, bytes_max=DOCUMENT_BYTES_MAX)
        chunks = (await read_manifest_with(read, known)).chunks
    except (Corrupt, Missing):
        return False
    for at in range(0, len(chunks), at_once):
        some = chunks[at : at + at_once]
        if len(await writer.held(some, reread=True)) < len(some):
            return False
    return True


@dataclass
class _Run:
    """One mirror under way: the window, the uploads, the counts."""

    upstream: Upstream
    writer: OriginWriter
    plan: MirrorPlan
    progress: Callable[[MirrorProgress], None]
    count: MirrorProgress = field(default_factory=MirrorProgress)

    def __post_init__(self) -> None:
        self._window = Window(self.plan.window_bytes, self.plan.chunk_bytes)
        self._uploads = asyncio.Semaphore(self.plan.uploads)
        self._questions = asyncio.Semaphore(2 * self.plan.uploads)  # Beside the uploads: a slot must not wait for one.
        self._stored: dict[Digest, asyncio.Task[None]] = {}

    async def manifest(self, listing: Listing, files: Sequence[UpstreamFile]) -> Manifest:
        regular = [f for f in files if f.link_target is None]
        links = tuple(Symlink(f.path, f.link_target) for f in files if f.link_target is not None)
        self.count.files_total = len(regular)
        self.count.bytes_total = sum(f.size for f in regular)
        self.progress(self.count)
        small = {f.path: f for f in regular if 0 < f.size < self.plan.packed_below_bytes}
        large = [f for f in regular if f.size >= self.plan.packed_below_bytes]
        gate, pack_gate = asyncio.Semaphore(FILES_AT_ONCE), asyncio.Semaphore(PACKS_AT_ONCE)
        taken: list[File] = [File(f.path, 0, f.mode, Digest.of(b""), ()) for f in regular if not f.size]
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(self._large(f, gate)) for f in large]
                groups = packs((Small(f.path, f.size) for f in small.values()), self.plan.chunk_bytes)
                packed = [group.create_task(self._pack([small[s.path] for s in g], pack_gate)) for g in groups]
            taken += [job.result() for job in jobs]
            taken += [file for job in packed for file in job.result()]
            for task in list(self._stored.values()):
                await task
        except BaseExceptionGroup as group_error:
            raise first_cause(group_error) from None
        finally:
            for task in self._stored.values():
                task.cancel()
            await asyncio.gather(*self._stored.values(), return_exceptions=True)
        facts = dict(self.plan.provenance) | {"source": listing.source, "revision": listing.revision}
        facts |= {f"{kind}:{f.path}": value for f in regular for kind, value in f.checksums}
        return Manifest(tuple(taken), tuple(sorted(facts.items())), links)

    async def _large(self, file: UpstreamFile, gate: asyncio.Semaphore) -> File:
        async with gate:
            cutter = FileCutter(file, self._window, self._store, self._read, self.plan.chunk_bytes)
            taken: Taken = await cutter.take(self.upstream)
        self.count.files_done += 1
        self.progress(self.count)
        extents = tuple(Extent(chunk, 0, chunk.size) for chunk in taken.chunks)
        return File(file.path, file.size, file.mode, taken.digest, extents)

    async def _pack(self, files: Sequence[UpstreamFile], gate: asyncio.Semaphore) -> list[File]:
        """Small files side by side in one chunk: one round trip for hundreds of them."""
        size = sum(f.size for f in files)
        async with gate:
            body = await self._window.take(size)
            try:
                digests = await self._read_side_by_side(files, memoryview(body))
                digest = await asyncio.to_thread(Digest.of, memoryview(body)[:size])
            except BaseException:
                self._window.give_back(body)
                raise
        chunk, at, out = Chunk(digest, size), 0, []
        for file, file_digest in zip(files, digests, strict=True):
            out.append(File(file.path, file.size, file.mode, file_digest, (Extent(chunk, at, file.size),)))
            at += file.size
        await self._store(chunk, body)
        return out

    async def _read_side_by_side(self, files: Sequence[UpstreamFile], body: memoryview) -> list[Digest]:
        gate = asyncio.Semaphore(SMALL_FILES_AT_ONCE)

        async def one(file: UpstreamFile, at: int) -> Digest:
            async with gate:
                digest = await read_all(self.upstream, file, body[at : at + file.size])
            self._read(file.size)
            self.count.files_done += 1
            self.progress(self.count)
            return digest

        jobs, at = [], 0
        async with asyncio.TaskGroup() as group:
            for file in files:
                jobs.append(group.create_task(one(file, at)))
                at += file.size
        return [job.result() for job in jobs]

    def _read(self, size: int) -> None:
        self.count.bytes_read += size

    async def _store(self, chunk: Chunk, body: Buffer) -> None:
        """Hand a chunk to the uploads; its buffer comes back to the window when it is stored. Never waits for them:
        the window does, when it is used up."""
        running = self._stored.get(chunk.digest)
        if running is not None:
            self._window.give_back(body)
            if running.done():
                running.result()
            return
        self.count.chunks_total += 1
        self._stored[chunk.digest] = asyncio.create_task(self._upload(chunk, body))

    async def _upload(self, chunk: Chunk, body: Buffer) -> None:
        try:
            async with self._questions:
                held = await self.writer.held([chunk], reread=self.plan.verify)
            if held:
                self.count.chunks_reused += 1
            else:
                async with self._uploads:
                    await self.writer.put(chunk, memoryview(body)[: chunk.size])
                self.count.bytes_uploaded += chunk.size
            self.progress(self.count)
        except BaseException as why:
            self._window.fail(why)
            raise
        finally:
            self._window.give_back(body)


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error a person should read: a typed one before a mere consequence of it."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.append(first_cause(error) if isinstance(error, BaseExceptionGroup) else error)
    typed = [e for e in leaves if isinstance(e, BdnError)]
    return (typed or leaves)[0]

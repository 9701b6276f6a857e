"""Owns reading one upstream file: pieces into chunk buffers, digests of chunk and file, checked against the upstream's.

Reading, hashing and storing overlap: the next chunk is read while the last is hashed (threads: the digests release
the GIL) and those before are on their way out. Buffers come from one bounded window and are used again, because first
touch of new memory costs more than everything else here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bdn.chunking import (
    fixed_cuts,
    longest_chunk,
    safetensors_boundaries,
    safetensors_header_bytes,
    tensor_cuts,
)
from bdn.digest import Digest, Hasher
from bdn.errors import Corrupt, Down
from bdn.manifest import Chunk
from bdn.policy import pause_s
from bdn.ports import Upstream, UpstreamFile

ATTEMPTS = 5
BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0
CHECKED = {"sha256": hashlib.sha256, "sha1": hashlib.sha1, "md5": hashlib.md5}

Buffer = mmap.mmap
Store = Callable[[Chunk, Buffer], Awaitable[None]]


class Window:
    """At most so many bytes between upstream and origin. Buffers of one size, kept for the next taker."""

    def __init__(self, bytes_max: int, chunk_bytes: int) -> None:
        self._buffer_bytes = longest_chunk(chunk_bytes)
        self._free_slots = max(2, bytes_max // self._buffer_bytes)
        self._spare: list[Buffer] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failed: BaseException | None = None

    async def take(self, size: int) -> Buffer:
        assert size <= self._buffer_bytes
        while self._free_slots == 0 and self._failed is None:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                elif turn.cancelled():
                    self._wake()
        if self._failed is not None:
            raise self._failed
        self._free_slots -= 1
        return self._spare.pop() if self._spare else _buffer(self._buffer_bytes)

    def give_back(self, buffer: Buffer) -> None:
        self._free_slots += 1
        self._spare.append(buffer)
        self._wake()

    def fail(self, why: BaseException) -> None:
        """A chunk cannot be stored: whoever waits for room must not wait for ever."""
        if self._failed is None and not isinstance(why, asyncio.CancelledError):
            self._failed = why
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                if self._failed is None:
                    return


def _buffer(size: int) -> Buffer:
    """Begins with a page, so that it can be written past the page cache; in huge pages where there are any, because
    touching small ones for the first time costs more than hashing what comes into them."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


@dataclass(frozen=True, slots=True)
class Taken:
    digest: Digest
    chunks: tuple[Chunk, ...]


class _Hash(Protocol):
    def update(self, piece: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class Checks:
    """The file's own digest and the upstream's checksums of it, over the same bytes."""

    def __init__(self, file: UpstreamFile) -> None:
        self._file = file
        self._digest = Hasher()
        self._theirs: list[tuple[str, str, _Hash]] = [
            (kind, want, CHECKED[kind](usedforsecurity=False)) for kind, want in file.checksums if kind in CHECKED
        ]

    def update(self, piece: memoryview) -> None:
        self._digest.update(piece)
        for _, _, state in self._theirs:
            state.update(piece)

    def finish(self) -> Digest:
        for kind, want, state in self._theirs:
            if state.hexdigest() != want.lower():
                raise Corrupt(
                    f"{self._file.path} has another {kind} than the upstream says",
                    hint="mirror it again; if it happens twice, the upstream's copy is damaged",
                )
        return self._digest.digest()


class FileCutter:
    """Takes one large file from the upstream, chunk by chunk."""

    def __init__(
        self, file: UpstreamFile, window: Window, store: Store, count: Callable[[int], None], chunk_bytes: int
    ) -> None:
        self._file, self._window, self._store, self._count = file, window, store, count
        self._chunk_bytes = chunk_bytes
        self._checks = Checks(file)
        self._chunks: list[Chunk] = []
        self._hashing: asyncio.Task[None] | None = None

    async def take(self, upstream: Upstream) -> Taken:
        """Raises Corrupt when the file is not as long as listed or a checksum differs."""
        buffer: Buffer | None = None
        try:
            head = bytearray()
            sizes: deque[int] = deque()
            filled = 0
            async for piece in pieces(upstream, self._file):
                view = memoryview(piece)
                self._count(len(view))
                if not sizes:
                    head += view
                    plan = _plan(self._file, head, self._chunk_bytes)
                    if plan is None:
                        continue
                    sizes.extend(plan)
                    view = memoryview(bytes(head))
                while len(view):
                    if buffer is None:
                        buffer = await self._window.take(sizes[0])
                    part = view[: sizes[0] - filled]
                    memoryview(buffer)[filled : filled + len(part)] = part
                    filled, view = filled + len(part), view[len(part) :]
                    if filled == sizes[0]:
                        full, buffer = buffer, None
                        await self._hand_on(full, sizes.popleft())
                        filled = 0
            if self._hashing is not None:
                await self._hashing
            assert not sizes
            return Taken(await asyncio.to_thread(self._checks.finish), tuple(self._chunks))
        finally:
            if buffer is not None:
                self._window.give_back(buffer)
            if self._hashing is not None:
                await asyncio.wait({self._hashing})
                if not self._hashing.cancelled():
                    self._hashing.exception()  # Heard of: where something else failed first, that is what is told.

    async def _hand_on(self, buffer: Buffer, size: int) -> None:
        """One chunk of a file is hashed at a time (its digest is a chain), while the next one is read."""
        if self._hashing is not None:
            try:
                await self._hashing
            except BaseException:
                self._window.give_back(buffer)
                raise
        self._hashing = asyncio.create_task(self._hash(buffer, size))

    async def _hash(self, buffer: Buffer, size: int) -> None:
        view = memoryview(buffer)[:size]
        try:
            digest, _ = await asyncio.gather(
                asyncio.to_thread(Digest.of, view), asyncio.to_thread(self._checks.update, view)
            )
        except BaseException:
            self._window.give_back(buffer)
            raise
        chunk = Chunk(digest, size)
        self._chunks.append(chunk)
        await self._store(chunk, buffer)


def _plan(file: UpstreamFile, head: bytearray, chunk_bytes: int) -> Sequence[int] | None:
    """The chunk sizes, once enough of the file is here to know them; None while it is not."""
    if not file.path.endswith(".safetensors"):
        return fixed_cuts(file.size, chunk_bytes)
    if len(head) < 8 and len(head) < file.size:
        return None
    length = safetensors_header_bytes(bytes(head[:8]))
    if length is None or length > min(file.size, longest_chunk(chunk_bytes)):
        return fixed_cuts(file.size, chunk_bytes)
    if len(head) < length:
        return None
    return tensor_cuts(file.size, safetensors_boundaries(bytes(head[:length]), file.size), chunk_bytes)


async def pieces(upstream: Upstream, file: UpstreamFile) -> AsyncIterator[bytes | memoryview]:
    """Exactly the file's bytes; a source that goes down is asked again from where it stopped, a few times."""
    at, failures = 0, 0
    while at < file.size:
        before = at
        try:
            async for piece in upstream.read(file, offset=at):
                at += len(piece)
                if at > file.size:
                    break
                yield piece
            if at == file.size:
                return
            sent = "more than" if at > file.size else f"{at} of"
            raise Corrupt(
                f"the upstream sent {sent} {file.size} bytes of {file.path}", hint="mirror it again when it rests"
            )
        except Down as why:
            failures = 1 if at > before else failures + 1
            if failures >= ATTEMPTS:
                raise
            await asyncio.sleep(pause_s(why, BACKOFF_S, BACKOFF_S_MAX, failures, asked_s_max=BACKOFF_S_MAX))


async def read_all(upstream: Upstream, file: UpstreamFile, into: memoryview) -> Digest:
    """A small file's bytes, checked against the upstream's checksums; its digest."""
    at, checks = 0, Checks(file)
    async for piece in pieces(upstream, file):
        into[at : at + len(piece)] = piece
        at += len(piece)
    checks.update(into)
    return checks.finish()

"""What every `Store` promises, whoever implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from bdn.digest import Digest
from bdn.errors import ChunkCorrupt, ShortRead
from bdn.manifest import Chunk
from bdn.nvme import NvmeStore
from bdn.ports import Store
from bdn.sinks import SinkChoice
from tests.bdn.models import Model, model

Make = Callable[[], Store]


@pytest.fixture(params=[SinkChoice.BUFFERED, SinkChoice.DIRECT])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a store; a second call after `close` opens the same one again."""
    return lambda: NvmeStore(tmp_path / "cache", write=request.param, arena_blocks=(2, 1))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def fill(store: Store, m: Model, chunks: tuple[Chunk, ...] | None = None) -> None:
    await store.admit(m.manifest)
    for chunk in m.chunks if chunks is None else chunks:
        sink = store.sink(m.manifest.digest, chunk)
        body = m.bodies[chunk.digest]
        for at in range(0, len(body), 10_000):
            sink.write(memoryview(body)[at : at + 10_000])
        assert sink.digest() == chunk.digest
        await store.commit(m.manifest.digest, sink)


def same_files(directory: str, m: Model) -> None:
    root = Path(directory)
    found = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and not p.is_symlink()}
    assert found == m.files
    for file in m.manifest.files:
        assert (root / file.path).stat().st_mode & 0o777 == file.mode
    for link in m.manifest.symlinks:
        assert (root / link.path).readlink() == Path(link.target)


def test_a_filled_model_is_published_whole_with_its_modes_and_links(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await fill(store, m)
        assert store.published(m.manifest.digest) is None
        where = await store.publish(m.manifest.digest)
        assert store.published(m.manifest.digest) == where
        same_files(where, m)

    run(work())


def test_nothing_is_verified_before_its_commit(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await store.admit(m.manifest)
        chunk = m.chunks[0]
        sink = store.sink(m.manifest.digest, chunk)
        sink.write(m.bodies[chunk.digest])
        assert not store.has(chunk.digest)
        assert store.verified(m.manifest.digest) == frozenset()
        await store.commit(m.manifest.digest, sink)
        assert store.has(chunk.digest)
        assert store.verified(m.manifest.digest) == {chunk.digest}

    run(work())


def test_a_sink_of_wrong_bytes_cannot_be_committed(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await store.admit(m.manifest)
        chunk = m.chunks[0]
        sink = store.sink(m.manifest.digest, chunk)
        sink.write(bytes(chunk.size))
        assert sink.digest() != chunk.digest
        with pytest.raises(ChunkCorrupt):
            await store.commit(m.manifest.digest, sink)
        store.discard(sink)
        assert not store.has(chunk.digest)

    run(work())


def test_a_sink_refuses_more_than_its_chunk(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await store.admit(m.manifest)
        chunk = m.chunks[0]
        sink = store.sink(m.manifest.digest, chunk)
        sink.write(bytes(chunk.size))
        with pytest.raises(ShortRead):
            sink.write(b"x")
        store.discard(sink)

    run(work())


def test_a_restarted_sink_starts_at_byte_zero(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await store.admit(m.manifest)
        chunk = m.chunks[0]
        sink = store.sink(m.manifest.digest, chunk)
        sink.write(bytes(chunk.size // 2))
        sink.restart()
        assert sink.received == 0
        sink.write(m.bodies[chunk.digest])
        await store.commit(m.manifest.digest, sink)
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)

    run(work())


def test_a_losing_sink_cannot_touch_verified_bytes(make: Make) -> None:
    """A hedge: whichever of the two commits, garbage that the other writes before or after never shows."""

    async def work() -> None:
        store, m = make(), model()
        await store.admit(m.manifest)
        for first_wins, chunk in zip(cycle((True, False)), m.chunks, strict=False):
            first, second = store.sink(m.manifest.digest, chunk), store.sink(m.manifest.digest, chunk)
            winner, loser = (first, second) if first_wins else (second, first)
            loser.write(bytes(chunk.size // 2))
            winner.write(m.bodies[chunk.digest])
            await store.commit(m.manifest.digest, winner)
            loser.write(bytes(chunk.size - chunk.size // 2))
            late = store.sink(m.manifest.digest, chunk)
            late.write(bytes(chunk.size))
            store.discard(loser)
            store.discard(late)
        same_files(await store.publish(m.manifest.digest), m)

    run(work())


def test_a_chunk_of_another_model_is_adopted_not_fetched(make: Make) -> None:
    async def work() -> None:
        store, a, b = make(), model(), model(extra="changed")
        shared = {c.digest for c in a.chunks} & {c.digest for c in b.chunks}
        assert shared and shared != {c.digest for c in b.chunks}
        await fill(store, a)
        await store.admit(b.manifest)
        for chunk in b.chunks:
            assert await store.adopt(b.manifest.digest, chunk) == (chunk.digest in shared)
        await fill(store, b, tuple(c for c in b.chunks if c.digest not in shared))
        same_files(await store.publish(b.manifest.digest), b)

    run(work())


def test_admitting_twice_changes_nothing(make: Make) -> None:
    async def work() -> None:
        store, m = make(), model()
        await fill(store, m, m.chunks[:2])
        await store.admit(m.manifest)
        assert store.verified(m.manifest.digest) == {c.digest for c in m.chunks[:2]}
        assert list(store.models()) == [m.manifest.digest]

    run(work())


def test_an_unknown_chunk_is_not_there(make: Make) -> None:
    store = make()
    assert not store.has(Digest.of(b"never seen"))
    assert store.published(Digest.of(b"never seen")) is None

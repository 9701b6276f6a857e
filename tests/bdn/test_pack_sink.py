"""A pack of small files goes straight into them: piece by piece, over whatever lay there, never over a verified one."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest

from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.nvme import NvmeStore
from bdn.pack_sink import PackSink
from bdn.write_behind import BEHIND_BYTES, WriteBehind
from tests.bdn.models import Model, pack
from tests.contract.test_store_contract import fill, same_files

MODES = (0o644, 0o600, 0o444, 0o755, 0o400)


def many(count: int = 200, seed: int = 1) -> Model:
    """One pack of `count` files of 1 to 3000 bytes in three directories, with five modes."""
    rng, bodies = random.Random(seed), dict[Digest, bytes]()
    contents = {f"{('', 'a/', 'a/b/')[i % 3]}f{i:04}": rng.randbytes(rng.randint(1, 3000)) for i in range(count)}
    files = [replace(f, mode=MODES[i % len(MODES)]) for i, f in enumerate(pack(contents, bodies))]
    return Model(Manifest(tuple(files)), bodies, contents)


def pieces(body: bytes, seed: int) -> Iterator[memoryview]:
    rng, at = random.Random(seed), 0
    while at < len(body):
        size = rng.choice((1, 7, 1000, 5000, 100_000))
        yield memoryview(body)[at : at + size]
        at += size


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize("seed", range(5))
def test_files_are_whole_however_their_pack_was_cut_on_its_way(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), many(seed=seed)
        await store.admit(m.manifest)
        [chunk] = m.chunks
        sink = store.sink(m.manifest.digest, chunk)
        assert isinstance(sink, PackSink)
        for piece in pieces(m.bodies[chunk.digest], seed):
            sink.write(piece)
        await store.commit(m.manifest.digest, sink)
        same_files(await store.publish(m.manifest.digest), m)
        assert await store.verify(m.manifest.digest) == ()
        store.close()

    asyncio.run(work())


def test_modes_are_the_manifest_s_whatever_the_umask_takes_away(tmp_path: Path, narrow_umask: None) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), many()
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def test_a_mode_that_somebody_changed_is_set_again_when_the_model_is_mended(tmp_path: Path) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), many()
        await fill(store, m)
        where = Path(await store.publish(m.manifest.digest))
        (where / "f0000").chmod(0o777)
        await store.found_bad(m.manifest.digest, m.chunks[0].digest)
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_pull_that_died_within_a_pack_left_nothing_that_counts(tmp_path: Path, share: float) -> None:
    """The pack comes whole with the next pull, over what the dead one wrote, wrong bytes among them."""

    async def work() -> None:
        m = many()
        [chunk] = m.chunks
        for body in (bytes(chunk.size), m.bodies[chunk.digest]):
            store = NvmeStore(tmp_path)
            await store.admit(m.manifest)
            sink = store.sink(m.manifest.digest, chunk)
            sink.write(body[: int(share * chunk.size)])
            store.close()  # As the kernel does it for who is killed: the sink was never told.
            assert not list((tmp_path / "models").iterdir())
        store = NvmeStore(tmp_path)
        assert not store.has(chunk.digest) and store.open(chunk.digest) is None
        assert store.verified(m.manifest.digest) == frozenset()
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def test_a_source_that_died_within_a_pack_is_followed_by_one_that_starts_over(tmp_path: Path) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), many()
        await store.admit(m.manifest)
        [chunk] = m.chunks
        sink = store.sink(m.manifest.digest, chunk)
        sink.write(bytes(chunk.size // 3))
        sink.restart()
        sink.write(m.bodies[chunk.digest])
        await store.commit(m.manifest.digest, sink)
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def test_what_lay_at_a_file_s_place_is_replaced_not_written_through(tmp_path: Path) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path / "store"), many()
        await store.admit(m.manifest)
        staged, outside = tmp_path / "store" / "staging" / m.manifest.digest.hex, tmp_path / "outside"
        outside.write_bytes(b"not ours")
        (staged / "f0000").symlink_to(outside)
        os.link(outside, staged / "f0003")
        (staged / "f0006").write_bytes(bytes(9000))
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)
        assert outside.read_bytes() == b"not ours" and stat.S_ISREG(outside.lstat().st_mode)
        store.close()

    asyncio.run(work())


@pytest.mark.parametrize("first_wins", [True, False])
def test_of_two_copies_of_a_pack_only_the_first_to_arrive_is_in_the_files(tmp_path: Path, first_wins: bool) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), many()
        await store.admit(m.manifest)
        [chunk] = m.chunks
        sinks = [store.sink(m.manifest.digest, chunk) for _ in range(2)]
        winner, loser = sinks if first_wins else reversed(sinks)
        loser.write(bytes(chunk.size // 2))
        winner.write(m.bodies[chunk.digest])
        await store.commit(m.manifest.digest, winner)
        loser.write(bytes(chunk.size - chunk.size // 2))
        store.discard(loser)
        same_files(await store.publish(m.manifest.digest), m)
        assert await store.verify(m.manifest.digest) == ()
        store.close()

    asyncio.run(work())


def test_files_that_share_bytes_of_a_pack_are_whole(tmp_path: Path) -> None:
    """Our mirror cuts no such pack, but the format allows it: it is written beside the files and copied into them."""
    body = random.Random(5).randbytes(3000)
    chunk = Chunk(Digest.of(body), len(body))
    parts = {"one": (0, 2000), "two": (1000, 3000), "three": (0, 2000)}
    files = [
        File(path, end - at, 0o644, Digest.of(body[at:end]), (Extent(chunk, at, end - at),))
        for path, (at, end) in parts.items()
    ]
    m = Model(Manifest(tuple(files)), {chunk.digest: body}, {path: body[at:end] for path, (at, end) in parts.items()})

    async def work() -> None:
        store = NvmeStore(tmp_path)
        await fill(store, m)
        same_files(await store.publish(m.manifest.digest), m)
        assert await store.verify(m.manifest.digest) == ()
        store.close()

    asyncio.run(work())


def test_a_disk_that_failed_behind_the_writing_is_not_passed_over(tmp_path: Path) -> None:
    """The kernel tells of a failed write once: who syncs after that would hear that all is well."""

    async def work() -> None:
        behind = WriteBehind(tmp_path / "gone")
        behind.wrote(BEHIND_BYTES - 1)
        await behind.settled()
        behind.wrote(1)
        for _ in range(2):
            with pytest.raises(Invalid):
                await behind.settled()
        (tmp_path / "gone").mkdir()
        behind.wrote(BEHIND_BYTES)
        await behind.settled()
        behind.close()

    asyncio.run(work())


def test_a_disk_that_failed_is_not_forgotten_because_more_was_written(tmp_path: Path) -> None:
    async def work() -> None:
        behind = WriteBehind(tmp_path / "gone")
        behind.wrote(BEHIND_BYTES)
        assert behind._running is not None
        wait([behind._running])
        (tmp_path / "gone").mkdir()
        behind.wrote(BEHIND_BYTES)
        with pytest.raises(Invalid):
            await behind.settled()
        behind.close()

    asyncio.run(work())

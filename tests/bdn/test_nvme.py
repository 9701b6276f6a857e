"""The disk: a file is absent or whole, a restart resumes, and no write ever reaches bytes that were verified."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdn.bitfield import Bitfield
from bdn.digest import Digest
from bdn.errors import DiskFull, Invalid
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.nvme import NvmeStore
from bdn.same_disk import sharable
from bdn.sinks import PAGE, SinkChoice, past_the_cache
from bdn.staged_files import StagedFiles
from tests.bdn.models import Model, cut, model
from tests.contract.test_store_contract import fill, same_files


def read(store: NvmeStore, chunk: Chunk) -> bytes:
    opened = store.open(chunk.digest)
    assert opened is not None
    try:
        return b"".join(os.pread(s.fd, s.size, s.offset) for s in opened.spans)
    finally:
        opened.close()


@pytest.mark.parametrize("write", [SinkChoice.BUFFERED, SinkChoice.DIRECT])
def test_every_verified_chunk_can_be_served_before_and_after_publication(tmp_path: Path, write: SinkChoice) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path, write=write, arena_blocks=(2, 1)), model()
        await fill(store, m)
        for chunk in m.chunks:
            assert read(store, chunk) == m.bodies[chunk.digest]
        await store.publish(m.manifest.digest)
        for chunk in m.chunks:
            assert read(store, chunk) == m.bodies[chunk.digest]
        store.close()

    asyncio.run(work())


def test_a_restart_resumes_with_every_committed_chunk(tmp_path: Path) -> None:
    m = model()

    async def half() -> None:
        store = NvmeStore(tmp_path)
        await fill(store, m, m.chunks[:3])
        store.close()  # Not a graceful stop: it gives the lock up, as death does, and syncs nothing.

    async def rest() -> None:
        store = NvmeStore(tmp_path)
        assert store.verified(m.manifest.digest) == {c.digest for c in m.chunks[:3]}
        assert store.manifest(m.manifest.digest).digest == m.manifest.digest
        await fill(store, m, m.chunks[3:])
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(half())
    asyncio.run(rest())
    again = NvmeStore(tmp_path)
    assert again.published(m.manifest.digest) is not None


def test_after_a_power_cut_only_synced_chunks_are_believed(tmp_path: Path) -> None:
    bits = Bitfield(tmp_path, 20, "boot-1")
    bits.set(3)
    bits.make_durable(bits.snapshot())
    bits.set(17)
    same_boot = Bitfield(tmp_path, 20, "boot-1")
    assert (3 in same_boot, 17 in same_boot) == (True, True)
    next_boot = Bitfield(tmp_path, 20, "boot-2")
    assert (3 in next_boot, 17 in next_boot) == (True, False)


def test_a_torn_bitfield_costs_work_and_never_truth(tmp_path: Path) -> None:
    bits = Bitfield(tmp_path, 20, "boot-1")
    bits.set(3)
    bits.make_durable(bits.snapshot())
    body = bytearray((tmp_path / "durable").read_bytes())
    body[-1] ^= 0xFF
    (tmp_path / "durable").write_bytes(body)
    assert Bitfield(tmp_path, 20, "boot-2").held == 0


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    store = NvmeStore(tmp_path)
    with pytest.raises(Invalid, match=f"process {os.getpid()}"):
        NvmeStore(tmp_path)
    store.close()
    NvmeStore(tmp_path).close()


def test_a_model_that_cannot_fit_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    digest = Digest.of(b"x")
    chunk_bytes, count = 64 << 20, 1 << 20
    huge = File("x", chunk_bytes * count, 0o644, digest, (Extent(Chunk(digest, chunk_bytes), 0, chunk_bytes),) * count)
    store = NvmeStore(tmp_path)
    manifest = Manifest((huge,))
    with pytest.raises(DiskFull, match="needed"):
        asyncio.run(store.admit(manifest))
    assert list(store.models()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_whole_file_of_a_complete_model_is_linked_and_never_written_through(tmp_path: Path) -> None:
    async def work() -> None:
        store, a, b = NvmeStore(tmp_path), model(), model(extra="changed")
        await fill(store, a)
        first = Path(await store.publish(a.manifest.digest))
        await store.admit(b.manifest)
        big = next(f for f in b.manifest.files if f.path == "model.safetensors")
        assert store.verified(b.manifest.digest) >= {e.chunk.digest for e in big.extents}
        await fill(store, b)
        second = Path(await store.publish(b.manifest.digest))
        same_files(str(second), b)
        assert (first / big.path).stat().st_ino == (second / big.path).stat().st_ino
        await store.found_bad(b.manifest.digest, big.extents[0].chunk.digest)
        sink = store.sink(b.manifest.digest, big.extents[0].chunk)
        sink.write(b"garbage")
        store.discard(sink)
        same_files(str(first), a)
        store.close()

    asyncio.run(work())


def test_a_chunk_read_back_is_kept_while_it_is_right_and_forgotten_once_it_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), model()
        await fill(store, m)
        where = Path(await store.publish(m.manifest.digest))
        for chunk in m.chunks:
            assert await store.recheck(chunk.digest) == {}
        assert store.published(m.manifest.digest) and not store.bad_chunks
        flip(where / "model.safetensors")
        lost = [c for c in m.chunks if await store.recheck(c.digest) == {m.manifest.digest: True}]
        assert len(lost) == store.bad_chunks == 1 and not store.has(lost[0].digest)
        assert await store.recheck(lost[0].digest) == {} and store.published(m.manifest.digest) is None
        await fill(store, m, tuple(lost))
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def test_a_flipped_bit_is_found_forgotten_and_healed(tmp_path: Path) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path), model()
        await fill(store, m)
        where = Path(await store.publish(m.manifest.digest))
        assert await store.verify(m.manifest.digest) == ()
        for path in ("model.safetensors", "sub/vocab.txt"):
            flip(where / path)
        bad = await store.verify(m.manifest.digest)
        assert len(bad) == 2
        assert store.published(m.manifest.digest) is None
        assert not any(store.has(digest) for digest in bad)
        await fill(store, m, tuple(c for c in m.chunks if c.digest in bad))
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def test_a_truncated_file_is_noticed_at_the_next_start(tmp_path: Path) -> None:
    m = model()

    async def filled() -> None:
        store = NvmeStore(tmp_path)
        await fill(store, m)
        where = Path(await store.publish(m.manifest.digest))
        os.truncate(where / "model.safetensors", 1000)
        store.close()

    asyncio.run(filled())
    store = NvmeStore(tmp_path)
    assert store.published(m.manifest.digest) is None
    big = m.manifest.files[0]
    assert store.verified(m.manifest.digest).isdisjoint({e.chunk.digest for e in big.extents})

    async def heal(m: Model) -> None:
        missing = [c for c in m.chunks if c.digest not in store.verified(m.manifest.digest)]
        await fill(store, m, tuple(missing))
        same_files(await store.publish(m.manifest.digest), m)

    asyncio.run(heal(m))


def packs_of(root: Path, m: Model) -> list[Path]:
    return list((root / "state" / m.manifest.digest.hex / "packs").iterdir())


@pytest.mark.parametrize("write", [SinkChoice.BUFFERED, SinkChoice.DIRECT])
def test_a_pack_is_stored_once_in_its_files_and_served_from_them(tmp_path: Path, write: SinkChoice) -> None:
    async def work() -> None:
        store, m = NvmeStore(tmp_path, write=write), model()
        await fill(store, m)
        store.close()
        store = NvmeStore(tmp_path)  # Without what the first one still had in memory.
        assert packs_of(tmp_path, m) == []
        pack = next(f.extents[0].chunk for f in m.manifest.files if f.packed)
        assert read(store, pack) == m.bodies[pack.digest]
        where = Path(await store.publish(m.manifest.digest))
        assert read(store, pack) == m.bodies[pack.digest]
        assert await store.verify(m.manifest.digest) == ()
        (where / "config.json").unlink()
        assert store.open(pack.digest) is None
        store.close()

    asyncio.run(work())


def test_a_pack_of_which_no_file_holds_a_part_is_kept_beside_them(tmp_path: Path) -> None:
    """Our mirror cuts no such pack, but the format allows it, and peers ask for whole chunks."""
    body = random.Random(3).randbytes(10_000)
    chunk = Chunk(Digest.of(body), len(body))
    files = [File(f"f{at}", 100, 0o644, Digest.of(body[at : at + 100]), (Extent(chunk, at, 100),)) for at in (0, 5000)]
    m = Model(Manifest(tuple(files)), {chunk.digest: body}, {f"f{at}": body[at : at + 100] for at in (0, 5000)})

    async def work() -> None:
        store = NvmeStore(tmp_path)
        await fill(store, m)
        await store.publish(m.manifest.digest)
        store.close()
        again = NvmeStore(tmp_path)
        assert read(again, chunk) == body
        assert await again.verify(m.manifest.digest) == ()
        again.close()

    asyncio.run(work())


def test_what_a_dead_process_left_beside_the_files_is_swept(tmp_path: Path) -> None:
    m = model()

    async def work() -> None:
        store = NvmeStore(tmp_path)
        await fill(store, m, m.chunks[:1])
        store.close()

    asyncio.run(work())
    left = tmp_path / "state" / m.manifest.digest.hex / "packs" / f"{m.chunks[1].digest.hex}.part1"
    left.write_bytes(b"half a chunk")
    NvmeStore(tmp_path).close()
    assert not left.exists()


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(1, 40_000))
def test_only_whole_pages_that_lie_alike_in_both_files_are_shared(source: int, target: int, size: int) -> None:
    start, end = sharable(source, target, size)
    assert 0 <= start <= end <= size
    if start < end:
        assert not (source + start) % PAGE and not (target + start) % PAGE and not (end - start) % PAGE
        assert start < PAGE and size - end < PAGE
    elif (source - target) % PAGE == 0:
        assert size < 2 * PAGE


def test_a_chunk_of_another_model_shares_its_blocks_where_the_file_system_can(tmp_path: Path) -> None:
    """Whatever the file system, the bytes are right and checked; Btrfs and XFS store them once."""
    can = shares_blocks(tmp_path)

    async def work() -> None:
        store, rng = NvmeStore(tmp_path / "store"), random.Random(4)
        bodies: dict[Digest, bytes] = {}
        first, second = (rng.randbytes(100) + rng.randbytes(8 << 20) for _ in range(2))
        a = Model(Manifest((cut("x.bin", first + second, 4 << 20, bodies),)), bodies, {"x.bin": first + second})
        changed = first + rng.randbytes(len(second))
        b = Model(Manifest((cut("x.bin", changed, 4 << 20, bodies),)), bodies, {"x.bin": changed})
        await fill(store, a)
        await store.publish(a.manifest.digest)
        await store.admit(b.manifest)
        adopted = [c for c in b.chunks if await store.adopt(b.manifest.digest, c)]
        assert len(adopted) == 2
        await fill(store, b)
        where = await store.publish(b.manifest.digest)
        same_files(where, b)
        os.sync()
        if FILEFRAG:
            assert shared_bytes(Path(where) / "x.bin") == (8 << 20 if can else 0)
        store.close()

    asyncio.run(work())


def shares_blocks(where: Path) -> bool:
    (where / "one").write_bytes(bytes(1 << 16))
    return subprocess.run(["cp", "--reflink=always", where / "one", where / "two"], capture_output=True).returncode == 0


FILEFRAG = shutil.which("filefrag", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")  # No user's path has these.


def shared_bytes(path: Path) -> int:
    """Of the extents that the kernel marks as shared with another file."""
    assert FILEFRAG is not None
    out = subprocess.run([FILEFRAG, "-v", "-b1", path], capture_output=True, text=True, check=False).stdout
    rows = [line.split(":") for line in out.splitlines() if line.strip()[:1].isdigit()]
    return sum(int(row[3]) for row in rows if "shared" in row[-1])


def test_a_model_deleted_behind_the_store_is_not_published_and_comes_again(tmp_path: Path) -> None:
    async def work() -> None:
        store, a, b = NvmeStore(tmp_path), model(), model(extra="changed")
        for m in (a, b):
            await fill(store, m)
            await store.publish(m.manifest.digest)
        shutil.rmtree(str(store.published(a.manifest.digest)))
        assert store.published(a.manifest.digest) is None
        assert set(await store.verify(a.manifest.digest)) == {c.digest for c in a.chunks}
        await store.found_bad(a.manifest.digest, a.chunks[0].digest)
        assert await store.verify(b.manifest.digest) == ()
        await fill(store, a)
        same_files(await store.publish(a.manifest.digest), a)
        assert await store.verify(a.manifest.digest) == ()
        store.close()

    asyncio.run(work())


@pytest.mark.parametrize("harm", ["delete", "shorten", "delete all", "delete a link"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_model_that_lost_files_is_whole_after_its_next_pull(tmp_path: Path, harm: str, restart: bool) -> None:
    async def work() -> None:
        store, m, other = NvmeStore(tmp_path), model(), model(extra="changed")
        for each in (m, other):
            await fill(store, each)
            await store.publish(each.manifest.digest)
        place = Path(str(store.published(m.manifest.digest)))
        largest = max(m.manifest.files, key=lambda f: f.size)
        if harm == "delete a link":
            (place / m.manifest.symlinks[0].path).unlink()
        elif harm == "shorten":
            private = (place / largest.path).read_bytes()[:-1]
            (place / largest.path).unlink()
            (place / largest.path).write_bytes(private)
        else:
            for file in m.manifest.files if harm == "delete all" else [largest]:
                (place / file.path).unlink()
        if restart:
            store.close()
            store = NvmeStore(tmp_path)
        await fill(store, m)  # Admits it first, as every pull does.
        same_files(await store.publish(m.manifest.digest), m)
        assert await store.verify(m.manifest.digest) == await store.verify(other.manifest.digest) == ()
        store.close()

    asyncio.run(work())


def test_a_link_that_two_threads_break_at_once_leaves_one_file(tmp_path: Path) -> None:
    staged, path = StagedFiles(tmp_path, tmp_path), tmp_path / "shared"
    path.write_bytes(bytes(1 << 20))
    os.link(path, tmp_path / "other")
    with ThreadPoolExecutor(8) as threads:
        fds = list(threads.map(lambda _: staged.open_own(path), range(8)))
    assert {os.fstat(fd).st_ino for fd in fds} == {path.stat().st_ino} != {(tmp_path / "other").stat().st_ino}
    for fd in fds:
        os.close(fd)


def test_a_removed_model_leaves_nothing_and_frees_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        store, a, b = NvmeStore(tmp_path), model(), model(extra="changed")
        for m in (a, b):
            await fill(store, m)
            await store.publish(m.manifest.digest)
        await store.remove(a.manifest.digest)
        assert list(store.models()) == [b.manifest.digest]
        for chunk in b.chunks:
            assert read(store, chunk) == b.bodies[chunk.digest]
        same_files(str(store.published(b.manifest.digest)), b)
        for part in ("models", "staging", "state"):
            assert [p.name for p in (tmp_path / part).iterdir() if p.name == a.manifest.digest.hex] == []

    asyncio.run(work())


def test_leftovers_that_no_manifest_explains_are_swept(tmp_path: Path) -> None:
    NvmeStore(tmp_path).close()
    stray = tmp_path / "staging" / ("0" * 64)
    stray.mkdir()
    (stray / "file").write_bytes(b"x")
    (tmp_path / "state" / "nonsense").mkdir()
    NvmeStore(tmp_path).close()
    assert list((tmp_path / "staging").iterdir()) == []
    assert list((tmp_path / "state").iterdir()) == []


def test_neighbours_that_share_a_page_do_not_harm_each_other(tmp_path: Path) -> None:
    """Tensor cuts fall anywhere: the last page of one chunk is the first of the next."""

    async def work() -> None:
        store, m = NvmeStore(tmp_path, write=SinkChoice.DIRECT), model(chunk_bytes=10_001)
        await store.admit(m.manifest)
        chunks = list(m.chunks)
        random.Random(3).shuffle(chunks)
        for batch in (chunks[i : i + 8] for i in range(0, len(chunks), 8)):
            sinks = [store.sink(m.manifest.digest, c) for c in batch]
            for sink in sinks:
                sink.write(m.bodies[sink.chunk.digest])
            await asyncio.gather(*(store.commit(m.manifest.digest, s) for s in sinks))
        same_files(await store.publish(m.manifest.digest), m)
        store.close()

    asyncio.run(work())


def test_large_models_go_past_the_page_cache_and_small_ones_where_memory_is_short() -> None:
    mb = 1 << 20
    assert not past_the_cache(SinkChoice.AUTO, 255 * mb, lambda: 1 << 40)
    assert past_the_cache(SinkChoice.AUTO, 255 * mb, lambda: 500 * mb)


def test_memory_is_not_asked_about_where_it_changes_nothing() -> None:
    def asked() -> int:
        raise AssertionError("read from /proc for each chunk of a large model")

    assert past_the_cache(SinkChoice.AUTO, 256 << 20, asked)
    assert past_the_cache(SinkChoice.DIRECT, 1, asked)
    assert not past_the_cache(SinkChoice.BUFFERED, 1 << 40, asked)

"""Push time: read once, store what is new, name it last; and the next time move nothing."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import hashlib
import json
import random
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bdn.chunking import CHUNK_BYTES
from bdn.digest import Digest
from bdn.errors import Corrupt, Invalid, Missing, SourceDown, Usage
from bdn.http.static import DirectoryServer
from bdn.manifest import DOCUMENT_BYTES_MAX, Chunk, Manifest, parse
from bdn.mirror import MirrorPlan, mirror
from bdn.mirror_file import FileCutter, Window
from bdn.origins.directory import DirectoryOrigin, DirectoryWriter
from bdn.origins.http import HttpOrigin
from bdn.ports import UpstreamFile
from tests.bdn.fakes import MemorySink, MemoryUpstream

PLAN = MirrorPlan("test/model", window_bytes=64 << 20)


def safetensors(seed: int, tensors: dict[str, int]) -> bytes:
    header, at, rng, body = {}, 0, random.Random(seed), bytearray()
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        body += rng.randbytes(size)
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def example() -> dict[str, bytes]:
    rng = random.Random(1)
    return {
        "model.safetensors": safetensors(2, {"a": 20 << 20, "b": 3000, "c": 9 << 20}),
        "codec/weights.bin": rng.randbytes(CHUNK_BYTES * 2 + 17),
        "config.json": b"{}",
        "tokenizer/vocab.txt": rng.randbytes(5000),
        "empty": b"",
    }


async def read_back(origin: DirectoryOrigin, digest: Digest) -> tuple[Manifest, dict[str, bytes]]:
    lists: dict[Digest, bytes] = {}

    def read_list(d: Digest) -> bytes:
        return lists[d]

    root = await origin.read_document(digest, bytes_max=DOCUMENT_BYTES_MAX)
    for entry in json.loads(root)["files"]:
        if "list" in entry:
            d = Digest.from_hex(entry["list"])
            lists[d] = await origin.read_document(d, bytes_max=DOCUMENT_BYTES_MAX)
    manifest = parse(root, read_list)
    bodies = {}
    for chunk in manifest.chunks:
        sink = MemorySink(chunk)
        await origin.fetch_into(chunk, sink, stall_s=5)
        assert sink.digest() == chunk.digest
        bodies[chunk.digest] = bytes(sink.data)
    files = {}
    for f in manifest.files:
        files[f.path] = b"".join(bodies[e.chunk.digest][e.offset : e.offset + e.size] for e in f.extents)
    for file in manifest.files:
        assert Digest.of(files[file.path]) == file.digest
    return manifest, files


def test_a_mirrored_model_reads_back_byte_for_byte(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        upstream.modes["config.json"] = 0o600
        upstream.links["link.json"] = "config.json"
        result = await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        assert upstream.bytes_read == result.bytes_read == result.bytes_uploaded == sum(map(len, example().values()))
        origin = DirectoryOrigin(tmp_path)
        assert await origin.read_tag("test/model", "latest") == result.manifest
        manifest, files = await read_back(origin, result.manifest)
        assert files == example()
        assert dict(manifest.provenance)["source"] == "memory:model"
        assert {f.path: f.mode for f in manifest.files}["config.json"] == 0o600
        assert [(s.path, s.target) for s in manifest.symlinks] == [("link.json", "config.json")]

    asyncio.run(work())


def test_a_second_mirror_of_the_same_revision_reads_and_stores_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        upstream, writer = MemoryUpstream(example()), DirectoryWriter(tmp_path)
        first = await mirror(upstream, writer, PLAN)
        before = upstream.bytes_read
        again = await mirror(upstream, writer, PLAN)
        assert (again.manifest, again.bytes_read, again.bytes_uploaded) == (first.manifest, 0, 0)
        assert again.remembered and not again.tag_moved
        assert upstream.bytes_read == before
        fewer = await mirror(upstream, writer, MirrorPlan("test/model", allow=("*.json",)))
        assert fewer.manifest != first.manifest, "other filters are another model"

    asyncio.run(work())


def test_an_unpinned_source_is_read_again_and_stored_only_where_it_changed(tmp_path: Path) -> None:
    async def work() -> None:
        files, writer = example(), DirectoryWriter(tmp_path)
        first = await mirror(MemoryUpstream(files, revision=""), writer, PLAN)
        again = await mirror(MemoryUpstream(files, revision=""), writer, PLAN)
        assert again.manifest == first.manifest
        assert again.bytes_read == first.bytes_read and again.bytes_uploaded == 0
        assert again.chunks_reused == again.chunks_total == first.chunks_total
        changed = files | {"codec/weights.bin": files["codec/weights.bin"][:-1] + b"!"}
        third = await mirror(MemoryUpstream(changed, revision=""), writer, PLAN)
        assert third.bytes_uploaded == 17, "only the last chunk is new"

    asyncio.run(work())


def test_the_same_files_from_anywhere_have_the_same_chunks(tmp_path: Path) -> None:
    """However the pieces fall, the cuts are the content's."""

    async def work() -> None:
        digests = set()
        for i, piece_bytes in enumerate((7_000, 100_000, 5 << 20)):
            upstream = MemoryUpstream(example(), piece_bytes=piece_bytes)
            digests.add((await mirror(upstream, DirectoryWriter(tmp_path / str(i)), PLAN)).manifest)
        assert len(digests) == 1

    asyncio.run(work())


def test_a_broken_stream_is_resumed_where_it_broke(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        upstream.down_at = [("model.safetensors", 15 << 20), ("codec/weights.bin", 1), ("config.json", 0)]
        result = await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        _, files = await read_back(DirectoryOrigin(tmp_path), result.manifest)
        assert files == example()
        assert result.bytes_read == sum(map(len, example().values()))

    asyncio.run(work())


def test_a_source_that_stays_down_ends_the_mirror_with_its_own_error(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        upstream.down_at = [("codec/weights.bin", 0)] * 10
        with pytest.raises(SourceDown):
            await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        with pytest.raises(Missing):
            await DirectoryOrigin(tmp_path).read_tag("test/model", "latest")

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["sha256", "sha1", "md5"])
def test_the_upstreams_own_checksums_are_checked_and_kept(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        right = {p: ((kind, hashlib.new(kind, b).hexdigest()),) for p, b in example().items()}
        upstream.checksums = dict(right)
        result = await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        manifest, _ = await read_back(DirectoryOrigin(tmp_path), result.manifest)
        assert dict(manifest.provenance)[f"{kind}:config.json"] == right["config.json"][0][1]
        for path in ("model.safetensors", "config.json"):
            upstream.revision, upstream.checksums = "def", right | {path: ((kind, "0" * 64),)}
            with pytest.raises(Corrupt, match=path):
                await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        assert await DirectoryOrigin(tmp_path).read_tag("test/model", "latest") == result.manifest

    asyncio.run(work())


@pytest.mark.parametrize("listed", [-1, 1])
def test_a_file_of_another_length_than_listed_is_refused(tmp_path: Path, listed: int) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        upstream.lengths["codec/weights.bin"] = len(example()["codec/weights.bin"]) + listed
        with pytest.raises(Corrupt, match=r"weights\.bin"):
            await mirror(upstream, DirectoryWriter(tmp_path), PLAN)

    asyncio.run(work())


class FailingWriter(DirectoryWriter):
    """Stores `left` chunks, and once they are stored, the disk is full."""

    left = 3

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.under_way = 0
        self.all_stored = asyncio.Event()

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        if self.left == 0:
            await self.all_stored.wait()
            raise Invalid("the bucket is full")
        self.left -= 1
        self.under_way += 1
        await super().put(chunk, body)
        self.under_way -= 1
        if self.left == self.under_way == 0:
            self.all_stored.set()


def test_an_interrupted_mirror_publishes_nothing_and_the_next_one_stores_only_the_rest(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = MemoryUpstream(example())
        with pytest.raises(Invalid, match="full"):
            await mirror(upstream, FailingWriter(tmp_path), MirrorPlan("test/model", window_bytes=26 << 20))
        with pytest.raises(Missing):
            await DirectoryOrigin(tmp_path).read_tag("test/model", "latest")
        assert not (tmp_path / "documents").exists()
        result = await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        assert result.chunks_reused == 3
        _, files = await read_back(DirectoryOrigin(tmp_path), result.manifest)
        assert files == example()

    asyncio.run(work())


def test_a_cancelled_mirror_publishes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        seen = asyncio.Event()
        writer = DirectoryWriter(tmp_path)
        run = mirror(MemoryUpstream(example()), writer, PLAN, lambda p: seen.set() if p.bytes_uploaded else None)
        task = asyncio.create_task(run)
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (tmp_path / "tags").exists()

    asyncio.run(work())


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(Usage):
            await mirror(MemoryUpstream(example()), DirectoryWriter(tmp_path), MirrorPlan("m", allow=("*.gguf",)))

    asyncio.run(work())


def test_unsafe_paths_are_refused_before_a_byte_is_read(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = MemoryUpstream({"../../etc/passwd": b"x" * 10})
        with pytest.raises(Invalid, match="unsafe path"):
            await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        assert upstream.bytes_read == 0
        upstream = MemoryUpstream({"a": b"x" * 10})
        upstream.links["l"] = "../a"
        with pytest.raises(Invalid, match="outside the model"):
            await mirror(upstream, DirectoryWriter(tmp_path), PLAN)
        assert upstream.bytes_read == 0

    asyncio.run(work())


def test_another_length_of_chunks_is_another_model_of_the_same_files(tmp_path: Path) -> None:
    async def work() -> None:
        upstream, writer = MemoryUpstream(example()), DirectoryWriter(tmp_path)
        found = {}
        for chunk_bytes in (1 << 20, 8 << 20, 64 << 20):
            plan = MirrorPlan("test/model", window_bytes=64 << 20, chunk_bytes=chunk_bytes)
            result = await mirror(upstream, writer, plan)
            assert not result.remembered, "what was cut otherwise is not this"
            found[chunk_bytes], files = await read_back(DirectoryOrigin(tmp_path), result.manifest)
            assert files == example()
            assert (await mirror(upstream, writer, plan)).remembered
        counts = [len(m.chunks) for m in found.values()]
        assert counts == sorted(counts, reverse=True) and len(set(counts)) == 3

    asyncio.run(work())


def test_verifying_finds_what_rotted_at_the_origin_and_stores_it_again(tmp_path: Path) -> None:
    async def work() -> None:
        upstream, writer = MemoryUpstream(example()), DirectoryWriter(tmp_path)
        verify = MirrorPlan("test/model", window_bytes=64 << 20, verify=True)
        first = await mirror(upstream, writer, verify)
        whole = await mirror(upstream, writer, verify)
        assert whole.remembered and whole.bytes_read == 0, "all was well: the source need not be read"
        victim = max((tmp_path / "chunks").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
        body = bytearray(victim.read_bytes())
        body[len(body) // 2] ^= 1
        victim.write_bytes(body)
        assert (await mirror(upstream, writer, PLAN)).remembered, "without being asked nobody looks"
        repaired = await mirror(upstream, writer, verify)
        assert repaired.manifest == first.manifest and repaired.bytes_uploaded == len(body)
        _, files = await read_back(DirectoryOrigin(tmp_path), first.manifest)
        assert files == example()

    asyncio.run(work())


class SlowWriter(DirectoryWriter):
    """Keeps what it is given until as much waits as the mirror will hand out, and counts it."""

    waiting = most = 0

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        self.waiting += chunk.size
        self.most = max(self.most, self.waiting)
        for _ in range(50):  # Turns of the loop, in which a mirror that could read on would.
            await asyncio.sleep(0)
        await super().put(chunk, body)
        self.waiting -= chunk.size


def test_one_large_file_never_takes_more_than_the_window(tmp_path: Path) -> None:
    async def work() -> None:
        body = b"".join(i.to_bytes(8, "little") + bytes((1 << 20) - 8) for i in range(100))
        writer, window_bytes = SlowWriter(tmp_path), 8 << 20
        plan = MirrorPlan("test/model", window_bytes=window_bytes, chunk_bytes=1 << 20, uploads=64)
        result = await mirror(MemoryUpstream({"model.bin": body}), writer, plan)
        assert result.chunks_total == 100
        assert 2 << 20 <= writer.most <= window_bytes
        _, files = await read_back(DirectoryOrigin(tmp_path), result.manifest)
        assert files == {"model.bin": body}

    asyncio.run(work())


def test_a_killed_mirror_is_resumed_by_asking_the_origin(tmp_path: Path) -> None:
    source, origin = tmp_path / "model", tmp_path / "origin"
    source.mkdir()
    with (source / "model.bin").open("wb") as file:
        for i in range(400):  # Sparse: 400 different chunks that take no room.
            file.seek(i << 20)
            file.write(i.to_bytes(8, "little"))
        file.truncate(400 << 20)
    command = [sys.executable, "-m", "bdn", "mirror", str(source), "--origin", str(origin), "--json", "--quiet",
               "--mirror-chunk-bytes", "1MiB", "--mirror-window-bytes", "32MiB"]  # fmt: skip
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len([p for p in (origin / "chunks").glob("*/*/*")]) < 20:
        assert first.poll() is None, "it ended before it could be killed"
    first.kill()
    first.wait()
    assert not (origin / "tags").exists()
    again = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert again["chunks_total"] == 400 and 20 <= again["chunks_reused"] < 400
    assert again["bytes_uploaded"] == (400 - again["chunks_reused"]) << 20


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from bdn.mirror import MirrorPlan, mirror
from bdn.origins.directory import TAGS_INDEX, DirectoryWriter
from bdn.upstreams.directory import DirectoryUpstream

class Dying(DirectoryWriter):
    def _write(self, key, body):
        if key == TAGS_INDEX:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(key, body)

source, origin = sys.argv[1:]
asyncio.run(mirror(DirectoryUpstream(Path(source)), Dying(origin), MirrorPlan("late", "prod")))
"""


@pytest.mark.parametrize("same", [True, False], ids=["same model", "other model"])
@pytest.mark.parametrize("first", [True, False], ids=["its first tag", "a later one"])
def test_a_mirror_killed_between_its_tag_and_the_list_of_tags_is_listed_by_the_next(
    same: bool, first: bool, tmp_path: Path
) -> None:
    for name in ("late", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.bin").write_bytes(name.encode() * 1000)
    origin, bdn = tmp_path / "origin", [sys.executable, "-m", "bdn"]
    to = ["--origin", str(origin), "--json", "--quiet"]
    if not first:
        subprocess.run([*bdn, "mirror", str(tmp_path / "other"), "--tag", "old", *to], check=True, capture_output=True)
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "late"), str(origin)], check=False)
    assert died.returncode == -signal.SIGKILL and (origin / "tags" / "late" / "prod").exists()
    assert "late:prod" not in ((origin / "tags.json").read_text() if not first else "")
    again = [str(tmp_path / "late"), "--tag", "prod"] if same else [str(tmp_path / "other")]
    done = json.loads(subprocess.run([*bdn, "mirror", *again, *to], check=True, stdout=subprocess.PIPE).stdout)
    assert done["tag_moved"] is not same, "where the tag is as it should be, nothing else would write the list"

    async def listed() -> set[str]:
        server = DirectoryServer(origin)
        reader = HttpOrigin(f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}")
        try:
            return {f"{t.name}:{t.tag}" async for t in reader.tags()}
        finally:
            await reader.close()
            await server.stop()

    async def in_place() -> set[str]:
        return {f"{t.name}:{t.tag}" async for t in DirectoryOrigin(origin).tags()}

    assert "late:prod" in asyncio.run(listed()) and asyncio.run(listed()) == asyncio.run(in_place())


def test_writers_with_the_same_process_id_write_beside_one_another(tmp_path: Path) -> None:
    """As those of two containers that share an origin: one published what the other was writing."""

    async def work() -> None:
        writers = [DirectoryWriter(tmp_path), DirectoryWriter(tmp_path)]
        bodies = [random.Random(i).randbytes((1 << 20) + 5) for i in range(60)]
        chunks = [Chunk(Digest.of(body), len(body)) for body in bodies]
        puts = (writers[i % 2].put(c, body) for i, (c, body) in enumerate(zip(chunks, bodies, strict=True)))
        await asyncio.gather(*puts)
        assert await writers[0].held(chunks) == {c.digest for c in chunks}
        assert not list((tmp_path / ".partial").iterdir())

    asyncio.run(work())


def test_what_a_killed_mirror_was_writing_is_swept_and_what_another_is_writing_is_not(tmp_path: Path) -> None:
    partial = tmp_path / ".partial"
    partial.mkdir()
    for name in ("dead", "busy", "new", "tags.lock"):
        (partial / name).write_bytes(b"" if name == "new" else b"half")
    with (partial / "busy").open("r+b") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        DirectoryWriter(tmp_path)
        assert {p.name for p in partial.iterdir()} == {"busy", "new", "tags.lock"}


def test_a_write_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    body = random.Random(3).randbytes(3 << 20)
    chunk = Chunk(Digest.of(body), len(body))
    writer = DirectoryWriter(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(Invalid, match="cannot write"):
            asyncio.run(writer.put(chunk, body))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_of_two_failures_at_once_one_is_told_and_the_other_is_no_traceback() -> None:
    """A chunk cannot be stored while its file cannot be read on, as where threads or memory run out."""
    loud: list[dict[str, object]] = []
    file, stored = UpstreamFile("f", 2 * CHUNK_BYTES), asyncio.Event()

    class Breaks(MemoryUpstream):
        async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
            yield bytes(CHUNK_BYTES)
            await stored.wait()
            await asyncio.sleep(0)
            raise Invalid("nothing more")

    async def store(chunk: Chunk, buffer: object) -> None:
        stored.set()
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: loud.append(context))
        cutter = FileCutter(file, Window(4 * CHUNK_BYTES, CHUNK_BYTES), store, lambda _: None, CHUNK_BYTES)
        with pytest.raises(Invalid, match="nothing more"):
            await cutter.take(Breaks({}))
        del cutter
        gc.collect()

    asyncio.run(work())
    assert not loud

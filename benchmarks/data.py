"""Owns the benchmarks' models: seeded random bytes in files and, the same bytes, mirrored as an origin directory."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from bdn.chunking import CHUNK_BYTES
from bdn.mirror import MirrorPlan, mirror
from bdn.origins.directory import DirectoryWriter
from bdn.upstreams.directory import DirectoryUpstream
from benchmarks.rounds import WORK

NAME = "bench/model"


@dataclass(frozen=True)
class Seeded:
    root: Path
    """For a server: `bucket/` has the files, `origin/` the mirrored model."""
    files: tuple[str, ...]
    total_bytes: int


def seeded(total_bytes: int, *, files: int = 1, seed: int = 7) -> Seeded:
    """Made once and kept; a run with other parameters makes its own."""
    root = WORK / f"data-{total_bytes}-{files}-{seed}"
    marker = root / "complete.json"
    if not marker.exists():
        shutil.rmtree(root, ignore_errors=True)
        (root / "bucket").mkdir(parents=True)
        names = [f"model-{i:05}.safetensors" for i in range(files)]
        for i, name in enumerate(names):
            write_safetensors(root / "bucket" / name, total_bytes // files, seed + i)
        asyncio.run(_mirror(root, "origin", CHUNK_BYTES))
        marker.write_text(json.dumps(names), encoding="utf-8")
    names = json.loads(marker.read_text(encoding="utf-8"))
    size = sum((root / "bucket" / n).stat().st_size for n in names)
    return Seeded(root, tuple(names), size)


def write_safetensors(path: Path, size: int, seed: int) -> None:
    """Tensors of 64 MiB, as in a real checkpoint of that size, filled with bytes that nothing can compress."""
    tensor, rng = 64 << 20, random.Random(seed)
    sizes = [tensor] * (size // tensor) + ([size % tensor] if size % tensor else [])
    header, at = {}, 0
    for i, length in enumerate(sizes):
        header[f"layers.{i}.weight"] = {"dtype": "U8", "shape": [length], "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for length in sizes:
            for done in range(0, length, 1 << 20):
                file.write(rng.randbytes(min(1 << 20, length - done)))


def stamped_file(path: Path, size: int) -> None:
    """64 MiB of random bytes over and over, each MiB with a number of its own: as large as wanted, and no two chunks
    alike."""
    block, rng = bytearray(), random.Random(7)
    for _ in range(64):
        block += rng.randbytes(1 << 20)
    with path.open("wb") as file:
        for at in range(0, size, len(block)):
            for piece in range(0, len(block), 1 << 20):
                block[piece : piece + 8] = struct.pack("<Q", at + piece)
            file.write(memoryview(block)[: min(len(block), size - at)])


def with_chunks_of(data: Seeded, chunk_bytes: int) -> str:
    """The same bytes mirrored once more, cut otherwise: where under the root."""
    name = f"origin-{chunk_bytes >> 20}m"
    if not (data.root / name / "tags").exists():
        asyncio.run(_mirror(data.root, name, chunk_bytes))
    return name


async def _mirror(root: Path, name: str, chunk_bytes: int) -> None:
    upstream = DirectoryUpstream(root / "bucket")
    await mirror(upstream, DirectoryWriter(root / name), MirrorPlan(NAME, chunk_bytes=chunk_bytes))

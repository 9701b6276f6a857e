"""Owns where files are cut into chunks. Pure: sizes and a safetensors header in, cut points out.

A chunk is what two revisions can share, so cuts should fall where content stays together when a model is fine-tuned,
extended or re-sharded: at tensors. A tensor of its own size class is cut into equal parts from its own start, so that
it has the same chunks wherever it lies; small neighbours share a chunk until the next large tensor. Anything else is
cut at fixed steps. `benchmarks/README.md` has the measurement that chose this.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bdn.manifest import CHUNK_BYTES_MAX

CHUNK_BYTES = 8 << 20
PACK_FILE_BYTES_MAX = 1 << 20
_STEP = 4096  # Parts of a tensor are whole pages, which file systems can share between two files.
HEADER_BYTES_MAX = 100 << 20  # What the safetensors library itself accepts.


@dataclass(frozen=True, slots=True)
class Small:
    """A file to be packed with others."""

    path: str
    size: int


def cutting(chunk_bytes: int = CHUNK_BYTES) -> str:
    """Names a way to cut. Part of what a mirror remembers: another way is another result."""
    return "tensors-8m-v1" if chunk_bytes == CHUNK_BYTES else f"tensors-{chunk_bytes}-v1"


def longest_chunk(chunk_bytes: int = CHUNK_BYTES) -> int:
    """No cut of ours is longer."""
    return min(chunk_bytes + chunk_bytes // 2 + _STEP, CHUNK_BYTES_MAX)


def fixed_cuts(size: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Chunk sizes of a file with no structure that we know."""
    whole, rest = divmod(size, chunk_bytes)
    return (chunk_bytes,) * whole + ((rest,) if rest else ())


def tensor_cuts(size: int, boundaries: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Chunk sizes that add up to `size`, cut at `boundaries` (ascending, within the file; 0 and `size` may be absent).

    No chunk is longer than `longest_chunk`.
    """
    edges = sorted({0, size, *(b for b in boundaries if 0 < b < size)})
    sizes: list[int] = []
    group = 0
    for start, end in pairwise(edges):
        span = end - start
        if group and group + span > chunk_bytes:
            sizes.append(group)
            group = 0
        if span >= chunk_bytes // 2:
            if group:
                sizes.append(group)
                group = 0
            sizes += _equal(span, chunk_bytes)
        else:
            group += span
    if group:
        sizes.append(group)
    return tuple(sizes)


def _equal(span: int, chunk_bytes: int) -> list[int]:
    """Equal parts rather than a short last one: a request costs the same for either, and owners stay balanced."""
    parts = max(1, round(span / chunk_bytes), -(-span // CHUNK_BYTES_MAX))
    step = -(-span // parts)
    step += -step % _STEP
    sizes = [step] * (span // step)
    return sizes + ([span % step] if span % step else [])


def safetensors_header_bytes(first_8: bytes) -> int | None:
    """How many bytes the header takes with its length field, or None where this is no plausible safetensors file."""
    if len(first_8) < 8:
        return None
    (length,) = struct.unpack("<Q", first_8[:8])
    return 8 + length if 2 <= length <= HEADER_BYTES_MAX else None


def safetensors_boundaries(header: bytes, size: int) -> tuple[int, ...]:
    """Where the header ends and every tensor begins, in file offsets; empty where the header makes no sense.

    Lenient: a lying header only costs good cuts. Whether the file can be loaded is for others to judge.
    """
    try:
        entries = json.loads(header[8:])
        offsets = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        found = {len(header), *(len(header) + int(at) for pair in offsets for at in pair)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()
    return tuple(sorted(b for b in found if 0 < b < size))


def packs(files: Iterable[Small], pack_bytes: int = CHUNK_BYTES) -> tuple[tuple[Small, ...], ...]:
    """Small files, by path, in groups of at most `pack_bytes`. Empty files belong to none."""
    groups: list[tuple[Small, ...]] = []
    group: list[Small] = []
    for file in sorted(files, key=lambda f: f.path.encode()):
        if group and sum(f.size for f in group) + file.size > pack_bytes:
            groups.append(tuple(group))
            group = []
        if file.size:
            group.append(file)
    if group:
        groups.append(tuple(group))
    return tuple(groups)

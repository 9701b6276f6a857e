"""Owns pairs of checkpoints as people make them: what a second revision changes, in tensors as a speech model has them.

Contents are random bytes: nothing compresses, and two tensors share content only where they are the same.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

Tensors = dict[str, bytes]
SHAPES = (("attn.q", 8.4e6), ("attn.kv", 8.4e6), ("attn.out", 8.4e6), ("mlp.up", 23.1e6), ("mlp.down", 11.5e6),
          ("norm1", 4096), ("norm2", 4096))  # fmt: skip


def base_tensors(size: int, rng: random.Random) -> Tensors:
    """Layers of a 1.6B-like transformer, scaled down so that about twenty fit into `size`, embeddings first."""
    layer = sum(s for _, s in SHAPES)
    count = max(2, min(24, int(size * 0.85 / layer)))
    scale = min(1.0, size * 0.85 / (count * layer))
    tensors = {"embed": rng.randbytes(int(size * 0.1)), "head": rng.randbytes(int(size * 0.05))}
    for i in range(count):
        for name, bytes_ in SHAPES:
            tensors[f"layers.{i:02}.{name}"] = rng.randbytes(max(64, int(bytes_ * scale) // 64 * 64))
    return tensors


def fine_tuned(tensors: Tensors, rng: random.Random, *, share: float) -> Tensors:
    """Whole tensors replaced until `share` of the bytes changed, as when a few layers are trained."""
    names = sorted(tensors, key=lambda n: (rng.random(), n))
    total, left = sum(map(len, tensors.values())), 0.0
    out = dict(tensors)
    for name in names:
        if left + len(tensors[name]) <= share * total:
            left += len(tensors[name])
            out[name] = rng.randbytes(len(tensors[name]))
    return out


def merged(tensors: Tensors, rng: random.Random) -> Tensors:
    """A low-rank update merged into every attention tensor: a third of the bytes, everywhere in the file."""
    return {n: rng.randbytes(len(b)) if ".attn." in n else b for n, b in tensors.items()}


def quantised(tensors: Tensors, rng: random.Random) -> Tensors:
    """The MLPs at half the size; what stays keeps its bytes but not its place."""
    return {n: rng.randbytes(len(b) // 2) if ".mlp." in n else b for n, b in tensors.items()}


def appended(tensors: Tensors, rng: random.Random) -> Tensors:
    """Vocabulary rows and two layers more: the embedding grows at its end, everything behind it moves."""
    out = dict(tensors)
    out["embed"] = tensors["embed"] + rng.randbytes(4096 * 16)
    last = max(n.split(".")[1] for n in tensors if n.startswith("layers."))
    for name in [n for n in tensors if n.startswith(f"layers.{last}.")]:
        for extra in (1, 2):
            out[name.replace(last, f"{int(last) + extra:02}")] = rng.randbytes(len(tensors[name]))
    return out


def untouched(tensors: Tensors, rng: random.Random) -> Tensors:
    return tensors


CHANGES: dict[str, Callable[[Tensors, random.Random], Tensors]] = {
    "fine-tuned 5 %": lambda t, r: fine_tuned(t, r, share=0.05), "merged": merged, "quantised": quantised,
    "appended": appended, "re-sharded": untouched, "metadata": untouched,
}  # fmt: skip


def serialise(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, body in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(body)], "data_offsets": [at, at + len(body)]}
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *tensors.values()])


def write(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    path.write_bytes(serialise(tensors, metadata))


def shards(tensors: Tensors, metadata: dict[str, str], count: int) -> list[bytes]:
    """Files of about equal size, tensors in order, as the usual savers split."""
    limit, out, group, size = sum(map(len, tensors.values())) / count, [], {}, 0
    for name, body in tensors.items():
        if group and size + len(body) > limit and len(out) < count - 1:
            out.append(serialise(group, metadata))
            group, size = {}, 0
        group[name] = body
        size += len(body)
    out.append(serialise(group, metadata))
    return out

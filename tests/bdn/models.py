"""Small models for tests: whole files, packs, repeats, empty files and links, with their bytes by digest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bdn.digest import Digest
from bdn.manifest import Chunk, Extent, File, Manifest, Symlink


@dataclass(frozen=True)
class Model:
    manifest: Manifest
    bodies: dict[Digest, bytes]
    """Every chunk's bytes."""
    files: dict[str, bytes]

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.manifest.chunks


def cut(path: str, body: bytes, chunk_bytes: int, bodies: dict[Digest, bytes], mode: int = 0o644) -> File:
    extents = []
    for at in range(0, len(body), chunk_bytes):
        piece = body[at : at + chunk_bytes]
        bodies[Digest.of(piece)] = piece
        extents.append(Extent(Chunk(Digest.of(piece), len(piece)), 0, len(piece)))
    return File(path, len(body), mode, Digest.of(body), tuple(extents))


def pack(files: dict[str, bytes], bodies: dict[Digest, bytes]) -> list[File]:
    whole = b"".join(files.values())
    bodies[Digest.of(whole)] = whole
    chunk, at, out = Chunk(Digest.of(whole), len(whole)), 0, []
    for path, body in files.items():
        out.append(File(path, len(body), 0o644, Digest.of(body), (Extent(chunk, at, len(body)),)))
        at += len(body)
    return out


def model(seed: int = 1, *, chunk_bytes: int = 64 << 10, big_bytes: int = 300_000, extra: str = "") -> Model:
    """A model with everything in it: a big file, one that repeats a chunk of it, a pack, an empty file, a link."""
    rng = random.Random(seed)
    bodies: dict[Digest, bytes] = {}
    big = rng.randbytes(big_bytes)
    second = big[:chunk_bytes] + rng.randbytes(1000) + extra.encode()
    small = {"config.json": b'{"a": 1}', "sub/vocab.txt": rng.randbytes(777), "sub/deep/merges.txt": rng.randbytes(5)}
    files = [cut("model.safetensors", big, chunk_bytes, bodies)]
    files.append(cut("sub/second.bin", second, chunk_bytes, bodies, 0o755))
    files += pack(small, bodies)
    files.append(File("sub/empty", 0, 0o644, Digest.of(b""), ()))
    manifest = Manifest(tuple(files), (("source", "test:model"),), (Symlink("sub/link.json", "../config.json"),))
    contents = {"model.safetensors": big, "sub/second.bin": second, **small, "sub/empty": b""}
    return Model(manifest, bodies, contents)

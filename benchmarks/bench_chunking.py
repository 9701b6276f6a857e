"""chunking: what two revisions of a checkpoint share under each way to cut, and what that costs in requests, manifest
size and balance between owners. Pure computation on made pairs; the product's own cut is the one marked."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bdn.chunking import CHUNK_BYTES, fixed_cuts, safetensors_boundaries, safetensors_header_bytes, tensor_cuts
from bdn.digest import Digest
from bdn.roster import Node, Roster
from benchmarks.pairs import CHANGES, base_tensors, serialise, shards
from benchmarks.rounds import ROOT, arguments, commit, machine

MIB = 1 << 20
Cut = Callable[[bytes], tuple[int, ...]]


def tensors_at(chunk_bytes: int) -> Cut:
    def cut(body: bytes) -> tuple[int, ...]:
        length = safetensors_header_bytes(body[:8])
        assert length is not None
        return tensor_cuts(len(body), safetensors_boundaries(body[:length], len(body)), chunk_bytes)

    return cut


def content_defined(mean: int) -> Cut:
    """A boundary where a hash of eight bytes says so, at any multiple of eight (safetensors aligns to it); bounds of a
    quarter and four times the mean. Vectorised: where cuts fall is compared, not how fast they are found."""
    limit = (1 << 64) // (mean // 8)

    def cut(body: bytes) -> tuple[int, ...]:
        words = np.frombuffer(body, dtype=np.uint64, count=len(body) // 8)
        candidates = (np.flatnonzero(words * np.uint64(0x9E3779B97F4A7C15) < np.uint64(limit)) + 1) * 8
        sizes, start = [], 0
        while start < len(body):
            after = candidates[np.searchsorted(candidates, start + mean // 4) :]
            end = min(int(after[0]) if len(after) else len(body), start + 4 * mean, len(body))
            sizes.append(end - start)
            start = end
        return tuple(sizes)

    return cut


WAYS: dict[str, Cut] = {
    "fixed 8 MiB": lambda b: fixed_cuts(len(b), 8 * MIB),
    "fixed 16 MiB": lambda b: fixed_cuts(len(b), 16 * MIB),
    "fixed 64 MiB": lambda b: fixed_cuts(len(b), 64 * MIB),
    "content-defined 8 MiB": content_defined(8 * MIB),
    "tensors 4 MiB": tensors_at(4 * MIB),
    "tensors 8 MiB (ours)": tensors_at(CHUNK_BYTES),
    "tensors 16 MiB": tensors_at(16 * MIB),
}


def chunks(files: list[bytes], cut: Cut) -> dict[Digest, int]:
    found: dict[Digest, int] = {}
    for body in files:
        at = 0
        for size in cut(body):
            found[Digest.of(memoryview(body)[at : at + size])] = size
            at += size
    return found


def busiest(sizes: dict[Digest, int], nodes: int) -> float:
    """The busiest owner's bytes over the mean."""
    roster = Roster(tuple(Node(f"node-{i:03}") for i in range(nodes)))
    owned = dict.fromkeys((n.name for n in roster.nodes), 0)
    for digest, size in sizes.items():
        owner = roster.owner(digest)
        assert owner is not None
        owned[owner.name] += size
    return max(owned.values()) / statistics.mean(owned.values())


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    size = int((args.gb or (0.06 if args.smoke else 1.0)) * 1e9)
    base = base_tensors(size, random.Random(args.seed))
    meta = {"format": "pt", "step": "1000"}
    before = [serialise(base, meta)]
    olds = {way: chunks(before, cut) for way, cut in WAYS.items()}
    table: dict[str, dict[str, object]] = {
        way: {
            "chunks": len(old), "manifest_bytes_per_gb": round(len(old) * 76 * 1e9 / len(before[0])),
            "busiest_owner_of_8": round(busiest(old, 8), 2),
        } for way, old in olds.items()
    }  # fmt: skip
    truly = {}
    for name, change in CHANGES.items():  # One at a time: at full size each is another gigabyte.
        after = change(base, random.Random(args.seed + 1))
        truly[name] = _changed(base, after)
        if name == "re-sharded":
            files = shards(after, meta, 3)
        else:
            note = meta if name != "metadata" else {**meta, "step": "1000000", "note": "a longer header"}
            files = [serialise(after, note)]
        for way, cut in WAYS.items():
            new, old = chunks(files, cut), olds[way]
            table[way][name] = round(sum(s for d, s in new.items() if d not in old) / sum(map(len, files)), 4)
        print(f"{name:16} {truly[name]:7} { {w: r[name] for w, r in table.items()} }", file=sys.stderr)
        del after, files
    line = {
        "workload": "chunking", "gb": round(len(before[0]) / 1e9, 3), "machine": machine(), "commit": commit(),
        "seed": args.seed, "smoke": args.smoke, "chosen": "tensors 8 MiB (ours)", "truly_new": truly, "pairs": table,
    }  # fmt: skip
    if not args.smoke:
        (ROOT / "benchmarks" / "results").mkdir(exist_ok=True)
        path = ROOT / "benchmarks" / "results" / "chunking.json"
        path.write_text(json.dumps(line, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(line))


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> float:
    """The least that any way could move: bytes of tensors that the first revision does not have."""
    known = {Digest.of(b) for b in before.values()}
    return round(sum(len(b) for b in after.values() if Digest.of(b) not in known) / sum(map(len, after.values())), 4)


if __name__ == "__main__":
    main()

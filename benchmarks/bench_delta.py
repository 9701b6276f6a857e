"""delta: the node has a model and pulls a fine-tune in which 5 % of the tensors changed. Others fetch it whole."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bdn.mirror import MirrorPlan, mirror
from bdn.origins.directory import DirectoryWriter
from bdn.upstreams.directory import DirectoryUpstream
from benchmarks.data import NAME
from benchmarks.pairs import base_tensors, fine_tuned, write
from benchmarks.peers import downloaders, ours
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import nginx


def make(size: int) -> tuple[Path, int]:
    root = WORK / f"delta-{size}"
    if not (root / "origin" / "tags" / NAME / "v2").exists():
        shutil.rmtree(root, ignore_errors=True)
        tensors = base_tensors(size, random.Random(5))
        for tag, version in (("v1", tensors), ("v2", fine_tuned(tensors, random.Random(6), share=0.05))):
            folder = root / ("bucket" if tag == "v2" else "before")
            folder.mkdir(parents=True)
            write(folder / "model.safetensors", version, {"version": tag})
            plan = MirrorPlan(NAME, tag=tag)
            asyncio.run(mirror(DirectoryUpstream(folder), DirectoryWriter(root / "origin"), plan))
    return root, (root / "bucket" / "model.safetensors").stat().st_size


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    root, total = make(int((args.gb or (0.05 if args.smoke else 1.0)) * 1e9))
    with nginx(root) as server:
        contestants = [
            ours(f"{server.url}/origin", "--have", "v1", "--tag", "v2"),
            *downloaders(server.url, ["model.safetensors"]),
        ]

        def check(contestant: Contestant, out: Path) -> str:
            want = (root / "bucket" / "model.safetensors").stat().st_size
            return "" if any(p.stat().st_size == want for p in out.rglob("model.safetensors")) else "no such file"

        results = run_rounds(
            chosen(contestants, args.only), rounds=1 if args.smoke else args.rounds, seed=args.seed,
            server_pids=server.pids, check=check,
        )  # fmt: skip
    moved = results["ours"].extra.get("moved_gb", [0.0])[-1] * 1e9 / total
    finish("delta", results, total / 1e9, args, changed_share=0.05, moved_share=round(moved, 4))


if __name__ == "__main__":
    main()

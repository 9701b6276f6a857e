"""small_files: 5,000 files of 0.2 to 100 KB; packed into a few chunks here, fetched one by one there.

On loopback a request costs nothing but CPU; with `--rtt-ms 10` the server is as far away as a bucket is, and the
workload is called small_files_far."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bdn.mirror import MirrorPlan, mirror
from bdn.origins.directory import DirectoryWriter
from bdn.upstreams.directory import DirectoryUpstream
from benchmarks.data import NAME
from benchmarks.peers import downloaders, ours
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import Server, nginx, python_server


def make(count: int, seed: int) -> tuple[Path, list[str], int]:
    root, rng = WORK / f"small-{count}-{seed}", random.Random(seed)
    names = [f"part-{i % 50:02}-{i:05}.json" for i in range(count)]
    sizes = [int(200 * 500 ** rng.random()) for _ in names]
    if not (root / "origin" / "tags").exists():
        (root / "bucket").mkdir(parents=True, exist_ok=True)
        for name, size in zip(names, sizes, strict=True):
            (root / "bucket" / name).write_bytes(rng.randbytes(size))
        asyncio.run(mirror(DirectoryUpstream(root / "bucket"), DirectoryWriter(root / "origin"), MirrorPlan(NAME)))
    return root, names, sum(sizes)


@contextlib.contextmanager
def distance(server: Server, rtt_ms: float) -> Iterator[str]:
    """The server's address, or that of a proxy which makes it far away."""
    if not rtt_ms:
        yield server.url
        return
    with python_server("benchmarks.delayed", server.url.rpartition(":")[2], str(rtt_ms)) as proxy:
        yield proxy.url


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="hold every request back for so long")
    args = parser.parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    root, names, total = make(200 if args.smoke else 5000, 3)
    with nginx(root) as server, distance(server, args.rtt_ms) as url:
        least = [sys.executable, "-m", "benchmarks.bare_files", str(root / "bucket")]
        contestants = [
            ours(f"{url}/origin"),
            Contestant("ours (bare files)", lambda out: [*least, str(out)]),
            *downloaders(url, names, one_by_one=True),
        ]

        def check(contestant: Contestant, out: Path) -> str:
            found = [p.stat().st_size for p in out.rglob("part-*.json")]
            return "" if (len(found), sum(found)) == (len(names), total) else f"{len(found)} files, {sum(found)} bytes"

        results = run_rounds(
            chosen(contestants, args.only), rounds=1 if args.smoke else args.rounds, seed=args.seed,
            server_pids=server.pids, check=check, before=os.sync, keep=True,  # Ours syncs: not what others left dirty.
        )  # fmt: skip
    finish(
        "small_files_far" if args.rtt_ms else "small_files",
        results,
        total / 1e9,
        args,
        files=len(names),
        rtt_ms=args.rtt_ms,
    )


if __name__ == "__main__":
    main()

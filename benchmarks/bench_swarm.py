"""swarm: eight nodes on one machine, one model, an origin limited to 250 MB/s: time, copies, CPU per node-GB."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import Seeded, seeded
from benchmarks.peers import tool
from benchmarks.rounds import ROOT, WORK, Contestant, Measured, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import Server, python_server

NODES, RATE = 8, 250e6
BITTORRENT = {
    "libtorrent": "libtorrent", "libtorrent (super-seeding)": "libtorrent_super", "aria2 (BitTorrent)": "aria2",
}  # fmt: skip


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--nodes", type=int, default=0, help="how many nodes; 0 takes 8")
    args = parser.parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    data = seeded(int((args.gb or (0.05 if args.smoke else 0.536870912)) * 1e9))
    nodes = args.nodes or (3 if args.smoke else NODES)
    with python_server("benchmarks.serving", "origin", str(data.root / "origin"), str(RATE)) as origin:
        contestants = [*_ours(data, origin, nodes), *_others(data, origin, nodes)]
        rounds = 1 if args.smoke else args.rounds
        results = run_rounds(
            chosen(contestants, args.only),
            rounds=rounds,
            seed=args.seed,
            server_pids=origin.pids,
            check=_check(nodes, data.total_bytes),
        )
    one_copy_s = data.total_bytes / RATE
    finish(
        "swarm", results, nodes * data.total_bytes / 1e9, args, nodes=nodes, origin_bytes_per_s=RATE,
        origin_one_copy_s=round(one_copy_s, 2), **_ratios(results, one_copy_s),
    )  # fmt: skip


def _ours(data: Seeded, origin: Server, nodes: int) -> list[Contestant]:
    def swarm(name: str, *extra: str) -> Contestant:
        command = [sys.executable, "-m", "benchmarks.together", origin.url, str(nodes), str(data.total_bytes)]
        return Contestant(name, lambda out: [*command, str(out), *extra], verified=True)

    return [
        swarm("ours"),
        swarm("ours (direct)", "--write", "direct"),
        swarm("ours (everyone from the origin)", "--alone"),
    ]


def _others(data: Seeded, origin: Server, nodes: int) -> list[Contestant]:
    """BitTorrent's seeder has the origin's limit and is counted as the origin; SHA-1 is what it verifies with."""
    script, python, torrent = str(ROOT / "benchmarks" / "torrents.py"), tool("python"), data.root / "bucket.torrent"
    bucket = str(data.root / "bucket")

    def bittorrent(name: str, kind: str) -> Contestant:
        words = [python, script, "swarm", kind, str(torrent), bucket, str(nodes), str(data.total_bytes), str(RATE)]

        def command(out: Path) -> list[str]:
            if not torrent.exists():
                subprocess.run([python, script, "make", bucket, str(torrent)], check=True, capture_output=True)
            return [*words, str(out)]

        return Contestant(name, command, verified=True)

    plain = [python, script, "each", origin.url, str(data.root / "origin"), str(nodes), str(data.total_bytes)]
    each = Contestant("aria2 (everyone from the origin)", lambda out: [*plain, str(out)])
    return [*(bittorrent(name, kind) for name, kind in BITTORRENT.items()), each]


def _check(nodes: int, model_bytes: int) -> Callable[[Contestant, Path], str]:
    """Every node has the model: as the file, or (a plain download of the origin's objects) as all its chunks."""

    def check(contestant: Contestant, out: Path) -> str:
        kept = (p for p in out.rglob("*") if p.suffix == ".safetensors" or len(p.name) == 64)
        size = sum(p.stat().st_size for p in kept if p.is_file())
        return "" if size == nodes * model_bytes else f"{size} of {nodes * model_bytes} bytes"

    return check


def _ratios(results: dict[str, Measured], one_copy_s: float) -> dict[str, float]:
    """What the issue's figures are about, from this run: time against one copy, and origin bytes against the best."""
    ours = results.get("ours")
    if ours is None or not ours.wall_s:
        return {}
    others = [r for n, r in results.items() if not n.startswith("ours") and r.wall_s]
    ratios = {"ratio_to_one_copy": statistics.median(ours.wall_s) / one_copy_s}
    if others:
        fewest = min(statistics.median(r.extra["origin_copies"]) for r in others)
        ratios["ratio_origin_to_best_peer"] = statistics.median(ours.extra["origin_copies"]) / fewest
    return {name: round(value, 3) for name, value in ratios.items()}


if __name__ == "__main__":
    main()

"""swarm: eight nodes on one machine, one model, an origin limited to 250 MB/s: time, copies, CPU per node-GB."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import python_server

NODES, RATE = 8, 250e6


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    data = seeded(int((args.gb or (0.05 if args.smoke else 0.536870912)) * 1e9))
    nodes = 3 if args.smoke else NODES
    with python_server("benchmarks.serving", "origin", str(data.root / "origin"), str(RATE)) as origin:

        def swarm(name: str, *extra: str) -> Contestant:
            command = [sys.executable, "-m", "benchmarks.together", origin.url, str(nodes), str(data.total_bytes)]
            return Contestant(name, lambda out: [*command, str(out), *extra], verified=True)

        contestants = [
            swarm("ours"),
            swarm("ours (direct)", "--write", "direct"),
            swarm("ours (everyone from the origin)", "--alone"),
        ]
        results = run_rounds(chosen(contestants, args.only), rounds=1 if args.smoke else args.rounds, seed=args.seed)
    bound = data.total_bytes / RATE
    wall = sorted(results["ours"].wall_s)[len(results["ours"].wall_s) // 2] if results["ours"].wall_s else 0.0
    finish(
        "swarm", results, nodes * data.total_bytes / 1e9, args, nodes=nodes, origin_bytes_per_s=RATE,
        origin_one_copy_s=round(bound, 2), ratio_to_one_copy=round(wall / bound, 2),
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""serve: what sending costs a node. Chunks from the page cache to clients that discard; CPU of the server alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds

SERVERS = ("nginx", "aiohttp", "aiohttp_uvloop", "http.server")


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    data = seeded(int((args.gb or (0.05 if args.smoke else 2.147483648)) * 1e9))

    def served(name: str, kind: str, connections: int) -> Contestant:
        command = [sys.executable, "-m", "benchmarks.discard", kind, str(data.root), str(connections)]
        return Contestant(name, lambda out: command)

    contestants = [served("ours", "ours", 4), *(served(kind, kind, 4) for kind in SERVERS)]
    contestants += [served("ours (1 connection)", "ours", 1), served("ours (16 connections)", "ours", 16)]
    contestants += [served("ours (origin)", "ours-origin", 4)]
    results = run_rounds(chosen(contestants, args.only), rounds=1 if args.smoke else args.rounds, seed=args.seed)
    finish("serve", results, data.total_bytes / 1e9, args, cpu_of="server")


if __name__ == "__main__":
    main()

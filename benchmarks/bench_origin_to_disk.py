"""origin_to_disk: one node pulls one model from its origin over HTTP onto its disk; every tool, the same bytes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded
from benchmarks.peers import downloaders, ours
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import nginx


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    size = int((args.gb or (0.05 if args.smoke else 2.147483648)) * 1e9)
    data = seeded(size)
    with nginx(data.root) as server:
        contestants = [
            ours(f"{server.url}/origin"),
            ours(f"{server.url}/origin", "--write", "buffered", name="ours (buffered)"),
            ours(f"{server.url}/origin", "--unverified", "--write", "direct", name="ours (unverified)", verified=False),
            *downloaders(server.url, data.files),
        ]

        def check(contestant: Contestant, out: Path) -> str:
            found = {p.name: p.stat().st_size for p in out.rglob("*.safetensors")}
            want = {n: (data.root / "bucket" / n).stat().st_size for n in data.files}
            return "" if found == want else f"wrong files: {found}"

        rounds = 1 if args.smoke else args.rounds
        results = run_rounds(
            chosen(contestants, args.only), rounds=rounds, seed=args.seed, server_pids=server.pids, check=check
        )
    finish("origin_to_disk", results, data.total_bytes / 1e9, args)


if __name__ == "__main__":
    main()

"""origin_to_disk: one node pulls one model from its origin over HTTP onto its disk; every tool, the same bytes."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded, with_chunks_of
from benchmarks.peers import bare, downloaders, ours
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import nginx


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    size = int((args.gb or (0.05 if args.smoke else 2.147483648)) * 1e9)
    data = seeded(size)
    larger = with_chunks_of(data, 64 << 20)
    with nginx(data.root) as server:
        contestants = [
            ours(f"{server.url}/origin"),
            ours(f"{server.url}/origin", "--write", "buffered", name="ours (buffered)"),
            # An eighth of the requests and of all that is done once a chunk: what many chunks a request could save.
            ours(f"{server.url}/{larger}", name="ours (64 MiB chunks)"),
            bare(server.url, data),
            bare(server.url, data, "--threads", "2", name="ours (bare loop in 2 threads)"),
            bare(server.url, data, "--unverified", name="ours (bare loop, unverified)", verified=False),
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
    costs = [statistics.median(results[n].cpu_s) for n in ("ours", "ours (bare loop)") if n in results]
    above = round(costs[0] / costs[1], 3) if len(costs) == 2 else None
    finish("origin_to_disk", results, data.total_bytes / 1e9, args, ratio_cpu_to_bare_loop=above)


if __name__ == "__main__":
    main()

"""peer_to_disk: a node gets a whole model from another; both sides' cost. Peers: a client and nginx; the bare loop
reads from nginx too, so that its two columns are what receiving and sending cost here at least."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded
from benchmarks.peers import bare, downloaders, ours
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
from benchmarks.servers import nginx, python_server

COMPARED = ("rclone", "rclone then sync", "s5cmd", "curl", "curl then sync", "obstore", "aria2", "aiohttp_plain")


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    data = seeded(int((args.gb or (0.05 if args.smoke else 2.147483648)) * 1e9))
    with nginx(data.root) as source, python_server("benchmarks.serving", "peer", str(data.root / "origin")) as peer:
        port = peer.url.rpartition(":")[2]
        documents = f"{source.url}/origin"
        contestants = [
            ours(documents, "--peers", port),
            ours(documents, "--peers", port, "--write", "buffered", name="ours (buffered)"),
            bare(source.url, data),
            *(c for c in downloaders(source.url, data.files) if c.name in COMPARED),
        ]

        def check(contestant: Contestant, out: Path) -> str:
            size = sum(p.stat().st_size for p in out.rglob("*.safetensors"))
            return "" if size == data.total_bytes else f"{size} of {data.total_bytes} bytes"

        results = run_rounds(
            chosen(contestants, args.only), rounds=1 if args.smoke else args.rounds, seed=args.seed,
            server_pids=(*source.pids, *peer.pids), check=check,
        )  # fmt: skip
    finish("peer_to_disk", results, data.total_bytes / 1e9, args)


if __name__ == "__main__":
    main()

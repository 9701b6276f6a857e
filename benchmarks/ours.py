"""Our side of the benchmarks as a process: `pull ORIGIN_URL DIR`, through the very classes of an agent."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import uvloop

import bdn.arena
import bdn.nvme
import bdn.sinks
from bdn.clock import LoopClock
from bdn.delivery import Delivery
from bdn.digest import Digest
from bdn.http.client import PeerClient
from bdn.manifest import DOCUMENT_BYTES_MAX, Manifest, parse
from bdn.membership.views import Views
from bdn.nvme import NvmeStore
from bdn.origins.open import OpenOrigin, open_origin
from bdn.policy import Limits
from bdn.resolver import Resolver
from bdn.roster import Node
from bdn.sinks import SinkChoice
from bdn.window import Window
from benchmarks.data import NAME
from benchmarks.rounds import own_use


class _Nothing:
    """For the comparison only: what the same path costs without a digest."""

    def update(self, piece: object) -> None:
        pass

    def digest(self) -> Digest:
        return Digest(bytes(32))


async def read_manifest(origin: OpenOrigin) -> Manifest:
    root = await origin.read_document(await origin.read_tag(NAME, "latest"), bytes_max=DOCUMENT_BYTES_MAX)
    wanted = [Digest.from_hex(f["list"]) for f in json.loads(root)["files"] if "list" in f]
    lists = {d: await origin.read_document(d, bytes_max=DOCUMENT_BYTES_MAX) for d in wanted}
    return parse(root, lists.__getitem__)


async def pull(url: str, directory: Path, *, in_flight: int, unverified: bool, write: SinkChoice) -> None:
    if unverified:
        bdn.sinks.Hasher = bdn.arena.Hasher = _Nothing  # type: ignore[assignment,misc]
        bdn.nvme.NvmeStore._right = staticmethod(lambda sink: True)  # type: ignore[assignment]
        Resolver._check = lambda self, chunk, sink, source: None  # type: ignore[method-assign]
    with own_use() as report:
        store, origin, peers = NvmeStore(directory / "store", write=write), open_origin(url), PeerClient()
        manifest = await read_manifest(origin)
        limits = Limits(origin_concurrency=in_flight)
        members = Views((Node("me", "127.0.0.1", 1),))
        resolver = Resolver("me", store, peers, origin, members, LoopClock(), limits=limits)
        window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
        delivered = await Delivery(manifest, resolver, window, LoopClock()).run()
        report["seconds_to_published"] = delivered.seconds
        await origin.close()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("pull")
    one.add_argument("url")
    one.add_argument("directory", type=Path)
    one.add_argument("--in-flight", type=int, default=8)
    one.add_argument("--unverified", action="store_true")
    one.add_argument("--write", type=SinkChoice, default=SinkChoice.AUTO)
    args = parser.parse_args()
    uvloop.run(pull(args.url, args.directory, in_flight=args.in_flight, unverified=args.unverified, write=args.write))


if __name__ == "__main__":
    main()

"""Our side of the benchmarks as a process: `pull ORIGIN_URL DIR`, through the very classes of an agent."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from pathlib import Path

import uvloop

import bdn.fetch
import bdn.nvme
import bdn.sinks
from bdn.clock import LoopClock
from bdn.delivery import Delivered, Delivery
from bdn.digest import Digest
from bdn.documents import read_manifest
from bdn.http.client import PeerClient
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.membership.static import static_members
from bdn.membership.views import Views
from bdn.mirror import MirrorPlan, mirror
from bdn.nvme import NvmeStore
from bdn.origins.open import open_origin, open_writer
from bdn.policy import Limits
from bdn.ports import Tier
from bdn.resolver import Resolver
from bdn.roster import Node
from bdn.sinks import SinkChoice
from bdn.upstreams.directory import DirectoryUpstream
from bdn.window import Window
from benchmarks.data import NAME
from benchmarks.rounds import own_use


class _Nothing:
    """For the comparison only: what the same path costs without a digest."""

    def update(self, piece: object) -> None:
        pass

    def digest(self) -> Digest:
        return Digest(bytes(32))


def forget_digests() -> None:
    bdn.sinks.Hasher = _Nothing  # type: ignore[assignment,misc]
    bdn.nvme.NvmeStore._right = staticmethod(lambda sink: True)  # type: ignore[assignment]
    bdn.fetch.check = lambda chunk, sink, source: None  # type: ignore[attr-defined]


async def pull(args: argparse.Namespace) -> None:
    """One node. With --peers all chunks come from those nodes; with --have another model is on its disk already."""
    if args.unverified:
        forget_digests()
    store, origin, peers = NvmeStore(args.directory / "store", write=args.write), open_origin(args.url), PeerClient()
    ports = [int(port) for port in args.peers.split(",") if port]
    others = tuple(Node(f"peer-{i}", "127.0.0.1", port) for i, port in enumerate(ports))
    members = Views(others or (Node("me", "127.0.0.1", 1),))
    limits = Limits(origin_concurrency=args.in_flight, in_flight_chunks=args.in_flight)
    resolver = Resolver("me", store, peers, origin, members, LoopClock(), limits=limits)

    async def deliver(tag: str) -> Delivered:
        manifest = await read_manifest(origin, await origin.read_tag(NAME, tag))
        window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
        return await Delivery(manifest, resolver, window, LoopClock()).run()

    if args.have:
        await deliver(args.have)
    with own_use() as report:
        delivered = await deliver(args.tag)
        moved = delivered.ledger.bytes_by_tier
        report["moved_gb"] = (moved[Tier.ORIGIN] + moved[Tier.PEER]) / 1e9
    await origin.close()
    await peers.close()
    store.close()


async def agent(args: argparse.Namespace) -> None:
    """One of several: serves the others while it pulls, and until its standard input ends."""
    members = static_members(args.peers.split(","))
    mine = members.roster.get(args.name)
    assert mine is not None
    store, origin, peers = NvmeStore(args.directory / args.name, write=args.write), open_origin(args.url), PeerClient()
    limits = Limits()
    alone = Views((mine,)) if args.alone else members
    resolver = Resolver(args.name, store, peers, origin, alone, LoopClock(), limits=limits)
    server = PeerServer(resolver, store, ServerLimits())
    await server.start("127.0.0.1", mine.port)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    wall, cpu = time.perf_counter(), time.process_time()
    manifest = await read_manifest(origin, await origin.read_tag(NAME, args.tag))
    window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
    delivered = await Delivery(manifest, resolver, window, LoopClock()).run()
    origin_bytes = delivered.ledger.read_from(Tier.ORIGIN)
    print(json.dumps({"wall_s": time.perf_counter() - wall, "origin_bytes": origin_bytes}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps({"cpu_s": time.process_time() - cpu}), flush=True)
    await server.stop()
    store.close()


async def mirrored(args: argparse.Namespace) -> None:
    writer = open_writer(args.destination, endpoint=args.endpoint)
    with own_use() as report:
        result = await mirror(DirectoryUpstream(args.source), writer, MirrorPlan(NAME, tag=uuid.uuid4().hex))
        report["uploaded_gb"] = result.bytes_uploaded / 1e9
    await writer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("pull")
    one.add_argument("url")
    one.add_argument("directory", type=Path)
    one.add_argument("--in-flight", type=int, default=8)
    one.add_argument("--unverified", action="store_true")
    one.add_argument("--peers", default="", help="ports of nodes that have everything")
    one.add_argument("--have", default="")
    node = verbs.add_parser("agent")
    node.add_argument("url")
    node.add_argument("directory", type=Path)
    node.add_argument("name")
    node.add_argument("peers")
    node.add_argument("--alone", action="store_true")
    for verb in (one, node):
        verb.add_argument("--tag", default="latest")
        verb.add_argument("--write", type=SinkChoice, default=SinkChoice.AUTO)
    push = verbs.add_parser("mirror")
    push.add_argument("source", type=Path)
    push.add_argument("destination")
    push.add_argument("--endpoint", default="")
    args = parser.parse_args()
    uvloop.run({"pull": pull, "agent": agent, "mirror": mirrored}[args.verb](args))


if __name__ == "__main__":
    main()

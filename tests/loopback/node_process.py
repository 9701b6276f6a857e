"""One real node as a process, without control socket or settings: store, peer server and client, origin, resolver.

Reads one JSON line from stdin (name, peers, origin, store, manifest), says "ready" once it listens, waits for a second
line, pulls, prints its account as JSON, and keeps serving until stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from bdn.clock import LoopClock
from bdn.delivery import Delivery
from bdn.digest import Digest
from bdn.documents import read_manifest
from bdn.http.client import PeerClient
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.membership.static import static_members
from bdn.nvme import NvmeStore
from bdn.origins.open import open_origin
from bdn.policy import Limits
from bdn.ports import Tier
from bdn.resolver import Resolver
from bdn.window import Window


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    spec = json.loads(await lines.readline())
    clock, limits = LoopClock(), Limits(**spec.get("limits", {}))
    store = NvmeStore(Path(spec["store"]))
    members = static_members(spec["peers"])
    me = members.roster.get(spec["name"])
    assert me is not None
    origin, peers = open_origin(spec["origin"]), PeerClient()
    resolver = Resolver(me.name, store, peers, origin, members, clock, limits=limits)
    server = PeerServer(resolver, store, ServerLimits(bytes_per_s=spec.get("upload_bytes_per_s", 0)))
    await server.start("127.0.0.1", me.port)
    print("ready", flush=True)
    await lines.readline()
    manifest = await read_manifest(origin, Digest.parse(spec["manifest"]))
    window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
    done = await Delivery(manifest, resolver, window, clock).run()
    account = {
        "name": me.name, "seconds": done.seconds, "path": done.path,
        "bytes_by_tier": {t.value: done.ledger.bytes_by_tier[t] for t in Tier},
        "wasted_by_tier": {t.value: done.ledger.wasted_by_tier[t] for t in Tier},
        "origin_reasons": dict(resolver.ledger.origin_reasons), "misses": dict(resolver.ledger.misses),
    }  # fmt: skip
    print(json.dumps(account), flush=True)
    await lines.read()
    resolver.close()
    await server.stop()
    await peers.close()
    await origin.close()
    store.close()


if __name__ == "__main__":
    asyncio.run(main())

"""`bdn origin`: serve a mirrored directory, by the very engine that serves peers."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

import uvloop

from bdn.cli.verb import Call
from bdn.config import ServeSettings
from bdn.http.server import ServerLimits
from bdn.http.static import DirectoryServer

EXAMPLES = """
bdn origin ./origin
bdn origin /srv/weights --origin-host 0.0.0.0 --origin-port 7480
"""
GROUPS = (ServeSettings,)
DRAIN_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the directory that `bdn mirror --origin DIR` wrote")


def run(call: Call) -> int:
    """Returns 0 after SIGTERM or SIGINT, having said what it sent."""
    settings = call.settings(ServeSettings)
    server = DirectoryServer(Path(call.args.dir), ServerLimits(bytes_per_s=settings.origin_bytes_per_s))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(server, settings, call))
    return 0


async def _serve(server: DirectoryServer, settings: ServeSettings, call: Call) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = await server.start(settings.origin_host, settings.origin_port)
    url = f"http://{settings.origin_host}:{port}"
    call.console.fact({"url": url, "dir": str(server.root)}, f"{server.root} is served at {url}")
    await stop.wait()
    await server.stop(drain_s=DRAIN_S)
    call.console.say(f"sent {server.http.sent.bytes_total} bytes in {server.http.sent.requests} answers")

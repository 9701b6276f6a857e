"""`bdn agent`: run this node until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys

import uvloop

from bdn.agent import Agent
from bdn.cli.verb import Call
from bdn.config import AgentSettings, ClientSettings, OriginSettings

EXAMPLES = """
bdn agent --origin http://127.0.0.1:7480 --store /nvme/bdn
bdn agent --name a --peers b=10.0.0.2:7411,c=10.0.0.3:7411 --host 0.0.0.0 --origin s3://weights/prod
"""
GROUPS = (AgentSettings, OriginSettings, ClientSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(call: Call) -> int:
    """Returns 0 after SIGTERM or SIGINT, once transfers in flight have ended or `drain_s` has passed."""
    level = logging.WARNING if call.console.quiet else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    agent = Agent(call.settings(AgentSettings), call.settings(OriginSettings), call.settings(ClientSettings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(agent, call))
    return 0


async def _serve(agent: Agent, call: Call) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    where = await agent.start()
    facts = {"name": where.name, "host": where.host, "port": where.port, "socket": str(where.socket)}
    call.console.fact(facts, f"agent {where.name} serves {where.host}:{where.port}, control {where.socket}")
    try:
        await stop.wait()
    finally:
        call.console.say("stopping: transfers in flight may end")
        # A second signal ends the waiting: whoever sends it has seen the first one work too slowly.
        closing = asyncio.ensure_future(agent.stop())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, closing.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await closing

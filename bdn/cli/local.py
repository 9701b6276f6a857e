"""Owns waiting for a model at the local agent, with progress: what pull, wait and run have in common."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from bdn.cli.verb import Call
from bdn.client import AgentClient
from bdn.config import ClientSettings
from bdn.errors import Down, Usage
from bdn.reference import parse_reference

Ready = dict[str, Any]
"""The pull's last state, as `bdn.control.pull_json` makes it; `path` is the model's directory."""


def add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", help="name[:tag][@b3:…]")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="0 a container waits … 9 background")
    parser.add_argument("--timeout-s", type=float, default=0.0, metavar="S", help="give up after S seconds; 0 never")


Look = Callable[[AgentClient, Ready], Awaitable[None]]


async def _nothing(agent: AgentClient, state: Ready) -> None:
    """Most only wait."""


def obtain(call: Call, look: Look = _nothing) -> Ready:
    """Ask the local agent for the model and return when it is there, whole and verified.

    look: awaited with each state of the pull on the way; what it raises ends the waiting, not the agent's pull.
    Raises the pull's error; Down without an agent and after --timeout-s (the agent then goes on by itself).
    """
    args = call.args
    parse_reference(args.ref)  # A wrong name is the caller's fault, whether an agent runs or not.
    if not 0 <= args.priority <= 9:
        raise Usage("--priority is from 0 to 9")
    if not 0 <= args.timeout_s < math.inf:  # Refuses NaN as well.
        raise Usage(f"--timeout-s is out of bounds: {args.timeout_s:g}", hint="allowed: from 0, which never gives up")
    settings = call.settings(ClientSettings)

    async def work() -> Ready:
        try:
            async with asyncio.timeout(args.timeout_s or None):
                return await _follow(call, settings, look)
        except TimeoutError:
            raise Down(
                f"{args.ref} is not here after {args.timeout_s:g} s", hint="the agent goes on; see `bdn status`"
            ) from None

    return asyncio.run(work())


async def _follow(call: Call, settings: ClientSettings, look: Look) -> Ready:
    last: Ready = {}
    told = False
    async with AgentClient(settings.socket_path, wait_s=settings.agent_wait_s) as agent:
        with call.console.bars() as bars:
            bar = bars.add(call.args.ref)
            async for last in agent.pull(call.args.ref, priority=call.args.priority):
                if last["state"] != "looking up":
                    bar.update(last["done_bytes"], last["total_bytes"])
                    await look(agent, last)
                elif not told:
                    call.console.say(f"no node and no origin has said yet what {call.args.ref} is")
                    told = True
    return last

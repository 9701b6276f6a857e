"""`bdn status`: what this node holds, pulls and has moved."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from bdn.cli.console import table
from bdn.cli.verb import Call
from bdn.client import AgentClient
from bdn.config import ClientSettings
from bdn.sizes import size_text

EXAMPLES = """
bdn status
bdn status --json --store /nvme/bdn
"""
GROUPS = (ClientSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(call: Call) -> int:
    settings = call.settings(ClientSettings)

    async def work() -> dict[str, Any]:
        async with AgentClient(settings.socket_path, wait_s=settings.agent_wait_s) as agent:
            return await agent.status()

    status = asyncio.run(work())
    call.console.fact(status, _text(status))
    return 0


def _text(s: dict[str, Any]) -> str:
    tiers = ", ".join(f"{size_text(n)} {tier}" for tier, n in s["bytes_by_tier"].items())
    up = f"up {s['uptime_s']:.0f} s" if s["ready"] else "not ready"
    lines = [
        f"agent {s['name']} (process {s['pid']}), {up}, port {s['port']}, {_members(s['members'])}",
        f"store {s['store']}: {size_text(s['free_bytes'])} free; origin {s['origin'] or 'none'}",
        f"moved: {tiers}; sent to peers {size_text(s['served_bytes'])}",
    ]
    active = {p["digest"] for p in s["pulls"] if p["state"] in ("queued", "pulling")}
    rows = []
    for m in s["models"]:
        part = m["verified_bytes"] / m["bytes"] if m["bytes"] else 1.0
        rows.append(((m["names"] or [""])[-1], m["digest"][:15] + "…", size_text(m["bytes"]), f"{part:.0%}",
                     m["path"] or ("pulling" if m["digest"] in active else "incomplete")))  # fmt: skip
    if rows:
        lines += ["", table(("NAME", "DIGEST", "SIZE", "VERIFIED", "DIRECTORY"), rows)]
    failed = [p for p in s["pulls"] if p["state"] == "failed"]
    lines += [f"failed: {p['name']}: {p['error']['what']}" for p in failed]
    return "\n".join(lines)


def _members(members: list[dict[str, Any]]) -> str:
    away = [m["name"] for m in members if m["reached"] is False]
    more = f" and {len(away) - 3} more" if len(away) > 3 else ""
    return f"{len(members)} members" + (f", no answer from {', '.join(away[:3])}{more}" if away else "")

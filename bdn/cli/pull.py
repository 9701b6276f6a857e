"""`bdn pull`: bring a model onto this node through its agent, or from the origin straight into a directory."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from bdn.cli.console import Bar
from bdn.cli.local import Ready, add_wait_arguments, obtain
from bdn.cli.remote import find, with_origin
from bdn.cli.verb import Call
from bdn.client import AgentClient
from bdn.config import ClientSettings, OriginSettings
from bdn.delivery import Progress
from bdn.digest import Digest
from bdn.direct import check_place, check_target, pull_into, staging_of
from bdn.errors import Usage
from bdn.inspection import lay_out
from bdn.manifest import Manifest
from bdn.origins.open import OpenOrigin
from bdn.policy import Limits
from bdn.ports import Tier
from bdn.sizes import size_text

EXAMPLES = """
bdn pull kyutai/tts-1.6b-en_fr
bdn pull voice:prod --to ./voice
bdn pull voice:prod --to ./voice --origin http://127.0.0.1:7480     # no agent: straight from the origin
"""
GROUPS = (ClientSettings, OriginSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wait_arguments(parser)
    parser.add_argument("--to", metavar="DIR", help="also make a directory of one's own with the model's files")


def run(call: Call) -> int:
    if call.args.origin is not None:
        if not call.args.to:
            raise Usage("--origin pulls without an agent, into a directory", hint="name it with --to DIR")
        return _direct(call, Path(call.args.to).absolute())
    started = time.monotonic()
    if call.args.to:
        target = _Target(Path(call.args.to).absolute())
        ready = obtain(call, target.look)
        target.fill(asyncio.run(_manifest(call, str(ready["digest"]))), Path(str(ready["path"])))
        directory = str(target.path)
    else:
        ready = obtain(call)
        directory = str(ready["path"])
    _report(call, str(ready["digest"]), int(ready["total_bytes"]), time.monotonic() - started,
            ready["bytes_by_tier"], directory)  # fmt: skip
    return 0


class _Target:
    """The directory of one's own. Looked at before and while the agent pulls: after minutes is late for a refusal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsure = check_place(path)
        """Something lies there, and only the manifest tells whether it is this very model."""
        self._there = False

    async def look(self, agent: AgentClient, state: Ready) -> None:
        if self._unsure and state["done_bytes"]:  # From its first byte on the agent knows the manifest.
            manifest = await agent.manifest(Digest.parse(str(state["digest"])))
            self._there = await asyncio.to_thread(check_target, self.path, manifest)
            self._unsure = False

    def fill(self, manifest: Manifest, source: Path) -> None:
        if not self._there and not check_target(self.path, manifest):
            lay_out(manifest, source, self.path)


async def _manifest(call: Call, digest: str) -> Manifest:
    settings = call.settings(ClientSettings)
    async with AgentClient(settings.socket_path) as agent:
        return await agent.manifest(Digest.parse(digest))


def _direct(call: Call, target: Path) -> int:
    started = time.monotonic()
    check_place(target)

    async def work(origin: OpenOrigin) -> tuple[Manifest, dict[str, int]]:
        _, manifest = await find(origin, call.args.ref)
        if await asyncio.to_thread(check_target, target, manifest):
            return manifest, {Tier.NVME.value: manifest.unique_bytes}
        with call.console.bars() as bars:
            bar = bars.add(call.args.ref)
            done = await pull_into(manifest, origin, target, limits=Limits(), progress=lambda p: _show(bar, p))
        return manifest, {t.value: n for t, n in sorted(done.ledger.bytes_by_tier.items())}

    try:
        manifest, tiers = with_origin(call, work)
    finally:
        if (kept := staging_of(target)).is_dir():
            call.console.say(f"what came is kept in {kept}: the same command goes on from there")
    _report(call, str(manifest.digest), manifest.unique_bytes, time.monotonic() - started, tiers, str(target))
    return 0


def _show(bar: Bar, progress: Progress) -> None:
    bar.update(progress.done_bytes, progress.total_bytes)


def _report(call: Call, digest: str, size: int, seconds: float, tiers: dict[str, Any], directory: str) -> None:
    """`bytes`, `seconds`, `bytes_by_tier` and `digest` are what scripts rely on."""
    value = {"digest": digest, "bytes": size, "seconds": round(seconds, 3), "bytes_by_tier": tiers, "path": directory}
    came = ", ".join(f"{size_text(n)} {tier}" for tier, n in tiers.items() if n) or "nothing moved"
    call.console.fact(value, f"{directory}\n{size_text(size)} in {seconds:.2f} s ({came}), {digest}")

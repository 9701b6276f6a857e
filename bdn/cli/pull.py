"""`bdn pull`: bring a model onto this node through its agent, or from the origin straight into a directory."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from bdn.cli.console import Bar
from bdn.cli.local import add_wait_arguments, obtain
from bdn.cli.remote import find, with_origin
from bdn.cli.verb import Call
from bdn.client import AgentClient
from bdn.config import ClientSettings, OriginSettings
from bdn.delivery import Progress
from bdn.digest import Digest
from bdn.direct import check_target, pull_into
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
    ready = obtain(call)
    directory = str(ready["path"])
    if call.args.to:
        target = Path(call.args.to).absolute()
        manifest = asyncio.run(_manifest(call, str(ready["digest"])))
        if not check_target(target, manifest):
            lay_out(manifest, Path(directory), target)
        directory = str(target)
    _report(call, str(ready["digest"]), int(ready["total_bytes"]), time.monotonic() - started,
            ready["bytes_by_tier"], directory)  # fmt: skip
    return 0


async def _manifest(call: Call, digest: str) -> Manifest:
    settings = call.settings(ClientSettings)
    async with AgentClient(settings.socket_path) as agent:
        return await agent.manifest(Digest.parse(digest))


def _direct(call: Call, target: Path) -> int:
    started = time.monotonic()

    async def work(origin: OpenOrigin) -> tuple[Manifest, dict[str, int]]:
        _, manifest = await find(origin, call.args.ref)
        if await asyncio.to_thread(check_target, target, manifest):
            return manifest, {Tier.NVME.value: manifest.unique_bytes}
        with call.console.bars() as bars:
            bar = bars.add(call.args.ref)
            done = await pull_into(manifest, origin, target, limits=Limits(), progress=lambda p: _show(bar, p))
        return manifest, {t.value: n for t, n in sorted(done.ledger.bytes_by_tier.items())}

    manifest, tiers = with_origin(call, work)
    _report(call, str(manifest.digest), manifest.unique_bytes, time.monotonic() - started, tiers, str(target))
    return 0


def _show(bar: Bar, progress: Progress) -> None:
    bar.update(progress.done_bytes, progress.total_bytes)


def _report(call: Call, digest: str, size: int, seconds: float, tiers: dict[str, Any], directory: str) -> None:
    """`bytes`, `seconds`, `bytes_by_tier` and `digest` are what scripts rely on."""
    value = {"digest": digest, "bytes": size, "seconds": round(seconds, 3), "bytes_by_tier": tiers, "path": directory}
    came = ", ".join(f"{size_text(n)} {tier}" for tier, n in tiers.items() if n) or "nothing moved"
    call.console.fact(value, f"{directory}\n{size_text(size)} in {seconds:.2f} s ({came}), {digest}")

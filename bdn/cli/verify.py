"""`bdn verify`: read every byte again. Exit code 3 when something is not what the manifest says."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bdn.cli.remote import find, with_origin
from bdn.cli.verb import Call
from bdn.client import AgentClient
from bdn.config import ClientSettings, OriginSettings
from bdn.digest import Digest
from bdn.errors import Corrupt, Invalid
from bdn.inspection import inspect
from bdn.reference import parse_reference
from bdn.sizes import size_text

EXAMPLES = """
bdn verify voice:prod                       # the agent's copy; bad chunks are forgotten, the next pull heals them
bdn verify voice:prod --dir ./voice --origin s3://weights/prod
"""
FILES_NAMED = 5
GROUPS = (ClientSettings, OriginSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", help="name[:tag][@b3:…]")
    parser.add_argument("--dir", metavar="DIR", help="a directory to compare with the origin's manifest")


def run(call: Call) -> int:
    return _directory(call, Path(call.args.dir)) if call.args.dir else _store(call)


def _directory(call: Call, root: Path) -> int:
    if not root.is_dir():
        raise Invalid(f"there is no directory {root}", hint="name the one that `bdn pull --to` made")
    _, manifest = with_origin(call, lambda origin: find(origin, call.args.ref))
    with call.console.bars() as bars:
        findings = inspect(manifest, root, bars.add(f"reading {root}").update)
    if not findings.clean:
        raise Corrupt(f"{root} is not {call.args.ref}: {findings.summary()}", hint="pull it again")
    value = {"digest": str(manifest.digest), "bytes": manifest.total_bytes, "ok": True, "path": str(root)}
    call.console.fact(value, f"{root} is {manifest.digest}: {size_text(manifest.total_bytes)} read, every byte matches")
    return 0


def _store(call: Call) -> int:
    reference, settings = parse_reference(call.args.ref), call.settings(ClientSettings)

    async def work() -> tuple[Digest, int, tuple[str, ...], list[str]]:
        async with AgentClient(settings.socket_path, wait_s=settings.agent_wait_s) as agent:
            status = await agent.status()
            models = {m["digest"]: m for m in status["models"]}
            names = {name: m["digest"] for m in status["models"] for name in m["names"]}
            digest = str(reference.digest) if reference.digest else names.get(str(reference), "")
            if digest not in models:
                raise Invalid(f"{reference} is not on this node", hint="`bdn status` lists what is; name it @b3:…")
            bad = await agent.verify(Digest.parse(digest))
            if not bad and models[digest]["path"] is None:
                have, size = models[digest]["verified_bytes"], models[digest]["bytes"]
                what = f"{reference} is incomplete: {size_text(have)} of {size_text(size)} are here and match"
                raise Corrupt(what, hint="`bdn pull` brings the rest")
            manifest = await agent.manifest(Digest.parse(digest)) if bad else None
            places = manifest.placements if manifest is not None else {}
            files = sorted({p.path for chunk in bad for p in places[Digest.parse(chunk)]})
            return Digest.parse(digest), models[digest]["bytes"], bad, files

    digest, size, bad, files = asyncio.run(work())
    if bad:
        many = "1 chunk" if len(bad) == 1 else f"{len(bad)} chunks"
        more = f" and {len(files) - FILES_NAMED} more" if files[FILES_NAMED:] else ""
        named = ", ".join(files[:FILES_NAMED]) + more
        raise Corrupt(f"{many} of {reference} went bad on disk, with bytes of {named}", hint="`bdn pull` heals it")
    value = {"digest": str(digest), "bytes": size, "ok": True}
    call.console.fact(value, f"{reference} is {digest}: {size_text(size)} read, every byte matches")
    return 0

"""`bdn ls`: the models at the origin, by name and tag."""

from __future__ import annotations

import argparse
import fnmatch

from bdn.cli.console import table
from bdn.cli.remote import with_origin
from bdn.cli.verb import Call
from bdn.config import OriginSettings
from bdn.errors import Corrupt
from bdn.origins.open import OpenOrigin

EXAMPLES = """
bdn ls --origin s3://weights/prod
bdn ls 'kyutai/*' --json
"""
GROUPS = (OriginSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="names to list, with * and ?")


def run(call: Call) -> int:
    async def work(origin: OpenOrigin) -> tuple[list[dict[str, str]], Corrupt | None]:
        found, damaged = [], None
        try:
            async for t in origin.tags():
                if fnmatch.fnmatchcase(t.name, call.args.pattern):
                    found.append(t)
        except Corrupt as why:
            damaged = why
        found.sort(key=lambda t: (t.name, t.tag))
        return [{"name": t.name, "tag": t.tag, "digest": str(t.manifest)} for t in found], damaged

    models, damaged = with_origin(call, work)
    rows = [(m["name"], m["tag"], m["digest"]) for m in models]
    if rows or damaged is None:  # Where nothing could be read it is not "no models" either.
        call.console.fact(models, table(("NAME", "TAG", "DIGEST"), rows) if rows else "no models")
    if damaged is not None:
        raise damaged  # After the list: one damaged tag hides no other.
    return 0

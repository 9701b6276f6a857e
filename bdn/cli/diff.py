"""`bdn diff`: what a rollout from one model to another changes, and how much of it moves."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass

from bdn.cli.remote import find, with_origin
from bdn.cli.verb import Call
from bdn.config import OriginSettings
from bdn.manifest import Manifest
from bdn.origins.open import OpenOrigin
from bdn.sizes import size_text

EXAMPLES = """
bdn diff voice:prod voice:next
"""
GROUPS = (OriginSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="name[:tag][@b3:…]")
    parser.add_argument("new", metavar="NEW", help="name[:tag][@b3:…]")


def run(call: Call) -> int:
    async def work(origin: OpenOrigin) -> tuple[Manifest, Manifest]:
        return (await find(origin, call.args.old))[1], (await find(origin, call.args.new))[1]

    change = changes(*with_origin(call, work))
    signs = (("-", change.removed), ("+", change.added), ("~", change.changed))
    lines = [f"{sign} {path}" for sign, paths in signs for path in paths]
    part = change.moved_bytes / change.new_bytes if change.new_bytes else 0.0
    moved = f"{size_text(change.moved_bytes)} of {size_text(change.new_bytes)}"
    lines.append(f"a node that has OLD moves {moved} for NEW ({part:.1%})")
    call.console.fact(dataclasses.asdict(change), "\n".join(lines))
    return 0


@dataclass(frozen=True)
class Change:
    """Paths are sorted; moved_bytes are the chunks that only the new model has."""

    old: str
    new: str
    added: list[str]
    removed: list[str]
    changed: list[str]
    moved_bytes: int
    new_bytes: int


def changes(old: Manifest, new: Manifest) -> Change:
    before: dict[str, object] = {f.path: (f.digest, f.mode) for f in old.files}
    before |= {s.path: s.target for s in old.symlinks}
    after: dict[str, object] = {f.path: (f.digest, f.mode) for f in new.files}
    after |= {s.path: s.target for s in new.symlinks}
    had = {c.digest for c in old.chunks}
    return Change(
        str(old.digest), str(new.digest),
        added=sorted(after.keys() - before.keys()), removed=sorted(before.keys() - after.keys()),
        changed=sorted(p for p in after.keys() & before.keys() if after[p] != before[p]),
        moved_bytes=sum(c.size for c in new.chunks if c.digest not in had), new_bytes=new.unique_bytes,
    )  # fmt: skip

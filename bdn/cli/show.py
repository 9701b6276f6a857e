"""`bdn show`: one model as its manifest describes it."""

from __future__ import annotations

import argparse

from bdn.cli.console import table
from bdn.cli.remote import find, with_origin
from bdn.cli.verb import Call
from bdn.config import OriginSettings
from bdn.sizes import size_text

EXAMPLES = """
bdn show kyutai/tts-1.6b-en_fr
bdn show voice:prod --json
"""
GROUPS = (OriginSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", help="name[:tag][@b3:…]")


def run(call: Call) -> int:
    reference, manifest = with_origin(call, lambda origin: find(origin, call.args.ref))
    # Upstream checksums are one a file: they stay with the JSON, people see the facts about the whole.
    facts = {k: v for k, v in manifest.provenance if v and ":" not in k}
    value = {
        "ref": str(reference), "digest": str(manifest.digest), "bytes": manifest.total_bytes,
        "unique_bytes": manifest.unique_bytes, "chunks": len(manifest.chunks), "provenance": dict(manifest.provenance),
        "files": [{"path": f.path, "size": f.size, "mode": f"{f.mode:04o}", "digest": str(f.digest),
                   "chunks": len(f.extents)} for f in manifest.files],
        "symlinks": [{"path": s.path, "target": s.target} for s in manifest.symlinks],
    }  # fmt: skip
    rows = [(f"{f.mode:04o}", size_text(f.size), f.digest.short, f.path) for f in manifest.files]
    rows += [("link", "", "", f"{s.path} -> {s.target}") for s in manifest.symlinks]
    head = [
        f"{reference} is {manifest.digest}",
        f"{len(manifest.files)} files, {size_text(manifest.total_bytes)} in {len(manifest.chunks)} chunks "
        f"({size_text(manifest.unique_bytes)} to move)",
        *(f"{k}: {v}" for k, v in facts.items()),
    ]
    call.console.fact(value, "\n".join([*head, "", table(("MODE", "SIZE", "DIGEST", "PATH"), rows)]))
    return 0

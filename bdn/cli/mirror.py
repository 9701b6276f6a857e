"""`bdn mirror`: read a model from its source once and store it at the origin."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
from pathlib import Path

from bdn.cli.verb import Call
from bdn.config import MirrorSettings, OriginSettings, need_origin
from bdn.digest import Digest
from bdn.errors import Usage
from bdn.mirror import MirrorPlan, MirrorProgress, MirrorResult, mirror
from bdn.origins.directory import TAGS_INDEX
from bdn.origins.layout import chunk_key, document_key, tag_key
from bdn.origins.open import directory_of, open_writer
from bdn.ports import Upstream
from bdn.reference import DEFAULT_TAG, check_tag
from bdn.sizes import size_text
from bdn.specs import ModelSpec, make_spec, read_specs
from bdn.upstreams import open_upstream
from bdn.upstreams.directory import DirectoryUpstream
from bdn.upstreams.patterns import takes

EXAMPLES = """
bdn mirror ./checkpoint --origin ./origin --name voice --tag prod
bdn mirror hf://kyutai/tts-1.6b-en_fr --origin s3://weights/prod --allow '*.safetensors' --allow '*.json'
bdn mirror -f manifests/models.yaml --origin s3://weights/prod
bdn mirror hf://kyutai/tts-1.6b-en_fr --origin s3://weights/prod --verify      # repairs what was damaged there
"""
GROUPS = (OriginSettings, MirrorSettings)
ANY = Digest.of(b"")  # Stands for all whose names are digests.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    forms = "hf://org/repo[@revision], s3://bucket/prefix, https://host/file-or-list, a directory"
    parser.add_argument("source", nargs="?", default="", metavar="SOURCE", help=forms)
    parser.add_argument("-f", "--file", metavar="SPEC", help="YAML list of models instead of SOURCE")
    parser.add_argument("--name", default=None, metavar="NAME", help="name at the origin (default: the source's own)")
    parser.add_argument("--tag", default=None, metavar="TAG", help="tag to move (default: latest)")
    parser.add_argument("--revision", default=None, metavar="REV", help="branch, tag or commit of a hub repository")
    parser.add_argument("--allow", action="append", default=[], metavar="GLOB",
                        help="take only files that match; gitignore rules, may be repeated")  # fmt: skip
    parser.add_argument("--verify", action="store_true",
                        help="read what the origin has back and store damaged chunks again")  # fmt: skip
    parser.add_argument("--ignore", action="append", default=[], metavar="GLOB", help="leave out files that match")


def run(call: Call) -> int:
    specs = _specs(call.args)
    done = []
    for spec in specs:
        result = asyncio.run(_one(call, spec))
        done.append(_facts(spec, result))
        call.console.say(_words(spec, result))
    if call.console.as_json:
        call.console.fact(done if call.args.file else done[0])
    else:
        call.console.fact(done, "\n".join(f"{d['ref']}@{d['digest']}" for d in done))
    return 0


def _specs(args: argparse.Namespace) -> tuple[ModelSpec, ...]:
    if bool(args.source) == bool(args.file):
        raise Usage("name one SOURCE, or a list of them with -f SPEC")
    if args.file:
        if any(v is not None for v in (args.name, args.tag, args.revision)) or args.allow or args.ignore:
            raise Usage("with -f, names, tags, revisions and patterns stand in the file")
        return read_specs(Path(args.file))
    tag = DEFAULT_TAG if args.tag is None else check_tag(args.tag)  # An empty $TAG of a script must not move latest.
    for flag in ("name", "revision"):
        if getattr(args, flag) == "":
            raise Usage(f"--{flag} is empty", hint="give it a value, or leave it out")
    return (
        make_spec(args.source, name=args.name or "", tag=tag, revision=args.revision or "", allow=tuple(args.allow),
                  ignore=tuple(args.ignore)),
    )  # fmt: skip


async def _one(call: Call, spec: ModelSpec) -> MirrorResult:
    settings, where = call.settings(MirrorSettings), need_origin(call.settings(OriginSettings))
    upstream = open_upstream(spec.source, revision=spec.revision, settings=settings)
    try:
        _check_apart(upstream, where.origin, spec)
        writer = open_writer(where.origin, endpoint=where.endpoint, region=where.region)
        try:
            plan = MirrorPlan(
                spec.name, spec.tag, spec.allow, spec.ignore, uploads=settings.mirror_uploads,
                window_bytes=settings.mirror_window_bytes, chunk_bytes=settings.mirror_chunk_bytes,
                verify=call.args.verify,
            )  # fmt: skip
            with call.console.bars() as bars:
                bar = bars.add(f"{spec.name}:{spec.tag}")

                def show(progress: MirrorProgress) -> None:
                    bar.update(progress.bytes_read, progress.bytes_total)

                return await mirror(upstream, writer, plan, show)
        finally:
            await writer.close()
    finally:
        await upstream.close()


def _check_apart(upstream: Upstream, origin: str, spec: ModelSpec) -> None:
    """Raises Usage where the next mirror would take the origin's own objects for files of the model."""
    place = directory_of(origin)
    inside = upstream.within(place) if isinstance(upstream, DirectoryUpstream) and place is not None else None
    if inside is None:
        return
    kinds = (TAGS_INDEX, tag_key(spec.name, spec.tag), chunk_key(ANY), document_key(ANY))
    if any(takes(os.path.normpath(f"{inside}/{key}"), spec.allow, spec.ignore) for key in kinds):
        raise Usage(f"the origin {origin} lies in what is mirrored, {spec.source}", hint="name an origin beside it")


def _facts(spec: ModelSpec, result: MirrorResult) -> dict[str, object]:
    """Every count of the result, with the digest as text; these keys stay."""
    value = dataclasses.asdict(result)
    del value["manifest"]
    return {"ref": f"{spec.name}:{spec.tag}", "digest": str(result.manifest), **value}


def _words(spec: ModelSpec, r: MirrorResult) -> str:
    moved = f"{size_text(r.bytes_uploaded)} stored" if r.bytes_uploaded else "nothing stored: all of it was there"
    read = "source not read: this revision is known" if r.remembered else f"{size_text(r.bytes_read)} read"
    tag = "tag moved" if r.tag_moved else "tag unchanged"
    return f"{spec.name}:{spec.tag}: {r.files} files, {size_text(r.model_bytes)}; {read}; {moved}; {tag}"

"""Owns reading the origin from a command: opening it, and from a reference to its manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bdn.cli.verb import Call
from bdn.config import OriginSettings, need_origin
from bdn.digest import Digest
from bdn.documents import read_manifest
from bdn.errors import Missing
from bdn.manifest import Manifest
from bdn.origins.open import OpenOrigin, open_origin
from bdn.reference import Reference, parse_reference

Result = TypeVar("Result")


def with_origin(call: Call, work: Callable[[OpenOrigin], Awaitable[Result]]) -> Result:
    """Run `work` on the origin that the settings name; it is closed afterwards."""
    settings = need_origin(call.settings(OriginSettings))

    async def run() -> Result:
        s = settings
        origin = open_origin(s.origin, endpoint=s.endpoint, region=s.region, bearer=s.origin_token)
        try:
            return await work(origin)
        finally:
            await origin.close()

    return asyncio.run(run())


async def find(origin: OpenOrigin, text: str) -> tuple[Reference, Manifest]:
    """The model that a reference names now. Raises Usage for no reference, Missing when there is no such model."""
    reference = parse_reference(text)
    return reference, await manifest_of(origin, reference)


async def manifest_of(origin: OpenOrigin, reference: Reference) -> Manifest:
    digest = reference.digest or await _tagged(origin, reference)
    try:
        return await read_manifest(origin, digest)
    except Missing:
        raise Missing(f"there is no manifest {digest} at the origin", hint="`bdn ls` lists what there is") from None


async def _tagged(origin: OpenOrigin, reference: Reference) -> Digest:
    try:
        return await origin.read_tag(reference.name, reference.tag)
    except Missing:
        what = f"there is no model {reference.name}:{reference.tag} at the origin"
        raise Missing(what, hint="`bdn ls` lists what there is") from None

"""Owns reading a whole manifest, whoever gives it: the root, then every chunk list that it names, all checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from bdn.digest import Digest
from bdn.errors import Corrupt, Invalid
from bdn.manifest import DOCUMENT_BYTES_MAX, Manifest, parse
from bdn.ports import Origin

LISTS_AT_ONCE = 8  # Lists are small and independent; more would only queue at the origin.


async def read_manifest(origin: Origin, digest: Digest) -> Manifest:
    """Raises Missing, Corrupt, SourceDown from the origin, and Invalid for what is no manifest."""
    return await read_manifest_with(lambda d: origin.read_document(d, bytes_max=DOCUMENT_BYTES_MAX), digest)


async def read_manifest_with(read: Callable[[Digest], Awaitable[bytes]], digest: Digest) -> Manifest:
    """The manifest whose documents `read` gives; every one is checked against its digest."""
    root = checked(await read(digest), digest, "")
    gate = asyncio.Semaphore(LISTS_AT_ONCE)

    async def one(name: Digest) -> tuple[Digest, bytes]:
        async with gate:
            return name, await read(name)

    lists = dict(await asyncio.gather(*(one(d) for d in _list_names(root))))

    def listed(name: Digest) -> bytes:
        if name not in lists:  # It is named in letters that our own form never has.
            raise Invalid("the manifest is invalid: it is not in canonical form", hint="mirror the model again")
        return lists[name]

    return await asyncio.to_thread(parse, root, listed)


def checked(body: bytes, digest: Digest, where: str, hint: str = "") -> bytes:
    """The document itself. Raises Corrupt when its bytes are others than its digest says."""
    got = Digest.of(body)
    if got != digest:
        raise Corrupt(f"manifest document {digest.short} has digest {got.short}", where=where, hint=hint)
    return body


def _list_names(root: bytes) -> list[Digest]:
    """Every chunk list that the root names; whatever else is off about the root is for `parse` to say."""
    if b'"list":' not in root:  # As most are; no text can hold it, whose quotes are escaped.
        return []
    try:
        files = json.loads(root)["files"]
        return list(dict.fromkeys(Digest.from_hex(f["list"]) for f in files if "list" in f))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Invalid("the manifest is invalid", hint="the origin may have stored something else there") from None

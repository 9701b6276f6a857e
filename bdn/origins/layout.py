"""Owns where things lie in an origin: the same keys in a bucket, in a directory, and in the URLs of any static server.

    chunks/<aa>/<bb>/<64 hex>       one chunk's bytes
    documents/<aa>/<64 hex>         a manifest's root document or a chunk list
    tags/<name>/<tag>               {"manifest":"b3:…"}: the only objects that ever change
    mirrored/<aa>/<64 hex>          {"manifest":"b3:…"}: what a source at one revision, under one set of filters, gave
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from bdn.digest import Digest
from bdn.errors import Corrupt, Invalid
from bdn.manifest import canonical

TAG_BYTES_MAX = 4096
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?){0,3}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def chunk_key(digest: Digest) -> str:
    text = digest.hex
    return f"chunks/{text[:2]}/{text[2:4]}/{text}"


def document_key(digest: Digest) -> str:
    return f"documents/{digest.hex[:2]}/{digest.hex}"


def mirrored_key(digest: Digest) -> str:
    return f"mirrored/{digest.hex[:2]}/{digest.hex}"


def tag_key(name: str, tag: str) -> str:
    """Raises Invalid for a name or tag that could not be a path segment everywhere."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise Invalid(
            f"not a model name: {name[:150]!r}",
            hint="use lower-case letters, digits, '.', '_' and '-', with at most three '/' between",
        )
    if not _TAG.fullmatch(tag) or ".." in tag:
        raise Invalid(f"not a tag: {tag[:150]!r}", hint="use letters, digits, '.', '_' and '-', at most 128")
    return f"tags/{name}/{tag}"


def write_pointer(manifest: Digest) -> bytes:
    return canonical({"manifest": str(manifest)})


def read_pointer(body: bytes, where: str) -> Digest:
    """Raises Corrupt for anything that `write_pointer` did not write, such as nothing."""
    try:
        value = json.loads(body)
        return Digest.parse(value["manifest"])
    except (ValueError, KeyError, TypeError):
        raise Corrupt("the tag is not one that this tool wrote", where=where, hint="mirror the model again") from None


def damaged_tags(tags: Sequence[str], where: str) -> Corrupt:
    """What a listing ends with, after all the tags that it could read."""
    return Corrupt(f"damaged: {', '.join(tags)}", where=where, hint="mirror again to that name and tag; it repairs it")


def split_tag_path(path: str) -> tuple[str, str] | None:
    """(name, tag) of `<name>/<tag>` under tags/, or None for anything else that lies there."""
    name, _, tag = path.rpartition("/")
    try:
        tag_key(name, tag)
    except Invalid:
        return None
    return name, tag

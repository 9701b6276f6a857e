"""Owns the way from an origin's URL to the adapter behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from bdn.addresses import split_address
from bdn.errors import Invalid
from bdn.origins.directory import DirectoryOrigin, DirectoryWriter
from bdn.origins.http import HttpOrigin
from bdn.origins.s3 import S3Origin
from bdn.origins.s3_writer import S3Writer
from bdn.ports import Origin, OriginWriter, TagEntry

HINT = "write a directory, http(s)://host/path or s3://bucket/prefix"


class OpenOrigin(Origin, Protocol):
    """An origin that can also be listed and closed."""

    def tags(self) -> AsyncIterator[TagEntry]: ...

    async def close(self) -> None: ...


def open_origin(url: str, *, endpoint: str = "", region: str = "", bearer: str = "") -> OpenOrigin:
    """The reading side. `endpoint` is an S3 service's own address; `bearer` a token for an HTTP origin."""
    scheme, rest = _split(url)
    if scheme == "s3":
        return S3Origin(url, endpoint=endpoint, region=region)
    if scheme == "file":
        return DirectoryOrigin(rest)
    if scheme in ("http", "https"):
        return HttpOrigin(url, bearer=bearer)
    raise Invalid(f"unknown kind of origin: {scheme}://", hint=HINT)


def open_writer(url: str, *, endpoint: str = "", region: str = "") -> OriginWriter:
    """The mirror's side. Raises Invalid for an origin that can only be read."""
    scheme, rest = _split(url)
    if scheme == "s3":
        return S3Writer(url, endpoint=endpoint, region=region)
    if scheme == "file":
        return DirectoryWriter(rest)
    if scheme in ("http", "https"):
        raise Invalid("an HTTP origin can only be read", where=url, hint="mirror into what is behind it")
    raise Invalid(f"unknown kind of origin: {scheme}://", hint=HINT)


def directory_of(url: str) -> Path | None:
    """Where an origin lies that is a directory of this machine."""
    scheme, rest = _split(url)
    return Path(rest) if scheme == "file" else None


def _split(url: str) -> tuple[str, str]:
    if not url:
        raise Invalid("no origin was named", hint=HINT)
    if "://" not in url:
        return "file", url
    parts = split_address(url)
    return parts.scheme, unquote(parts.path) if parts.scheme == "file" else url

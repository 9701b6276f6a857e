"""Owns claims on chunks in an origin that this node may write: conditional PUTs in a bucket, links in a directory.

    claims/<aa>/<64 hex>            in a bucket: {"holder":"…","nonce":"…"}, replaced only with If-Match
    claims/<aa>/<64 hex>/<number>   in a directory: the same; a claim is replaced by the next number, made with link(2)

A claim's age is the server's Date less its Last-Modified, or what the file system itself says of a file made now and of
the claim: no clock of any node counts. A claim left over costs a few bytes; the next reader of that chunk replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from bdn.addresses import split_address
from bdn.digest import Digest
from bdn.errors import Invalid, SourceDown, Usage
from bdn.origins.s3 import REGION, botocore_credentials, place
from bdn.origins.s3_requests import S3Requests, sent_to
from bdn.origins.sigv4 import Credentials
from bdn.ports import Claimed, Claims
from bdn.sinks import disk_error

CLAIM_BYTES_MAX = 4096
CONNECTIONS = 8  # As many as reads of the origin may be under way.
LOST_MAX = 4  # Looks at a claim that vanishes or changes between two requests, before the origin counts as down.
HINT = "strict mode writes claims: name an s3:// origin or a directory, with the right to write below claims/"


class OpenClaims(Claims, Protocol):
    async def close(self) -> None: ...


def open_claims(url: str, *, endpoint: str = "", region: str = "") -> OpenClaims:
    """Claims in the origin at `url`. Raises Usage for one that takes none."""
    parts = split_address(url)
    if parts.scheme == "s3":
        return S3Claims(url, endpoint=endpoint, region=region)
    if parts.scheme in ("", "file") and url:
        return DirectoryClaims(unquote(parts.path) if parts.scheme else url)
    raise Usage("--strict-origin needs an origin that takes claims", hint=HINT)


class DirectoryClaims:
    """Claims in a directory of this machine, or one that all nodes mount."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute() / "claims"

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        return await asyncio.to_thread(self._take, chunk, holder, replace)

    async def close(self) -> None:
        pass

    def _take(self, chunk: Digest, holder: str, replace: Claimed | None) -> Claimed:
        where = self._root / chunk.hex[:2] / chunk.hex
        try:
            where.mkdir(parents=True, exist_ok=True)
            mine = where / f".{secrets.token_hex(8)}"
            mine.write_bytes(_body(holder))
            try:
                return self._link(where, mine, holder, replace)
            finally:
                mine.unlink()
        except PermissionError as why:
            raise Invalid("may not write claims", where=str(why.filename or where), hint=HINT) from None
        except OSError as why:
            raise disk_error(why, str(where), 0) from why

    def _link(self, where: Path, mine: Path, holder: str, replace: Claimed | None) -> Claimed:
        for _ in range(LOST_MAX):
            numbers = sorted(int(n) for n in os.listdir(where) if n.isdigit())
            last = numbers[-1] if numbers else 0
            if not numbers or (replace is not None and replace.mark == str(last)):
                with contextlib.suppress(FileExistsError):
                    os.link(mine, where / str(last + 1))  # Only one link of that name can be made.
                    # The one before stays: who lists now must find one of the two.
                    for old in numbers[:-1]:
                        (where / str(old)).unlink(missing_ok=True)
                    return Claimed(holder, 0.0, str(last + 1), fresh=True)
                continue
            with contextlib.suppress(FileNotFoundError):
                found = where / str(last)
                age_s = max(0.0, mine.stat().st_mtime - found.stat().st_mtime)
                return Claimed(_holder(found.read_bytes()), age_s, str(last))
        raise SourceDown(str(where), "its claims change faster than they can be read")


class S3Claims:
    """Claims in a bucket, by our own requests in threads: a small one beside each chunk's large one."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "", keys: Credentials | None = None) -> None:
        self.name = place(url, endpoint, region or REGION).name
        find = botocore_credentials() if keys is None else lambda: keys
        self._requests = S3Requests(url, endpoint, region or REGION, find, CONNECTIONS)

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        return await asyncio.to_thread(self._typed, chunk, holder, replace)

    async def close(self) -> None:
        self._requests.close()

    def _typed(self, chunk: Digest, holder: str, replace: Claimed | None) -> Claimed:
        try:
            with sent_to(self.name):
                return self._take(f"claims/{chunk.hex[:2]}/{chunk.hex}", holder, replace)
        except Invalid as why:
            why.hint = HINT
            raise

    def _take(self, key: str, holder: str, replace: Claimed | None) -> Claimed:
        condition = ("if-none-match", "*") if replace is None else ("if-match", replace.mark)
        for _ in range(LOST_MAX):
            mark = self._requests.swap(key, _body(holder), condition)
            if mark is not None:
                return Claimed(holder, 0.0, mark, fresh=True)
            found = self._requests.get(key, CLAIM_BYTES_MAX)
            if found is not None:
                return Claimed(_holder(found.body), found.age_s, found.etag)
            condition = ("if-none-match", "*")  # What was to be replaced is gone.
        raise SourceDown(self.name, "its claims change faster than they can be read")


def _body(holder: str) -> bytes:
    """The nonce makes every write another object, and so another ETag."""
    return json.dumps({"holder": holder, "nonce": secrets.token_hex(8)}).encode()


def _holder(body: bytes) -> str:
    """Whom a claim names; nobody, who cannot be reached, where it is damaged: it is replaced once it is old."""
    try:
        return str(json.loads(body)["holder"])
    except (ValueError, KeyError, TypeError):
        return ""

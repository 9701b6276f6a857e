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
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from bdn.addresses import split_address
from bdn.digest import Digest
from bdn.errors import BdnError, Invalid, SourceDown, Usage
from bdn.origins.s3 import REGION, place, s3_error
from bdn.ports import Claimed, Claims
from bdn.sinks import disk_error

CLAIM_BYTES_MAX = 4096
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
    """Claims in a bucket, through boto3 in threads: a small request beside each chunk's large one."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "", client: Any = None) -> None:
        self._place = place(url, endpoint, region or REGION)
        self._endpoint, self._region, self._client = endpoint, region, client

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        return await asyncio.to_thread(self._typed, lambda: self._take(chunk, holder, replace))

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    def _take(self, chunk: Digest, holder: str, replace: Claimed | None) -> Claimed:
        from botocore.exceptions import ClientError

        key = f"claims/{chunk.hex[:2]}/{chunk.hex}"
        where = {"Bucket": self._place.bucket, "Key": f"{self._place.prefix}/{key}" if self._place.prefix else key}
        condition = {"IfNoneMatch": "*"} if replace is None else {"IfMatch": replace.mark}
        for _ in range(LOST_MAX):
            try:
                done = self._client.put_object(**where, Body=_body(holder), **condition)
                return Claimed(holder, 0.0, done["ETag"], fresh=True)
            except ClientError as why:
                status = why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                if status == 501:
                    what = "this S3 service knows no conditional writes"
                    raise Invalid(what, where=self._place.name, hint=HINT) from None
                if status not in (404, 409, 412):  # 404: what was to be replaced is gone.
                    raise
            found = self._look(where)
            if found is not None:
                return found
            condition = {"IfNoneMatch": "*"}
        raise SourceDown(self._place.name, "its claims change faster than they can be read")

    def _look(self, where: dict[str, str]) -> Claimed | None:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**where)
        except ClientError as why:
            if why.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                return None
            raise
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        age_s = max(0.0, (now - answer["LastModified"]).total_seconds())
        return Claimed(_holder(answer["Body"].read(CLAIM_BYTES_MAX)), age_s, answer["ETag"])

    def _typed(self, work: Callable[[], Claimed]) -> Claimed:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            if self._client is None:
                import boto3
                from botocore.config import Config

                style = {"addressing_style": "path"} if self._endpoint else {}
                self._client = boto3.client(
                    "s3", endpoint_url=self._endpoint or None, region_name=self._region or REGION,
                    config=Config(connect_timeout=5, read_timeout=10, s3=style),
                )  # fmt: skip
            return work()
        except NoCredentialsError:
            raise Invalid("no credentials to write claims with", where=self._place.name, hint=HINT) from None
        except ClientError as why:
            raise self._error(why) from None
        except (BotoCoreError, OSError) as why:
            raise SourceDown(self._place.name, (str(why).splitlines() or [type(why).__name__])[0]) from None

    def _error(self, why: Any) -> BdnError:
        status = why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        error = s3_error(status, str(why.response.get("Error", {}).get("Code", "")), self._place)
        if isinstance(error, Invalid):
            error.hint = HINT
        return error


def _body(holder: str) -> bytes:
    """The nonce makes every write another object, and so another ETag."""
    return json.dumps({"holder": holder, "nonce": secrets.token_hex(8)}).encode()


def _holder(body: bytes) -> str:
    """Whom a claim names; nobody, who cannot be reached, where it is damaged: it is replaced once it is old."""
    try:
        return str(json.loads(body)["holder"])
    except (ValueError, KeyError, TypeError):
        return ""

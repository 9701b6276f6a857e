"""Owns a bucket and prefix as an upstream, through boto3: AWS, and with an endpoint whatever speaks its API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound

from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt, Invalid, SourceDown
from bdn.ports import Listing, UpstreamFile

_PIECE_BYTES = 1 << 20
_RESUMES_MAX = 5
_REFUSED = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
                      "InvalidToken", "Forbidden", "AuthorizationHeaderMalformed"})  # fmt: skip


class BucketUpstream:
    """Every object below a prefix. Its revision is a hash over all keys, sizes and ETags: a change hint, no checksum
    (a multipart upload's ETag is not the MD5). Each read asks for the listed ETag, so a model that is overwritten
    meanwhile fails instead of arriving half old and half new."""

    def __init__(self, bucket: str, prefix: str, *, endpoint: str, region: str) -> None:
        self._bucket, self._prefix = bucket, prefix.strip("/")
        self._endpoint, self._region = endpoint, region
        self._etags: dict[str, str] = {}
        self._client: Any = None

    @property
    def _source(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    async def listing(self) -> Listing:
        return await asyncio.to_thread(self._list)

    def _list(self) -> Listing:
        try:
            # Retries are bounded and short: a person waits, and what is mirrored already is kept.
            retry = Config(retries={"max_attempts": 5, "mode": "standard"}, connect_timeout=5, read_timeout=60)
            # Not the module's shared default, which keeps the first credentials that the process ever saw.
            self._client = boto3.session.Session().client(
                "s3", endpoint_url=self._endpoint or None, region_name=self._region or None, config=retry
            )
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._below)
            objects = [o for page in pages for o in page.get("Contents", ())]
        except (BotoCoreError, ClientError, ValueError) as why:
            raise self._reason(why) from None
        files = []
        for o in objects:
            path = o["Key"][len(self._below) :]
            if path and not path.endswith("/"):  # the folder markers that consoles make
                self._etags[path] = o["ETag"]
                files.append(UpstreamFile(path, int(o["Size"])))
        if not files:
            raise Invalid(f"{self._source} is empty", hint="check the prefix: it ends at a folder of the model's files")
        files.sort(key=lambda f: f.path)
        lines = "".join(f"{f.path}\0{f.size}\0{self._etags[f.path]}\n" for f in files)
        return Listing(self._source, Digest.of(lines.encode()).hex, tuple(files))

    @property
    def _below(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _reason(self, why: Exception) -> BdnError:
        where = self._endpoint or "AWS"
        if isinstance(why, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
            return Invalid(f"no credentials for {self._source}", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if not isinstance(why, ClientError):
            line = (str(why).splitlines() or [type(why).__name__])[0]
            return Invalid(line) if isinstance(why, ValueError) else SourceDown(where, line)
        error = why.response.get("Error", {})
        code, status = str(error.get("Code", "")), why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in ("NoSuchBucket", "404") or (status == 404 and code != "NoSuchKey"):
            return Invalid(f"there is no bucket {self._bucket!r} at {where}", hint="check the name and the endpoint")
        if code in _REFUSED or status in (401, 403):
            return Invalid(f"{where} refused the credentials for {self._source} ({code})",
                           hint="renew them, or allow s3:ListBucket and s3:GetObject")  # fmt: skip
        if code in ("PreconditionFailed", "NoSuchKey") or status == 412:
            return Corrupt(f"{self._source} changed while it was read", hint="mirror it again when it rests")
        if status in (429, 500, 502, 503, 504):
            return SourceDown(where, f"HTTP {status} {code}")
        return Invalid(f"{where} answered {status} {code} for {self._source}")

    async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        at, resumes = offset, 0
        while at < file.size:
            before, body = at, None
            try:
                body = await asyncio.to_thread(self._open, file, at)
                while piece := await asyncio.to_thread(body.read, _PIECE_BYTES):
                    at += len(piece)
                    yield piece
            except ClientError as why:
                raise self._reason(why) from None
            except (BotoCoreError, OSError) as why:
                resumes = 0 if at > before else resumes + 1
                if resumes > _RESUMES_MAX:
                    raise self._reason(why) from None
                continue
            finally:
                if body is not None:
                    body.close()
            resumes = 0 if at > before else resumes + 1
            if at > file.size or resumes > _RESUMES_MAX:
                raise Corrupt(f"{file.path} of {self._source} has {at} bytes, not its listed {file.size}")

    def _open(self, file: UpstreamFile, at: int) -> Any:
        answer = self._client.get_object(
            Bucket=self._bucket, Key=self._below + file.path, IfMatch=self._etags[file.path], Range=f"bytes={at}-"
        )
        return answer["Body"]

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

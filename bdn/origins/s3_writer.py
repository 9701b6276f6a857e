"""Owns the mirror's side of an origin in S3, through boto3: it runs at deploy time, on one machine, and must speak to
every service that imitates S3; a chunk is one PUT, never a multipart upload, so there is nothing half to clean up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt, Invalid, Missing, SourceDown
from bdn.manifest import Chunk
from bdn.origins.directory import checked_document
from bdn.origins.layout import (
    TAG_BYTES_MAX,
    chunk_key,
    damaged_tags,
    document_key,
    mirrored_key,
    read_pointer,
    split_tag_path,
    tag_key,
    write_pointer,
)
from bdn.origins.s3 import REGION, place, s3_error
from bdn.ports import TagEntry

CONNECTIONS = 32
ATTEMPTS = 8  # Of one PUT, with botocore's back-off: a mirror may wait out a throttle, a replica never sees it.
Answer = TypeVar("Answer")


class S3Writer:
    """An `OriginWriter` on a bucket."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "", client: Any = None) -> None:
        self._place = place(url, endpoint, region or REGION)
        self.name = self._place.name
        self._endpoint, self._region = endpoint, region
        self._client = client
        self.compares_and_swaps = True
        """Until a service says that it cannot."""

    async def held(self, chunks: Sequence[Chunk]) -> frozenset[Digest]:
        sizes = await asyncio.gather(*(self._do(self._size, chunk_key(c.digest)) for c in chunks))
        return frozenset(c.digest for c, size in zip(chunks, sizes, strict=True) if size == c.size)

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        await self._do(self._put, chunk_key(chunk.digest), body)

    async def put_document(self, digest: Digest, body: bytes) -> None:
        await self._do(self._put, document_key(digest), body)

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        found = await self._do(self._get, document_key(digest), bytes_max)
        if found is None:
            raise Missing(f"manifest document {digest.short} is not there", where=self.name)
        return checked_document(found[0], digest, self.name)

    async def read_tag(self, name: str, tag: str) -> Digest:
        found = await self._do(self._get, tag_key(name, tag), TAG_BYTES_MAX)
        if found is None:
            raise Missing(f"there is no {name}:{tag}", where=self.name, hint="list what is there with `bdn ls`")
        return read_pointer(found[0], f"{self.name}/{tag_key(name, tag)}")

    async def move_tag(self, name: str, tag: str, manifest: Digest, *, expect: Digest | None) -> None:
        key = tag_key(name, tag)
        found = await self._do(self._get, key, TAG_BYTES_MAX)
        now = None
        with contextlib.suppress(Corrupt):  # A damaged tag points to nothing, and this is how it is repaired.
            now = None if found is None else read_pointer(found[0], key)
        condition = {"IfNoneMatch": "*"} if found is None else {"IfMatch": found[1]}
        if now == expect and await self._do(self._swap, key, write_pointer(manifest), condition):
            return
        raise Invalid(
            f"{name}:{tag} was moved by another writer meanwhile",
            where=self.name,
            hint="look at what it points to now, then mirror again",
        )

    async def tags(self) -> AsyncIterator[TagEntry]:
        base = f"{self._place.prefix}/tags/" if self._place.prefix else "tags/"
        bad: list[str] = []
        for key in await self._do(self._list, base):
            named = split_tag_path(key[len(base) :])
            if named is None:
                continue
            try:
                manifest = await self.read_tag(*named)
            except Corrupt:
                bad.append(":".join(named))
                continue
            yield TagEntry(*named, manifest)
        if bad:
            raise damaged_tags(bad, self.name)

    async def recall(self, what: Digest) -> Digest | None:
        found = await self._do(self._get, mirrored_key(what), TAG_BYTES_MAX)
        return None if found is None else read_pointer(found[0], mirrored_key(what))

    async def remember(self, what: Digest, manifest: Digest) -> None:
        await self._do(self._put, mirrored_key(what), write_pointer(manifest))

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    # Blocking, in a thread

    async def _do(self, work: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.to_thread(self._typed, work, *args)

    def _typed(self, work: Callable[..., Answer], *args: object) -> Answer:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            if self._client is None:
                self._client = _client(self._endpoint, self._region)
            return work(*args)
        except NoCredentialsError:
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role"
            raise Invalid("no credentials to write with", where=self.name, hint=hint) from None
        except ClientError as why:
            raise self._error(why) from None
        except (BotoCoreError, OSError) as why:
            raise SourceDown(self.name, (str(why).splitlines() or [type(why).__name__])[0]) from None

    def _error(self, why: Any) -> BdnError:
        return s3_error(_status(why), str(why.response.get("Error", {}).get("Code", "")), self._place)

    def _key(self, key: str) -> dict[str, str]:
        full = f"{self._place.prefix}/{key}" if self._place.prefix else key
        return {"Bucket": self._place.bucket, "Key": full}

    def _size(self, key: str) -> int | None:
        from botocore.exceptions import ClientError

        try:
            return int(self._client.head_object(**self._key(key))["ContentLength"])
        except ClientError as why:
            if _status(why) == 404:  # A HEAD has no body to say which; a missing bucket shows at the first PUT.
                return None
            raise

    def _put(self, key: str, body: bytes | memoryview) -> None:
        self._client.put_object(**self._key(key), Body=body if isinstance(body, bytes) else _Body(body))

    def _get(self, key: str, bytes_max: int) -> tuple[bytes, str] | None:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**self._key(key))
        except ClientError as why:
            if why.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise
        if answer["ContentLength"] > bytes_max:
            answer["Body"].close()
            size = answer["ContentLength"]
            raise Corrupt(f"an object of {size} bytes, at most {bytes_max} expected", where=f"{self.name}/{key}")
        return answer["Body"].read(), answer["ETag"]

    def _swap(self, key: str, body: bytes, condition: dict[str, str]) -> bool:
        """False when another writer was faster. A service that knows no conditions gets a plain PUT."""
        from botocore.exceptions import ClientError

        try:
            self._client.put_object(**self._key(key), Body=body, **condition)
        except ClientError as why:
            if _status(why) in (409, 412):
                return False
            if _status(why) != 501:
                raise
            self.compares_and_swaps = False
            self._client.put_object(**self._key(key), Body=body)
        return True

    def _list(self, base: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._place.bucket, Prefix=base)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def _client(endpoint: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        connect_timeout=5,
        read_timeout=60,
        s3={"addressing_style": "path"} if endpoint else {},
    )
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint or None, region_name=region or REGION, config=config
    )


def _status(why: Any) -> int:
    return int(why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class _Body:
    """A buffer as the file that botocore wants, read in place: `BytesIO` would copy every chunk once more."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def __len__(self) -> int:
        return len(self._body)

    def read(self, size: int | None = -1) -> memoryview:
        end = len(self._body) if size is None or size < 0 else min(self._at + size, len(self._body))
        piece, self._at = self._body[self._at : end], end
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._body))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

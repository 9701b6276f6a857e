"""Owns the mirror's side of an origin in S3; what it asks the service is in `s3_requests`, and boto3 lists.

A chunk is one PUT, never a multipart upload, so there is nothing half to clean up. What the service refuses for now is
asked again with a growing pause: a mirror may wait out a throttle, a replica never sees it. How many are under way at
once is the mirror's to say; a limit that follows the latency, as reading has, kept half of a local service idle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bdn.digest import Digest
from bdn.documents import checked
from bdn.errors import BdnError, Corrupt, Invalid, Missing, SourceDown, SourceSilent
from bdn.manifest import Chunk
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
from bdn.origins.s3 import REGION, botocore_credentials, place, s3_error
from bdn.origins.s3_requests import CONNECT_S, READ_S, NoConditions, S3Requests, sent_to
from bdn.origins.sigv4 import Credentials
from bdn.policy import pause_s
from bdn.ports import TagEntry

CONNECTIONS = 32
ATTEMPTS, ATTEMPTS_FIRST = 8, 3  # Fewer until the service has once answered: its address may just be wrong.
SILENCES = 2  # A service that takes a request and says nothing has been waited for READ_S each time.
BACKOFF_S, BACKOFF_S_MAX = 0.5, 20.0
Answer = TypeVar("Answer")


class S3Writer:
    """An `OriginWriter` on a bucket. Without `keys` the credentials are found where every AWS tool finds them."""

    def __init__(
        self, url: str, *, endpoint: str = "", region: str = "", keys: Credentials | None = None,
        connect_s: float = CONNECT_S, read_s: float = READ_S,
    ) -> None:  # fmt: skip
        self._place = place(url, endpoint, region or REGION)
        self.name = self._place.name
        self._endpoint, self._region, self._keys = endpoint, region, keys
        self._find = botocore_credentials() if keys is None else lambda: keys
        self._requests = S3Requests(
            url, endpoint, region or REGION, self._needed, CONNECTIONS, connect_s=connect_s, read_s=read_s
        )
        # Not the loop's own pool: reading and hashing have that, and it is a few threads on a small machine.
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="s3")
        self._answered = False
        self.compares_and_swaps = True
        """Until a service says that it cannot."""

    def _needed(self) -> Credentials:
        found = self._find()
        if found is None:
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role"
            raise Invalid("no credentials to write with", where=self.name, hint=hint)
        return found

    async def held(self, chunks: Sequence[Chunk], *, reread: bool = False) -> frozenset[Digest]:
        whole = await asyncio.gather(*(self._whole(c, reread) for c in chunks))
        return frozenset(c.digest for c, there in zip(chunks, whole, strict=True) if there)

    async def _whole(self, chunk: Chunk, reread: bool) -> bool:
        key = chunk_key(chunk.digest)
        if reread:
            return await self._patiently(self._requests.digest, key, chunk.size) == chunk.digest
        return await self._patiently(self._requests.size, key) == chunk.size

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        await self._patiently(self._requests.put, chunk_key(chunk.digest), body)

    async def put_document(self, digest: Digest, body: bytes) -> None:
        await self._patiently(self._requests.put, document_key(digest), body)

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        found = await self._patiently(self._requests.get, document_key(digest), bytes_max)
        if found is None:
            raise Missing(f"manifest document {digest.short} is not there", where=self.name)
        return checked(found.body, digest, self.name, "mirror again")

    async def read_tag(self, name: str, tag: str) -> Digest:
        found = await self._patiently(self._requests.get, tag_key(name, tag), TAG_BYTES_MAX)
        if found is None:
            raise Missing(f"there is no {name}:{tag}", where=self.name, hint="list what is there with `bdn ls`")
        return read_pointer(found.body, f"{self.name}/{tag_key(name, tag)}")

    async def move_tag(self, name: str, tag: str, manifest: Digest, *, expect: Digest | None) -> None:
        key = tag_key(name, tag)
        found = await self._patiently(self._requests.get, key, TAG_BYTES_MAX)
        now = None
        with contextlib.suppress(Corrupt):  # A damaged tag points to nothing, and this is how it is repaired.
            now = None if found is None else read_pointer(found.body, key)
        if now == manifest:
            return None  # Another mirror of the same model has had the same to say.
        condition = ("if-none-match", "*") if found is None else ("if-match", found.etag)
        if now == expect:
            try:
                swapped = await self._patiently(self._requests.swap, key, write_pointer(manifest), condition)
            except NoConditions:
                self.compares_and_swaps = False
                return await self._patiently(self._requests.put, key, write_pointer(manifest))
            # An answer may have been lost and the question asked again: then the tag is where it should be.
            if swapped is not None or await self._points_to(name, tag) == manifest:
                return None
        raise Invalid(
            f"{name}:{tag} was moved by another writer meanwhile",
            where=self.name,
            hint="look at what it points to now, then mirror again",
        )

    async def _points_to(self, name: str, tag: str) -> Digest | None:
        try:
            return await self.read_tag(name, tag)
        except (Missing, Corrupt):
            return None

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
        found = await self._patiently(self._requests.get, mirrored_key(what), TAG_BYTES_MAX)
        return None if found is None else read_pointer(found.body, mirrored_key(what))

    async def remember(self, what: Digest, manifest: Digest) -> None:
        await self._patiently(self._requests.put, mirrored_key(what), write_pointer(manifest))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._requests.close()

    async def _patiently(self, work: Callable[..., Answer], *args: object) -> Answer:
        """Again after each temporary refusal, up to `ATTEMPTS` times in all, and once after a silence."""
        attempt = silences = 0
        while True:
            try:
                answer = await self._do(work, *args)
                self._answered = True
                return answer
            except SourceSilent:
                silences += 1
                if silences >= SILENCES:
                    raise
            except SourceDown as why:
                attempt += 1
                self._answered = self._answered or why.retry_after_s is not None
                if attempt >= (ATTEMPTS if self._answered else ATTEMPTS_FIRST):
                    raise
                await asyncio.sleep(pause_s(why, BACKOFF_S, BACKOFF_S_MAX, attempt, asked_s_max=BACKOFF_S_MAX))

    # Blocking, in a thread

    async def _do(self, work: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._typed, work, *args)

    def _typed(self, work: Callable[..., Answer], *args: object) -> Answer:
        from botocore.exceptions import ClientError

        try:
            with sent_to(self.name, self._requests.read_s):
                return work(*args)
        except ClientError as why:
            raise self._error(why) from None

    def _error(self, why: Any) -> BdnError:
        return s3_error(_status(why), str(why.response.get("Error", {}).get("Code", "")), self._place)

    def _list(self, base: str) -> list[str]:
        self._needed()
        client = _client(self._endpoint, self._region, self._keys)
        try:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._place.bucket, Prefix=base)
            return [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        finally:
            client.close()


def _client(endpoint: str, region: str, keys: Credentials | None) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": ATTEMPTS_FIRST},  # It only lists, and counts silences as well.
        max_pool_connections=CONNECTIONS,
        connect_timeout=5,
        read_timeout=60,
        s3={"addressing_style": "path"} if endpoint else {},
    )
    given = {} if keys is None else {
        "aws_access_key_id": keys.access_key, "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token or None,
    }  # fmt: skip
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint or None, region_name=region or REGION, config=config, **given
    )


def _status(why: Any) -> int:
    return int(why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

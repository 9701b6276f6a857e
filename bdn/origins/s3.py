"""Owns reading an origin in S3 or what speaks its API: our own requests on the hot path, every refusal told apart.

A GET is signed here and received by the same loop that receives from peers; boto3 would cost three times the CPU.
Credentials come from where botocore finds them (environment, files, container and instance roles) and are refreshed
by it. A clock that is off and a region that is wrong are learned from the service's answer, once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from bdn.addresses import check_secret, split_address
from bdn.buckets import BUCKET_RULE, is_bucket
from bdn.digest import Digest
from bdn.documents import checked
from bdn.errors import BdnError, ChunkMissing, Invalid, Missing, SourceDown
from bdn.http.head import Head, request_bytes
from bdn.http.pool import Pool
from bdn.http.receive import Document, WholeChunk
from bdn.http.wire import Receiver
from bdn.manifest import Chunk
from bdn.origins.layout import TAG_BYTES_MAX, chunk_key, document_key, read_pointer, tag_key
from bdn.origins.pressure import MOST, Gate
from bdn.origins.sigv4 import Credentials, Signer, encode_path
from bdn.ports import Sink, TagEntry

CONNECTIONS = int(MOST)
STALL_S = 30.0
REGION = "us-east-1"
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,80})</Code>")
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
REFUSED = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "InvalidToken", "AccountProblem"})

FindCredentials = Callable[[], Credentials | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bucket answers. Path style with an own endpoint, virtual-host style at AWS."""

    bucket: str
    prefix: str
    host: str
    port: int
    secure: bool
    path_style: bool

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def path(self, key: str) -> str:
        full = f"{self.prefix}/{key}" if self.prefix else key
        return encode_path(f"/{self.bucket}/{full}" if self.path_style else f"/{full}")


def place(url: str, endpoint: str, region: str) -> Place:
    """Raises Invalid for what is not s3://bucket[/prefix], or an endpoint that is no http(s) address."""
    parts = split_address(url)
    if parts.scheme != "s3" or not is_bucket(parts.netloc):
        raise Invalid(f"not an S3 origin: {url[:200]!r}", hint=BUCKET_RULE)
    prefix = parts.path.strip("/")
    if not endpoint:
        dotted = "." in parts.netloc  # A dot in the bucket's name breaks the certificate of the virtual host.
        regional = f"s3.{region}.amazonaws.com"
        return Place(parts.netloc, prefix, regional if dotted else f"{parts.netloc}.{regional}", 443, True, dotted)
    server = split_address(endpoint)
    more = server.path.strip("/") or server.query or server.fragment
    if server.scheme not in ("http", "https") or not server.hostname or more:
        raise Invalid(f"not an S3 endpoint: {endpoint[:200]!r}", hint="write http(s)://host[:port]")
    secure = server.scheme == "https"
    return Place(parts.netloc, prefix, server.hostname, server.port or (443 if secure else 80), secure, True)


class S3Origin:
    """An `Origin` in a bucket."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str = "",
        region: str = "",
        connections_max: int = CONNECTIONS,
        find_credentials: FindCredentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url, self._endpoint, self._region = url, endpoint, region or REGION
        self._place = place(url, endpoint, self._region)
        self.name = self._place.name
        self.gate = Gate()
        self._find = find_credentials or botocore_credentials()
        self._signer: Signer | None = None
        self._signed_in = asyncio.Lock()
        self._known = False
        self._skew = timedelta(0)
        secure = self._place.secure
        self._pool = Pool(per_host_max=connections_max, tls=(tls or ssl.create_default_context()) if secure else None)

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        async with self.gate.entered(chunk.size):
            head, words = await self._get(chunk_key(chunk.digest), WholeChunk(sink, self.name), stall_s)
            if head.status not in (200, 206):
                if self._absent(head, words):
                    raise ChunkMissing(chunk.digest, source=self.name)
                raise self._refusal(head, words)

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        body = await self._small(document_key(digest), bytes_max)
        if body is None:
            raise Missing(f"manifest document {digest.short} is not there", where=self.name)
        return checked(body, digest, self.name, "mirror again")

    async def read_tag(self, name: str, tag: str) -> Digest:
        body = await self._small(tag_key(name, tag), TAG_BYTES_MAX)
        if body is None:
            raise Missing(f"there is no {name}:{tag}", where=self.name, hint="list what is there with `bdn ls`")
        return read_pointer(body, f"{self.name}/{tag_key(name, tag)}")

    async def tags(self) -> AsyncIterator[TagEntry]:
        """Listing is control, not data: boto3 does it."""
        from bdn.origins.s3_writer import S3Writer  # Here, because most readers never list and boto3 takes 0.3 s.

        writer = S3Writer(self._url, endpoint=self._endpoint, region=self._region)
        async for entry in writer.tags():
            yield entry

    async def close(self) -> None:
        self._pool.close()

    async def _small(self, key: str, bytes_max: int) -> bytes | None:
        document = Document(self.name, bytes_max)
        head, words = await self._get(key, document, STALL_S)
        if head.status == 200:
            return bytes(document.body)
        if self._absent(head, words):
            return None
        raise self._refusal(head, words)

    async def _get(self, key: str, receiver: Receiver, stall_s: float) -> tuple[Head, bytes]:
        """One object; after an answer that teaches something (the time, the region, that a token has expired) once
        more with what was learned."""
        for attempt in range(3):
            signer = await self._signer_now(renew=None)
            head, words = await self._once(key, receiver, stall_s, signer)
            if head.status in (200, 206, 404) or attempt == 2:
                break
            code = error_code(words)
            if code == "RequestTimeTooSkewed" and "date" in head.headers:
                self._skew = clock_skew(head.headers["date"])
            elif code in ("AuthorizationHeaderMalformed", "PermanentRedirect") and self._learn_region(head, words):
                pass
            elif code in ("ExpiredToken", "TokenRefreshRequired") and signer is not None:
                await self._signer_now(renew=signer)
            else:
                break
        return head, words

    async def _once(self, key: str, receiver: Receiver, stall_s: float, signer: Signer | None) -> tuple[Head, bytes]:
        path, headers = self._place.path(key), [("host", self._place.authority)]
        if signer is not None:
            headers = signer.headers("GET", path, (), headers, datetime.now(UTC) + self._skew)
        headers.append(("accept-encoding", "identity"))
        request = request_bytes("GET", path, headers)
        return await self._pool.exchange(
            self.name, self._place.host, self._place.port, request, receiver, stall_s=stall_s
        )

    async def _signer_now(self, renew: Signer | None) -> Signer | None:
        """The signer to use; None for a bucket that anyone may read. A burst of expired requests renews it once:
        each says which signer was refused, and only the first still finds that one in place."""
        if self._known and renew is None and not self._stale():
            return self._signer
        async with self._signed_in:
            if not self._known or self._stale() or (renew is not None and self._signer is renew):
                found = await asyncio.to_thread(self._find)
                if self._signer is None or found != self._signer.credentials:
                    self._signer = Signer(found, self._region) if found else None
                self._known = True
                self._looked_at = asyncio.get_running_loop().time()
            return self._signer

    def _stale(self) -> bool:
        """botocore refreshes role credentials minutes before they expire, if it is asked now and then."""
        return asyncio.get_running_loop().time() - self._looked_at > CREDENTIALS_S

    def _learn_region(self, head: Head, words: bytes) -> bool:
        region = named_region(words) or head.headers.get("x-amz-bucket-region", "")
        if not region or region == self._region:
            return False
        self._region = region
        if not self._endpoint:
            self._place = place(self._url, "", region)
        if self._signer is not None:
            self._signer = Signer(self._signer.credentials, region)
        return True

    _looked_at = 0.0

    def _absent(self, head: Head, words: bytes) -> bool:
        return head.status == 404 and error_code(words) != "NoSuchBucket"

    def _refusal(self, head: Head, words: bytes) -> BdnError:
        return s3_error(head.status, error_code(words), self._place, head.retry_after_s)


CREDENTIALS_S = 60.0


def s3_error(status: int, code: str, where: Place, retry_after_s: float | None = None) -> BdnError:
    """What the service's refusal means for the one who waits."""
    server = f"{where.host}:{where.port}"
    if code == "NoSuchBucket":
        return Invalid(f"there is no bucket {where.bucket!r}", where=server, hint="check the name, or create it")
    if code == "RequestTimeTooSkewed":
        return Invalid("the clock of this machine is too far off", where=where.name, hint="start an NTP client")
    if code in ("ExpiredToken", "TokenRefreshRequired"):
        return Invalid("the credentials have expired", where=where.name, hint="renew them")
    if code in REFUSED or status in (401, 403):
        why = {
            "InvalidAccessKeyId": "the access key is unknown there",
            "SignatureDoesNotMatch": "the secret key does not belong to the access key",
        }.get(code, f"access is denied ({code or status})")
        rights = "reading needs s3:GetObject and s3:ListBucket, mirroring s3:PutObject"
        hint = f"check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; {rights}"
        return Invalid(f"{why}", where=f"{where.name} at {server}", hint=hint)
    if 300 <= status < 400:
        return Invalid(f"the bucket is elsewhere ({code or status})", where=where.name, hint="name its region")
    if status == 429 or status >= 500:
        return SourceDown(where.name, f"status {status} {code}".strip(), retry_after_s=retry_after_s)
    return Invalid(f"the request was refused: status {status} {code}".strip(), where=f"{where.name} at {server}")


def error_code(words: bytes) -> str:
    match = _CODE.search(words)
    return match[1].decode() if match else ""


def named_region(words: bytes) -> str:
    """The region that a refusal names as the bucket's, or nothing."""
    match = _REGION.search(words)
    return match[1].decode() if match else ""


def clock_skew(date: str) -> timedelta:
    """How far the service's clock is ahead of ours, by the date of its answer."""
    try:
        return parsedate_to_datetime(date) - datetime.now(UTC)
    except (ValueError, TypeError):
        return timedelta(0)


def botocore_credentials() -> FindCredentials:
    """Finds credentials where every AWS tool does; the object it keeps refreshes those of a role."""
    source: list[Any] = []

    def find() -> Credentials | None:
        import botocore.session
        from botocore.exceptions import BotoCoreError

        try:
            if not source:
                source.append(botocore.session.get_session().get_credentials())
            if source[0] is None:
                return None
            frozen = source[0].get_frozen_credentials()
        except BotoCoreError as why:
            raise Invalid(f"no usable credentials: {str(why).splitlines()[0]}", hint="check the AWS profile") from None
        for secret, what in ((frozen.access_key, "the access key"), (frozen.secret_key, "the secret key")):
            check_secret(secret, what)
        check_secret(frozen.token or "", "the session token")
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")

    return find

"""Owns an origin behind any HTTP server: a mirrored directory on nginx, a CDN, or `bdn origin`."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from bdn.addresses import check_secret, split_address
from bdn.digest import Digest
from bdn.documents import checked
from bdn.errors import BdnError, ChunkMissing, Corrupt, Invalid, Missing, SourceDown
from bdn.http.head import Head, request_bytes
from bdn.http.pool import Pool
from bdn.http.receive import Document, WholeChunk
from bdn.http.wire import Receiver
from bdn.manifest import Chunk
from bdn.origins.directory import INDEX_BYTES_MAX, TAGS_INDEX
from bdn.origins.layout import TAG_BYTES_MAX, chunk_key, document_key, read_pointer, split_tag_path, tag_key
from bdn.origins.pressure import MOST, Gate
from bdn.ports import Sink, TagEntry

CONNECTIONS = int(MOST)
STALL_S = 30.0


class HttpOrigin:
    """An `Origin` at a base URL. A query in it (a signed token) goes with every request and into no message.

    Redirects are not followed: where one leads is not where the credentials were meant to go.
    """

    def __init__(
        self,
        url: str,
        *,
        bearer: str = "",
        headers: Mapping[str, str] | None = None,
        connections_max: int = CONNECTIONS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = split_address(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid(f"not an HTTP origin: {parts.scheme}://{parts.netloc}", hint="write http://host[:port]/path")
        secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if secure else 80)
        self.name = f"{parts.scheme}://{parts.hostname}:{self.port}{parts.path}".rstrip("/")
        self.gate = Gate()
        self._base = parts.path.rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = host if self.port == (443 if secure else 80) else f"{host}:{self.port}"
        self._headers = [("host", authority), ("accept-encoding", "identity")]
        self._headers += list((headers or {}).items())
        if bearer:
            check_secret(bearer, "the origin's token")
            self._headers.append(("authorization", f"Bearer {bearer}"))
        self._pool = Pool(per_host_max=connections_max, tls=(tls or ssl.create_default_context()) if secure else None)

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        async with self.gate.entered(chunk.size):
            head, words = await self._get(chunk_key(chunk.digest), WholeChunk(sink, self.name), stall_s)
            if head.status == 404:
                raise ChunkMissing(chunk.digest, source=self.name)
            if head.status not in (200, 206):
                raise refusal(head, words, self.name)

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
        """From the index that the writer keeps beside the tags."""
        body = await self._small(TAGS_INDEX, INDEX_BYTES_MAX)
        if body is None:
            raise Missing("this origin keeps no list of its tags", where=self.name, hint="name the model as NAME:TAG")
        try:
            index = json.loads(body)
            entries = [(*split_tag_path(k.replace(":", "/")), Digest.parse(v)) for k, v in index.items()]  # type: ignore[misc]
        except (ValueError, TypeError, AttributeError):
            raise Corrupt("the list of tags is not one that this tool wrote", where=self.name) from None
        for name, tag, manifest in entries:
            yield TagEntry(name, tag, manifest)

    async def close(self) -> None:
        self._pool.close()

    async def _small(self, key: str, bytes_max: int) -> bytes | None:
        document = Document(self.name, bytes_max)
        head, words = await self._get(key, document, STALL_S)
        if head.status == 404:
            return None
        if head.status != 200:
            raise refusal(head, words, self.name)
        return bytes(document.body)

    async def _get(self, key: str, receiver: Receiver, stall_s: float) -> tuple[Head, bytes]:
        request = request_bytes("GET", f"{self._base}/{key}{self._query}", self._headers)
        return await self._pool.exchange(self.name, self.host, self.port, request, receiver, stall_s=stall_s)


def refusal(head: Head, words: bytes, name: str) -> BdnError:
    """What a status that is neither success nor 404 means for the one who waits."""
    if head.status in (401, 403):
        return Invalid(
            f"the origin refused the credentials (status {head.status})",
            where=name,
            hint="check the token, its expiry and that it may read this path",
        )
    if 300 <= head.status < 400:
        target = urlsplit(head.headers.get("location", ""))
        return Invalid(
            f"the origin redirects to {target.scheme}://{target.netloc}",
            where=name,
            hint="redirects are not followed; name that address as the origin if it is the right one",
        )
    text = words[:120].decode("utf-8", "replace").strip().splitlines()
    why = f"status {head.status}" + (f" {text[0]}" if text and not text[0].startswith("<") else "")
    return SourceDown(name, why, retry_after_s=head.retry_after_s)

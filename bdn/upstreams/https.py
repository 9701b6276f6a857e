"""Owns files behind plain web addresses as an upstream: one file, or a list of them.

A list is a text file whose address ends in `.txt` or `SHA256SUMS`: one `path` or `sha256  path` a line (what sha256sum
prints), relative to the list, `#` starts a comment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote, urljoin, urlsplit

import aiohttp

from bdn.addresses import split_address
from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt, Invalid, SourceDown, Usage
from bdn.manifest import check_paths
from bdn.ports import Listing, UpstreamFile

_LIST_BYTES_MAX = 8 << 20
_HEADS = 8  # Sizes asked for at the same time: polite to a web server, and a list of hundreds still takes seconds.
_RESUMES_MAX = 5
_SUMMED = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(.+)")
_PLAIN = {"Accept-Encoding": "identity"}


class WebUpstream:
    """The revision is a hash over the list, the sizes and each file's ETag or date: a change hint, no checksum."""

    def __init__(self, url: str) -> None:
        """Raises Usage for an address without a host."""
        if not split_address(url).hostname:
            raise Usage(f"{url[:200]!r} names no host", hint="write https://host/file-or-list")
        self._url = url
        self._session: aiohttp.ClientSession | None = None
        self._tags: dict[str, str] = {}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=_PLAIN, auto_decompress=False)
        return self._session

    async def listing(self) -> Listing:
        path = urlsplit(self._url).path
        if path.endswith((".txt", "SHA256SUMS")):
            entries = parse_list(await self._text(self._url))
        else:
            name = unquote(path.rpartition("/")[2])
            if not name:
                raise Invalid(f"{self._url} names no file", hint="name a file, or a list: files.txt or SHA256SUMS")
            entries = {name: ""}
        try:
            check_paths(entries)
        except Invalid as why:
            raise Invalid(f"{why.what.replace(' in the manifest', '')} in {self._url}") from None
        gate = asyncio.Semaphore(_HEADS)
        files = await asyncio.gather(*(self._head(p, entries[p], gate) for p in sorted(entries)))
        lines = "".join(f"{f.path}\0{f.size}\0{self._tags[f.path]}\0{f.checksums}\n" for f in files)
        return Listing(self._url, Digest.of(lines.encode()).hex, tuple(files))

    def _address(self, path: str) -> str:
        return urljoin(self._url, quote(path))

    async def _text(self, url: str) -> str:
        try:
            async with self._open().get(url) as answer:
                self._check(answer, url)
                if "html" in answer.content_type:
                    raise Invalid(f"{url} is a web page, not a list of files", hint="name the list's own address")
                body = await answer.content.read(_LIST_BYTES_MAX)
                return body.decode("utf-8")
        except (aiohttp.ClientError, TimeoutError) as why:
            raise _down(url, why) from None
        except UnicodeDecodeError:
            raise Invalid(f"{url} is not a text file") from None

    async def _head(self, path: str, sha256: str, gate: asyncio.Semaphore) -> UpstreamFile:
        url = self._address(path)
        try:
            async with gate, self._open().head(url, allow_redirects=True) as answer:
                self._check(answer, url)
                if answer.content_type == "text/html" and not path.lower().endswith((".html", ".htm")):
                    raise Invalid(f"{url} is a web page, not that file", hint="a log-in or error page, most likely")
                if answer.content_length is None:
                    raise Invalid(f"{url} does not say how long it is", hint="its server sends no Content-Length")
                self._tags[path] = answer.headers.get("ETag", answer.headers.get("Last-Modified", ""))
                return UpstreamFile(path, answer.content_length, checksums=(("sha256", sha256),) if sha256 else ())
        except (aiohttp.ClientError, TimeoutError) as why:
            raise _down(url, why) from None

    @staticmethod
    def _check(answer: aiohttp.ClientResponse, url: str) -> None:
        """Only a success is a file: an error page must never be stored as weights."""
        if answer.status in (401, 403):
            raise Invalid(f"{url} may not be read (HTTP {answer.status})", hint="it needs credentials or has expired")
        if answer.status in (404, 410):
            raise Invalid(f"{url} does not exist (HTTP {answer.status})", hint="check the address")
        if answer.status in (429, 500, 502, 503, 504):
            raise SourceDown(urlsplit(url).netloc, f"HTTP {answer.status}")
        if answer.status not in (200, 206):
            raise Invalid(f"{url} answered HTTP {answer.status}")

    async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        at, resumes, url = offset, 0, self._address(file.path)
        while at < file.size:
            before = at
            try:
                async with self._open().get(url, headers={"Range": f"bytes={at}-"}) as answer:
                    self._check(answer, url)
                    skip = self._start(answer, url, at)
                    async for piece in answer.content.iter_chunked(1 << 20):
                        fresh, skip = piece[skip:], max(0, skip - len(piece))
                        at += len(fresh)
                        if at > file.size:
                            raise Corrupt(f"{url} is longer than the {file.size} bytes it promised")
                        yield fresh
            except (aiohttp.ClientError, TimeoutError) as why:
                resumes = 0 if at > before else resumes + 1
                if resumes > _RESUMES_MAX:
                    raise _down(url, why) from None
                continue
            resumes = 0 if at > before else resumes + 1
            if resumes > _RESUMES_MAX:
                raise Corrupt(f"{url} ended after {at} of {file.size} bytes")

    @staticmethod
    def _start(answer: aiohttp.ClientResponse, url: str, at: int) -> int:
        """How many bytes of the body to pass over: a server may answer a range with the whole file."""
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Corrupt(f"{url} was sent compressed although that was refused", hint="a proxy on the way does it")
        if answer.status == 200:
            return at
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
            raise Corrupt(f"{url} answered another range than the one asked for")
        return 0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def parse_list(text: str) -> dict[str, str]:
    """Path to sha256 (lower-case hex, empty where none is given); raises Invalid for a path that is named twice."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        summed = _SUMMED.fullmatch(line)
        path, sha256 = (summed[2], summed[1].lower()) if summed else (line, "")
        path = path.removeprefix("./")
        if path in found:
            raise Invalid(f"the list names {path!r} twice")
        found[path] = sha256
    if not found:
        raise Invalid("the list of files is empty", hint="one path a line, or what sha256sum prints")
    return found


def _down(url: str, why: BaseException) -> BdnError:
    if isinstance(why, aiohttp.InvalidURL):
        return Invalid(f"{url} is not a web address")
    return SourceDown(urlsplit(url).netloc, str(why) or "timed out")

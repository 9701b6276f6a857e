"""Owns what a node says to other nodes over HTTP: chunks, probes, messages; nothing else is reachable here.

    GET  /v1/chunks/<64 hex>    200 the chunk · 404 not here · 429 at the upload cap (x-bdn-holders) · 502 sources down
    GET  /v1/documents/<64 hex> 200 a manifest's root or chunk list · 404 not here; HEAD says as much and sends nothing.
                                Either way x-bdn-holders names nodes said to have the model
    POST /v1/probe              body: 32-byte digests; answer: one letter each, h(ave) f(etching) l(acks)
    POST /v1/tell/<topic>       a coordinator's message; the answer's bytes
    GET  /livez                 200

Every request carries who asks and for which model (`x-bdn-manifest`, `x-bdn-asker`, `x-bdn-hops`, `x-bdn-priority`).
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Mapping

from bdn.digest import Digest
from bdn.errors import BdnError, Busy, Missing
from bdn.http.head import Request
from bdn.http.server import HttpServer, Response, ServerLimits
from bdn.ports import Answerer, Ask, Documents, Holding, Lease, OpenChunk, Shelf
from bdn.roster import NAME

HOPS_MAX = 16
DIGESTS_MAX = 100_000
_CHUNK = "/v1/chunks/"
_DOCUMENT = "/v1/documents/"
_TELL = "/v1/tell/"
_NUMBER = re.compile(r"[0-9]{1,4}")
LETTERS = {Holding.HAVE: b"h", Holding.FETCHING: b"f", Holding.LACKS: b"l"}
log = logging.getLogger(__name__)

Page = Callable[[], tuple[int, str, bytes]]
"""Status, content type and body of a small page, such as /readyz and /metrics."""


class PeerServer:
    """This node's side of `Peers`: an answerer decides, a shelf holds the bytes, the engine sends them."""

    def __init__(
        self,
        answerer: Answerer,
        shelf: Shelf,
        limits: ServerLimits | None = None,
        pages: Mapping[str, Page] | None = None,
        tls: ssl.SSLContext | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._answerer, self._shelf, self._documents = answerer, shelf, documents
        self._pages = {"/livez": lambda: (200, "text/plain", b"ok\n"), **(pages or {})}
        self.http = HttpServer(self, limits, tls)

    async def start(self, host: str, port: int) -> int:
        return await self.http.start(host, port)

    async def stop(self, *, drain_s: float = 0.0) -> None:
        await self.http.stop(drain_s=drain_s)

    async def handle(self, request: Request, body: bytes) -> Response:
        path = request.path
        try:
            if path.startswith(_CHUNK):
                return await self._chunk(request, path.removeprefix(_CHUNK))
            if path.startswith(_DOCUMENT) and self._documents is not None:
                return self._document(self._documents, request, path.removeprefix(_DOCUMENT))
            if path == "/v1/probe" and request.method == "POST":
                return self._probe(request, body)
            if path.startswith(_TELL) and request.method == "POST":
                return Response(200, body=await self._answerer.told(path.removeprefix(_TELL), body))
            if path in self._pages and request.method in ("GET", "HEAD"):
                status, kind, page = self._pages[path]()
                return Response(status, [("content-type", kind)], page)
        except ValueError as why:
            return _words(400, str(why))
        except BdnError as why:
            return _refusal(why)
        return _words(404, "no such thing here")

    async def _chunk(self, request: Request, name: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _words(405, "GET or HEAD")
        digest, ask = Digest.from_hex(name), read_ask(request.headers)
        lease = await self._answerer.answer(digest, ask)
        try:
            chunk = self._shelf.open(digest)
        except BaseException:
            lease.close(0)
            raise
        if chunk is None:
            lease.close(0)
            self._answerer.missed(digest)
            return _words(404, "not here", kind="missing")
        return Response(200, spans=chunk.spans, done=_Once(lease, chunk))

    def _document(self, documents: Documents, request: Request, name: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _words(405, "GET or HEAD")
        digest, ask = Digest.from_hex(name), read_ask(request.headers)
        others = [("x-bdn-holders", ",".join(documents.whereabouts(ask.manifest, ask.asker)))]
        body = documents.document(digest)
        if body is None:
            return Response(404, [("x-bdn-kind", "missing"), *others])
        return Response(200, [("content-type", "application/json"), *others], body)

    def _probe(self, request: Request, body: bytes) -> Response:
        if len(body) % 32 or len(body) > 32 * DIGESTS_MAX:
            raise ValueError("a probe is a sequence of 32-byte digests")
        digests = [Digest(body[at : at + 32]) for at in range(0, len(body), 32)]
        words = self._answerer.probe(digests, read_ask(request.headers))
        return Response(200, body=b"".join(LETTERS[w] for w in words))


class _Once:
    """Called by the engine when the transfer ended, whichever way."""

    def __init__(self, lease: Lease, chunk: OpenChunk) -> None:
        self._lease, self._chunk = lease, chunk

    def __call__(self, sent: int) -> None:
        self._chunk.close()
        self._lease.close(sent)


def read_ask(headers: Mapping[str, str]) -> Ask:
    """Raises ValueError for anything that is not exactly an ask: these headers steer who is served first."""
    asker = headers.get("x-bdn-asker", "")
    if not NAME.fullmatch(asker):
        raise ValueError("x-bdn-asker must name a node")
    numbers = [headers.get(name, "0") for name in ("x-bdn-hops", "x-bdn-priority")]
    if not all(_NUMBER.fullmatch(n) for n in numbers):
        raise ValueError("x-bdn-hops and x-bdn-priority must be small whole numbers")
    hops, priority = map(int, numbers)
    if hops > HOPS_MAX:
        raise ValueError(f"forwarded more than {HOPS_MAX} times")
    return Ask(Digest.from_hex(headers.get("x-bdn-manifest", "")), asker, hops, priority)


def ask_headers(ask: Ask) -> list[tuple[str, str]]:
    return [
        ("x-bdn-manifest", ask.manifest.hex),
        ("x-bdn-asker", ask.asker),
        ("x-bdn-hops", str(ask.hops)),
        ("x-bdn-priority", str(ask.priority)),
    ]


def _refusal(why: BdnError) -> Response:
    if isinstance(why, Busy):
        headers = [("retry-after", f"{why.retry_after_s:g}"), ("x-bdn-holders", ",".join(why.holders))]
        return Response(429, [("x-bdn-kind", "busy"), *headers])
    if isinstance(why, Missing):
        return _words(404, str(why), kind="missing")
    log.info("could not answer: %s", why)
    response = _words(502, str(why), kind="down")
    retry = getattr(why, "retry_after_s", None)
    if retry is None:
        return response
    return Response(502, [*response.headers, ("retry-after", f"{retry:g}")], response.body)


def _words(status: int, text: str, *, kind: str = "invalid") -> Response:
    return Response(status, [("content-type", "text/plain; charset=utf-8"), ("x-bdn-kind", kind)], f"{text}\n".encode())

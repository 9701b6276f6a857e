"""Owns serving a mirrored directory as an origin, by the very engine that serves peers, counting what it sends."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from pathlib import Path

from bdn.errors import Invalid
from bdn.http.head import Request, parse_range
from bdn.http.server import HttpServer, Response, ServerLimits
from bdn.ports import Span
from bdn.shortage import shortage

# Only what a mirror writes is reachable: immutable objects by digest, tags, and the list of tags.
_KEY = re.compile(
    r"/(?:(chunks/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{64}|documents/[0-9a-f]{2}/[0-9a-f]{64})"
    r"|(tags/[A-Za-z0-9_][A-Za-z0-9._/-]{0,512}|mirrored/[0-9a-f]{2}/[0-9a-f]{64}|tags\.json))"
)
FOREVER = ("cache-control", "public, max-age=31536000, immutable")
NEVER = ("cache-control", "no-cache")


class DirectoryServer:
    """`bdn origin DIR`."""

    def __init__(self, root: str | Path, limits: ServerLimits | None = None) -> None:
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise Invalid("there is no such directory", where=str(self.root), hint="mirror a model there first")
        self.http = HttpServer(self, limits)
        self.sent_by_kind: Counter[str] = Counter()
        """Body bytes that left, by chunks, documents, tags, mirrored: copies of a model are chunks' bytes."""

    async def start(self, host: str, port: int) -> int:
        return await self.http.start(host, port)

    async def stop(self, *, drain_s: float = 0.0) -> None:
        await self.http.stop(drain_s=drain_s)

    async def handle(self, request: Request, body: bytes) -> Response:
        if request.path == "/livez":
            return Response(200, [("content-type", "text/plain")], b"ok\n")
        if request.path == "/metrics":
            return Response(200, [("content-type", "text/plain; version=0.0.4")], self._metrics())
        if request.method not in ("GET", "HEAD"):
            return Response(405)
        path = request.path.partition("?")[0]
        match = _KEY.fullmatch(path)
        if match is None or ".." in path:
            return Response(404)
        try:
            fd = os.open(self.root / path[1:], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as why:
            # It may well be there: who hears 404 asks no more.
            return Response(404) if shortage(why) is None else Response(503, [("retry-after", "1")])
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return Response(404)
        headers = [FOREVER if match[1] else NEVER, ("accept-ranges", "bytes")]
        return self._send(request, fd, found.st_size, headers, kind=path[1:].split("/")[0])

    def _metrics(self) -> bytes:
        name = "bdn_origin_sent_bytes_total"
        lines = [f"# HELP {name} Body bytes sent, by kind of object.", f"# TYPE {name} counter"]
        lines += [f'{name}{{kind="{kind}"}} {size}' for kind, size in sorted(self.sent_by_kind.items())]
        return ("\n".join(lines) + "\n").encode()

    def _send(
        self, request: Request, fd: int, size: int, headers: list[tuple[str, str]], *, kind: str
    ) -> Response:  # fmt: skip
        wanted, status, span = request.headers.get("range"), 200, (0, size)
        if wanted is not None and wanted.startswith("bytes=") and "," not in wanted:
            part = parse_range(wanted, size)
            if part is None:
                os.close(fd)
                return Response(416, [("content-range", f"bytes */{size}")])
            status, span = 206, part
            headers.append(("content-range", f"bytes {part[0]}-{part[0] + part[1] - 1}/{size}"))
        spans = (Span(fd, *span),) if span[1] else ()

        def done(sent: int) -> None:
            os.close(fd)
            self.sent_by_kind[kind] += sent

        return Response(status, headers, spans=spans, done=done)

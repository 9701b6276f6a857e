"""A small hub that speaks the Hugging Face HTTP API over loopback, for the real `huggingface_hub` client.

It pins branches, pages its tree, redirects large files to a "CDN" on another host name, and can be private, gated,
flaky or down. Every request is kept in `requests`, so that a test can say what was sent and how often.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

PAGE = 3  # Entries in one page of a tree: small, so that every listing is paged.


@dataclass
class Repository:
    """One model: revisions by commit, branches by name."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    lfs: frozenset[str] = frozenset()
    private: bool = False
    gated: bool = False


@dataclass
class Hub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    admitted: set[str] = field(default_factory=set)
    """Tokens that gated repositories let in."""
    cut_after: int = 0
    """When not 0: each body breaks after so many bytes, and the next request is served whole."""
    fail_status: int = 0
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Authorization header."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._seen])
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}", self._info)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/revision/{rev}", self._info)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/tree/{rev}", self._tree)
        app.router.add_get("/{repo:[^/]+/[^/]+}/resolve/{rev}/{path:.+}", self._resolve)
        app.router.add_get("/cdn/{sha}/{repo:[^/]+/[^/]+}/{rev}/{path:.+}", self._cdn)
        return app

    @web.middleware
    async def _seen(self, request: web.Request, handler: web.RequestHandler) -> web.StreamResponse:
        auth = request.headers.get("Authorization", "")
        self.requests.append((request.method, request.path, auth))
        if self.fail_status:
            return web.Response(status=self.fail_status, headers={"Retry-After": "0"})
        if auth and auth.removeprefix("Bearer ") not in self.tokens and not request.path.startswith("/cdn/"):
            return web.Response(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        return await handler(request)  # type: ignore[operator,no-any-return]

    def _find(self, request: web.Request) -> tuple[Repository, str]:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        repo = self.repositories.get(request.match_info["repo"])
        if repo is None or (repo.private and not token):
            # The real hub answers 401, not 404, to those who show no token.
            raise _refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        if repo.gated and token not in self.admitted and "/api/" not in request.path:
            raise _refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        rev = request.match_info.get("rev", "main")
        commit = repo.branches.get(rev, rev)
        if commit not in repo.commits:
            raise _refuse(404, "RevisionNotFound", "Invalid rev id")
        return repo, commit

    async def _info(self, request: web.Request) -> web.Response:
        _, commit = self._find(request)
        return web.json_response({"id": request.match_info["repo"], "sha": commit, "siblings": [], "tags": []})

    async def _tree(self, request: web.Request) -> web.Response:
        repo, commit = self._find(request)
        start = int(request.query.get("cursor", "0"))
        entries = [_entry(p, b, p in repo.lfs) for p, b in sorted(repo.commits[commit].items())]
        headers = {}
        if start + PAGE < len(entries):
            following = f"{self.url}{request.path}?recursive=True&cursor={start + PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(entries[start : start + PAGE], headers=headers)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        repo, commit = self._find(request)
        path = request.match_info["path"]
        body = repo.commits[commit].get(path)
        if body is None:
            raise _refuse(404, "EntryNotFound", "Entry not found")
        if path in repo.lfs:
            sha = hashlib.sha256(body).hexdigest()
            place = f"http://localhost:{self.port}/cdn/{sha}/{request.match_info['repo']}/{commit}/{path}"
            return web.Response(status=302, headers={"Location": place, "X-Repo-Commit": commit})
        return await self._send(request, body)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        repo = self.repositories[request.match_info["repo"]]
        return await self._send(request, repo.commits[request.match_info["rev"]][request.match_info["path"]])

    async def _send(self, request: web.Request, body: bytes) -> web.StreamResponse:
        span = request.http_range
        part = body[span]
        status = 206 if "Range" in request.headers else 200
        answer = web.StreamResponse(status=status, headers={"Content-Length": str(len(part))})
        if status == 206:
            first = span.start or 0
            answer.headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        await answer.prepare(request)
        if self.cut_after:
            await answer.write(part[: self.cut_after])
            self.cut_after = 0
            assert request.transport is not None
            request.transport.close()
            return answer
        await answer.write(part)
        return answer


def _refuse(status: int, code: str, message: str) -> web.HTTPException:
    kinds = {401: web.HTTPUnauthorized, 403: web.HTTPForbidden, 404: web.HTTPNotFound}
    return kinds[status](headers={"X-Error-Code": code, "X-Error-Message": message}, text=message)


def _entry(path: str, body: bytes, lfs: bool) -> dict[str, object]:
    oid = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(body), "oid": oid}
    if lfs:
        entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
    return entry


@contextmanager
def serving(app: web.Application) -> Iterator[int]:
    """The application on a free loopback port, in a thread of its own; yields the port."""
    ready, stop = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        stop.set()
        thread.join(20)


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    with serving(hub.app()) as port:
        hub.port = port
        yield hub

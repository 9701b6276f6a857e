"""Owns the agent's local control API: HTTP and JSON on a unix socket that only its own user may open.

    GET  /v1/status                     this node: models, pulls, members, bytes by tier
    POST /v1/pulls                      {"ref", "priority", "origin_use"}; answers JSON lines until the pull has ended
    GET  /v1/documents/<hex>            a manifest document of a model in the store
    POST /v1/models/<hex>/verify        reads the model back; answers JSON lines, the last with what went bad
    PUT  /v1/members                    {"peers": [...]}: replaces a static list of members

A line comes at least once a second, so that a client can tell a slow pull from a dead agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bdn.config import check_socket
from bdn.digest import Digest
from bdn.errors import BdnError, Invalid, Usage
from bdn.policy import OriginUse
from bdn.pulls import Pull, Pulls
from bdn.reference import parse_reference
from bdn.roster import parse_nodes
from bdn.shortage import shortage

LINE_EVERY_S = 0.1
LOOKUP_S = 1.0  # A tag or manifest that takes longer is waited for with lines.
BODY_BYTES_MAX = 1 << 20
Json = Mapping[str, object]


@dataclass(frozen=True)
class Node:
    """What the control API needs of the agent."""

    pulls: Pulls
    status: Callable[[], Awaitable[Json]]
    document: Callable[[Digest], bytes | None]
    verify: Callable[[Digest], Awaitable[tuple[Digest, ...]]]
    set_members: Callable[[tuple[str, ...]], None]
    origin_use: OriginUse
    """For a pull that does not say."""


class ControlServer:
    """Serves one node on one socket path. The path's directory says who may reach it; its mode is 0600."""

    def __init__(self, node: Node, path: Path) -> None:
        self._node, self._path = node, check_socket(path)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Raises Invalid when another agent listens there, or the path cannot be made."""
        _clear(self._path)
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_errors])
        app.router.add_get("/v1/status", self._status)
        app.router.add_post("/v1/pulls", self._pull)
        app.router.add_get("/v1/documents/{hex}", self._document)
        app.router.add_post("/v1/models/{hex}/verify", self._verify)
        app.router.add_put("/v1/members", self._members)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Whoever may connect may read every model here, so the mode is set before anyone can find the name.
            old = os.umask(0o177)
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(old)
            await web.SockSite(self._runner, listener).start()
        except OSError as why:
            listener.close()
            await self._runner.cleanup()
            raise Invalid(f"cannot listen on the control socket: {why.strerror}", where=str(self._path)) from None

    async def stop(self) -> None:
        if self._runner is not None:
            self._path.unlink(missing_ok=True)
            await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await self._node.status())

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request)
        reference = parse_reference(_text(body, "ref"))
        priority, use = body.get("priority", 0), body.get("origin_use") or self._node.origin_use.value
        if not isinstance(priority, int) or not 0 <= priority <= 9:
            raise Usage("priority is a whole number from 0 (a container waits) to 9 (background)")
        if use not in list(OriginUse):
            raise Usage(f"origin_use is one of {', '.join(OriginUse)}")
        asked = asyncio.ensure_future(self._node.pulls.ask(reference, priority=priority, use=OriginUse(str(use))))
        try:
            await asyncio.wait([asked], timeout=LOOKUP_S)
            pull = asked.result() if asked.done() else None  # Raises for a status of its own, before any line.
            answer = await _lines(request)
            while pull is None:
                await _line(answer, {"state": "looking up", "done_bytes": 0, "total_bytes": 0})
                if (await asyncio.wait([asked], timeout=1.0))[0]:
                    why = asked.exception()
                    if isinstance(why, BdnError):
                        await _line(answer, {"state": "failed", "error": error_json(why)})
                        return answer
                    pull = asked.result()
            async for _ in pull.follow(LINE_EVERY_S):
                await _line(answer, pull_json(pull))
            return answer
        finally:
            asked.cancel()

    async def _document(self, request: web.Request) -> web.StreamResponse:
        body = self._node.document(_digest(request))
        if body is None:
            raise Invalid("no such document in the store")
        return web.Response(body=body, content_type="application/json")

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        work = asyncio.ensure_future(self._node.verify(_digest(request)))
        try:
            answer = await _lines(request)
            while not (await asyncio.wait([work], timeout=1.0))[0]:
                await _line(answer, {"state": "verifying"})
            why = work.exception()
            if isinstance(why, BdnError):
                await _line(answer, {"state": "failed", "error": error_json(why)})
            else:
                await _line(answer, {"state": "done", "bad_chunks": [str(d) for d in work.result()]})
            return answer
        finally:
            work.cancel()

    async def _members(self, request: web.Request) -> web.StreamResponse:
        peers = (await _object(request)).get("peers")
        if not isinstance(peers, list) or not all(isinstance(p, str) for p in peers):
            raise Usage("peers is a list of name=host:port")
        try:
            parse_nodes(peers)
        except ValueError as why:
            raise Usage(str(why)) from None
        self._node.set_members(tuple(peers))
        return web.json_response({"peers": peers})


def pull_json(pull: Pull) -> dict[str, object]:
    """A pull as clients see it; these keys stay."""
    ledger, progress = pull.ledger, pull.progress
    value: dict[str, object] = {
        "digest": str(pull.manifest), "name": pull.name, "state": pull.state.value,
        "done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes,
        "seconds": round(pull.seconds, 6), "path": pull.path,
        "bytes_by_tier": {t.value: n for t, n in sorted(ledger.bytes_by_tier.items())},
        "bytes_by_source": dict(sorted(ledger.bytes_by_source.items())),
        "origin_use": pull.use.value, "manifest_from": pull.manifest_from.value,
        "origin_reasons": dict(sorted(ledger.origin_reasons.items())),
    }  # fmt: skip
    if pull.error is not None:
        value["error"] = error_json(pull.error)
    return value


def error_json(why: BdnError) -> dict[str, object]:
    return {"what": why.what, "where": why.where, "hint": why.hint, "exit_code": why.exit_code}


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BdnError as why:
        return web.json_response({"error": error_json(why)}, status=422)
    except Exception as why:
        if (short := shortage(why)) is None:
            raise
        return web.json_response({"error": error_json(short)}, status=422)


async def _object(request: web.Request) -> Mapping[str, object]:
    try:
        value = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError):
        raise Usage("the body is not JSON") from None
    if not isinstance(value, dict):
        raise Usage("the body is not a JSON object")
    return value


def _text(body: Mapping[str, object], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise Usage(f"{key} is missing or not text")
    return value


def _digest(request: web.Request) -> Digest:
    try:
        return Digest.from_hex(request.match_info["hex"])
    except ValueError as why:
        raise Usage(str(why)) from None


async def _lines(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
    await answer.prepare(request)
    return answer


async def _line(answer: web.StreamResponse, value: object) -> None:
    try:
        await answer.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
    except ConnectionResetError:
        # The client went away; the pull stays. Cancelled is how aiohttp ends a handler without a traceback in the log.
        raise asyncio.CancelledError from None


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on any more; one that somebody does is another agent's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except FileNotFoundError:
        return
    except OSError:
        if not path.is_socket():
            raise Invalid("the control socket's path is taken by something else", where=str(path)) from None
        path.unlink(missing_ok=True)
    else:
        raise Invalid("another agent listens on the control socket", where=str(path), hint="name another --socket")
    finally:
        probe.close()

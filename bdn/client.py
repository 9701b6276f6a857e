"""Owns how a command talks to this node's agent, and how the agent's absence and its errors come out as our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bdn.digest import Digest
from bdn.documents import read_manifest_with
from bdn.errors import BdnError, Corrupt, Down, Invalid, Usage
from bdn.manifest import Manifest

SILENT_S = 30.0  # The agent writes a line each second; one that is silent for so long hangs.
LOOK_AGAIN_S = 0.2
_KINDS: Mapping[int, type[BdnError]] = {2: Usage, 3: Corrupt, 4: Down}


class AgentClient:
    """The agent behind one socket. Use as an async context manager."""

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self._path, self._wait_s = path, wait_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AgentClient:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENT_S)
        connector = aiohttp.UnixConnector(path=str(self._path))
        self._session = aiohttp.ClientSession("http://agent", connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def status(self) -> dict[str, Any]:
        async with self._asked("GET", "/v1/status") as answer:
            value: dict[str, Any] = await answer.json()
            return value

    async def pull(self, ref: str, *, priority: int = 0, origin_use: str = "") -> AsyncIterator[dict[str, Any]]:
        """The pull's state again and again, the last one `ready`. Raises the pull's own error."""
        body = {"ref": ref, "priority": priority, "origin_use": origin_use}
        async for line in self._lines("/v1/pulls", body):
            if "error" in line:
                raise _error(line["error"])
            yield line
            if line["state"] == "ready":
                return
        raise Down("the agent stopped before the model was ready", where=str(self._path), hint="run it and ask again")

    async def manifest(self, digest: Digest) -> Manifest:
        """The manifest of a model in the store, checked like one from the origin."""
        return await read_manifest_with(self._document, digest)

    async def _document(self, digest: Digest) -> bytes:
        async with self._asked("GET", f"/v1/documents/{digest.hex}") as answer:
            return await answer.read()

    async def verify(self, digest: Digest) -> tuple[str, ...]:
        """The chunks of a model in the store whose bytes went bad."""
        async for line in self._lines(f"/v1/models/{digest.hex}/verify", {}):
            if "error" in line:
                raise _error(line["error"])
            if line["state"] == "done":
                return tuple(line["bad_chunks"])
        raise Down("the agent stopped before the model was read", where=str(self._path))

    async def set_members(self, peers: tuple[str, ...]) -> None:
        async with self._asked("PUT", "/v1/members", {"peers": list(peers)}):
            pass

    async def _lines(self, target: str, body: Mapping[str, object]) -> AsyncIterator[dict[str, Any]]:
        async with self._asked("POST", target, body) as answer:
            try:
                async for line in answer.content:
                    yield json.loads(line)
            except TimeoutError:
                raise Down(f"the agent said nothing for {SILENT_S:g} s", where=str(self._path)) from None
            except (aiohttp.ClientError, ValueError):
                return  # Cut off in the middle: the caller knows that no end was reached.

    @asynccontextmanager
    async def _asked(
        self, method: str, target: str, body: Mapping[str, object] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            try:
                answer = await self._session.request(method, target, json=body)
                break
            except TimeoutError:
                raise Down(
                    "the agent does not answer",
                    where=str(self._path),
                    hint="its log says why; start it again: what was verified stays",
                ) from None
            except aiohttp.ClientError as why:
                if asyncio.get_running_loop().time() >= deadline:
                    raise _absent(self._path, why) from None
            await asyncio.sleep(LOOK_AGAIN_S)
        async with answer:
            if answer.status == 422:
                raise _error((await answer.json())["error"])
            if answer.status != 200:
                raise Invalid(f"the agent answered {answer.status}", hint="it may be of another version")
            yield answer


def _absent(path: Path, why: Exception) -> BdnError:
    if isinstance(getattr(why, "os_error", None), PermissionError):
        return Invalid("this user may not talk to the agent", where=str(path), hint="run as the agent's user")
    return Down("the agent is not running", where=str(path), hint="start it with `bdn agent`, or name its --socket")


def _error(value: Mapping[str, Any]) -> BdnError:
    """The agent's error, with the exit code that it has there."""
    kind = _KINDS.get(int(value["exit_code"]), Invalid)
    return kind(str(value["what"]), where=str(value["where"]), hint=str(value["hint"]))

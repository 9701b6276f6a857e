"""A whole server on loopback around the fake engine, for tests that speak to it as clients do."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from runtime.config import ServeSettings
from runtime.serve.app import Server
from tests.serve.fake_engine import FakeEngine, planted

SOON_S = 20.0  # no test waits so long unless it has failed


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass
class Running:
    server: Server
    engine: FakeEngine
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.server.port}"

    async def until(self, true: Callable[[], bool]) -> None:
        """Returns once it holds; the loop turns meanwhile."""
        async with asyncio.timeout(SOON_S):
            while not true():  # noqa: ASYNC110 - what it waits for happens in a thread, or in aiohttp
                await asyncio.sleep(0.002)

    async def lanes_free(self) -> None:
        await self.until(lambda: not self.engine.held)

    async def metric(self, name: str, **labels: str) -> float:
        return self.server.meters.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def serving(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[Running]:
    engine = engine or FakeEngine()
    chosen = {"port": 0, "keyless": True, "metrics_open": True} | settings
    if "keys" in chosen:
        chosen["keyless"] = False
    server = Server(ServeSettings(**chosen), lambda: engine)
    await server.start()
    await asyncio.wait_for(server.warm(), SOON_S)
    engine.opened = engine.closed = 0
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SOON_S)) as http:
            yield Running(server, engine, http)
    finally:
        await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * SOON_S):
            await test()

    asyncio.run(bounded())


def served(
    engine: Callable[[], FakeEngine] = FakeEngine, **settings: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Runs `async def test(at, ...)` against a server of its own, with these settings."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def whole(**given: Any) -> None:
            async def once() -> None:
                async with serving(engine(), **settings) as at:
                    await test(at, **given)

            run(once)

        signature = inspect.signature(test)
        others = list(signature.parameters.values())[1:]
        whole.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del whole.__wrapped__  # type: ignore[attr-defined]
        return whole

    return decorate


def heard(pcm16: bytes, rate: int = 24_000) -> set[int]:
    """Whose frames these s16 samples are, by the planted values; at 24 kHz they are exact."""
    assert rate == 24_000
    values = np.abs(np.frombuffer(pcm16, "<i2").astype(int))
    return {int(v) for v in np.unique(values) if v and (values == v).sum() > 200}


def only(seed: int) -> set[int]:
    return {planted(seed)}

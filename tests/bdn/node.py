"""A real agent in a thread of its own, for tests that speak to it as a command does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bdn.agent import Agent, Where
from bdn.config import AgentSettings, ClientSettings, OriginSettings


@contextmanager
def agent(store: Path, origin: Path | str = "", **settings: object) -> Iterator[Where]:
    """Started and stopped around the block; raises what `start` raises."""
    ready, stop = threading.Event(), threading.Event()
    where: list[Where] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        values = {"name": "a", "port": 0, "drain_s": 0.0, **settings}
        node = Agent(AgentSettings(**values), OriginSettings(origin=str(origin)), ClientSettings(store=store))  # type: ignore[arg-type]
        try:
            where.append(await node.start())
        except BaseException as why:
            failed.append(why)
            return
        finally:
            ready.set()
        await asyncio.to_thread(stop.wait)
        await node.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    if failed:
        thread.join(10)
        raise failed[0]
    try:
        yield where[0]
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()

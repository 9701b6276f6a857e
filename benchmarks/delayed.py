"""Owns distance: a proxy on loopback that holds every request back for one round trip, as a server far away does.

`python -m benchmarks.delayed PORT TARGET_PORT RTT_MS`. Answers pass at once, and connecting costs nothing, which only
favours those who connect often.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Answers(asyncio.Protocol):
    """From the server back to the client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, why: Exception | None) -> None:
        self._client.close()


class Requests(asyncio.Protocol):
    """From a client to the server, each piece one round trip late."""

    def __init__(self, target: int, rtt_s: float) -> None:
        self._target, self._rtt_s = target, rtt_s
        self._server: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connecting = asyncio.ensure_future(self._connect(cast(asyncio.Transport, transport)))

    async def _connect(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self._server, _ = await loop.create_connection(lambda: Answers(client), "127.0.0.1", self._target)
        for data in self._early:
            self._server.write(data)

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._rtt_s, self._pass_on, data)

    def _pass_on(self, data: bytes) -> None:
        if self._server is None:
            self._early.append(data)
        elif not self._server.is_closing():
            self._server.write(data)

    def connection_lost(self, why: Exception | None) -> None:
        if self._server is not None:
            self._server.close()


async def main(port: int, target: int, rtt_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Requests(target, rtt_s), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))

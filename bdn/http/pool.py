"""Owns the connections to one kind of source. Origin and peers each have a pool of their own: an origin read that
queued behind waiting peers once read the origin 7.1 times over and then hung."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field

from bdn.errors import SourceDown
from bdn.http.head import Head
from bdn.http.wire import BUFFER_BYTES, Receiver, Wire, connect

IDLE_S = 30.0  # Below the idle limit of servers and balancers, so that a kept connection is rarely a closed one.


@dataclass
class _Host:
    idle: deque[Wire] = field(default_factory=deque)
    open: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Pool:
    """Keep-alive connections by (host, port). Waits for a free one are in order, and bounded by their callers."""

    def __init__(self, *, per_host_max: int, tls: ssl.SSLContext | None = None) -> None:
        self.per_host_max = per_host_max
        self._tls = tls
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._hosts: dict[tuple[str, int], _Host] = {}
        self._closed = False

    async def exchange(
        self,
        name: str,
        host: str,
        port: int,
        request: bytes,
        receiver: Receiver,
        *,
        stall_s: float,
        no_body: bool = False,
    ) -> tuple[Head, bytes]:
        """One request and its answer. A kept connection that the other side had closed is replaced, once."""
        for _ in range(2):
            wire = await self._acquire(name, host, port)
            kept = wire.used
            try:
                return await wire.exchange(request, receiver, stall_s=stall_s, no_body=no_body)
            except SourceDown:
                if not kept or wire.answered:
                    raise
                self._drop_idle(host, port)
            finally:
                self._release(host, port, wire)
        raise SourceDown(name, "it closes every connection without an answer")

    def close(self) -> None:
        self._closed = True
        for key in self._hosts:
            self._drop_idle(*key)

    async def _acquire(self, name: str, host: str, port: int) -> Wire:
        place = self._hosts.setdefault((host, port), _Host())
        while True:
            now = asyncio.get_running_loop().time()
            while place.idle:
                wire = place.idle.pop()
                if wire.usable and now - wire.idle_since < IDLE_S:
                    return wire
                wire.abort()
                place.open -= 1
            if place.open < self.per_host_max:
                break
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            place.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake(place)
                elif turn in place.waiting:
                    place.waiting.remove(turn)
                raise
        place.open += 1
        try:
            return await connect(name, host, port, self._buffer, self._tls)
        except BaseException:
            place.open -= 1
            self._wake(place)
            raise

    def _release(self, host: str, port: int, wire: Wire) -> None:
        place = self._hosts[(host, port)]
        if wire.usable and not self._closed:
            wire.idle_since = asyncio.get_running_loop().time()
            place.idle.append(wire)
        else:
            wire.abort()
            place.open -= 1
        self._wake(place)

    def _wake(self, place: _Host) -> None:
        while place.waiting:
            turn = place.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _drop_idle(self, host: str, port: int) -> None:
        place = self._hosts[(host, port)]
        while place.idle:
            place.idle.pop().abort()
            place.open -= 1

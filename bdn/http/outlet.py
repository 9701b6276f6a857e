"""Owns the sending half of one accepted socket: heads, bodies and spans of files, as fast as the asker takes them.

A span goes by os.sendfile, so that none of its bytes passes through Python; over TLS in pieces.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from dataclasses import dataclass, field

from bdn.http.pace import Pace
from bdn.ports import Span

SEND_BYTES_MAX = 1 << 20  # One connection's turn; a larger one would let a fast asker hold the loop.
TURN_BYTES_MAX = 4 << 20
PACED_BYTES = 64 << 10
LEAST_BYTES = 4 << 10  # Taken within stall_s: who takes less only keeps an upload's place.
TLS_PIECE_BYTES = 64 << 10
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass
class Sent:
    """What left this server, by who asked; the receipt's other side."""

    bytes_by_asker: Counter[str] = field(default_factory=Counter)
    bytes_total: int = 0
    """Of spans alone: what a chunk is made of."""
    requests: int = 0
    by_status: Counter[int] = field(default_factory=Counter)


class Outlet:
    """Made with its socket, which stays its connection's to close; raises OSError when the asker has gone."""

    def __init__(self, sock: socket.socket, sent: Sent, pace: Pace) -> None:
        self._sock, self._fd, self._sent, self._pace = sock, sock.fileno(), sent, pace
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._loop = asyncio.get_running_loop()
        self._writable: asyncio.Future[None] | None = None
        self._writing = self._closed = False
        self.out = 0
        """Bytes that went out of files."""
        self._marked_at, self._taken = self._loop.time(), 0
        """When the answer was last looked at, and how much of anything was taken since."""

    def begin(self) -> None:
        """An answer begins: the time in which its asker must take something runs from now."""
        self._marked_at, self._taken = self._loop.time(), 0

    def stalled(self, now: float, stall_s: float) -> bool:
        """Whether the asker is what is waited for and has taken next to nothing for `stall_s`. Call it now and then."""
        if self._writable is None or now - self._marked_at <= stall_s:
            return False
        late, self._marked_at, self._taken = self._taken < LEAST_BYTES, now, 0
        return late

    def close(self) -> None:
        """Before the socket is closed."""
        self._closed = True
        self._loop.remove_writer(self._fd)

    async def send(self, data: bytes, *, more: bool = False) -> None:
        """All of it. more: something follows at once, so that a small head needs no packet of its own."""
        view = memoryview(data)
        while view:
            try:
                size = self._sock.send(view, socket.MSG_MORE if more and self._tls is None else 0)
            except WOULD_BLOCK:
                await self._until_writable()
                continue
            view = view[size:]
            self._taken += size

    async def send_span(self, span: Span, asker: str) -> None:
        at, end, turn = span.offset, span.offset + span.size, 0
        sent, pace = self._sent, self._pace
        limit = SEND_BYTES_MAX if pace.bytes_per_s <= 0 else PACED_BYTES
        while at < end:
            try:
                if self._tls is None:
                    size = os.sendfile(self._fd, span.fd, at, min(end - at, limit))
                else:
                    size = self._tls.send(os.pread(span.fd, min(end - at, TLS_PIECE_BYTES), at))
            except WOULD_BLOCK:
                await self._until_writable()
                turn = 0
                continue
            if size == 0:
                raise OSError("the file is shorter than its chunk")
            at += size
            turn += size
            self.out += size
            self._taken += size
            sent.bytes_total += size
            sent.bytes_by_asker[asker] += size
            if pace.bytes_per_s > 0:
                await pace.take(size)
            elif turn >= TURN_BYTES_MAX:
                turn = 0
                await asyncio.sleep(0)

    async def _until_writable(self) -> None:
        if self._closed:
            raise OSError("closed")
        self._writable = self._loop.create_future()
        if not self._writing:
            self._loop.add_writer(self._fd, self._on_writable)
            self._writing = True
        try:
            await self._writable
        finally:
            self._writable = None

    def _on_writable(self) -> None:
        """Stays registered through a body: one epoll_ctl for a response instead of two for every full buffer."""
        if self._writable is None:
            self._loop.remove_writer(self._fd)
            self._writing = False
        elif not self._writable.done():
            self._writable.set_result(None)

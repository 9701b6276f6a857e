"""Owns the sending side: HTTP/1.1 on raw sockets, bodies by os.sendfile, so that no body byte passes through Python.

One engine for two handlers: a node that answers its peers, and a directory that serves as an origin. It decides
nothing about content; a handler does. `benchmarks/bench_serve.py` holds it against nginx's sendfile and aiohttp's
FileResponse, which has none under uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from bdn.errors import Invalid
from bdn.http.head import HEAD_BYTES_MAX, BadMessage, Request, parse_request, response_bytes
from bdn.http.outlet import WOULD_BLOCK, Outlet, Sent
from bdn.http.pace import Pace, set_congestion
from bdn.ports import Span

BODY_BYTES_MAX = 4 << 20  # Requests carry probes and coordinators' messages, never weights.
JOINED_BYTES = 64 << 10  # A longer body is no copy with its head before it: many askers would hold one each.
CONNECTIONS_MAX = 1024
WAITING = b"HTTP/1.1 102 Processing\r\n\r\n"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler wants sent. `spans` of open files follow `body`; `done` hears once how many bytes went out."""

    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    spans: Sequence[Span] = ()
    done: Callable[[int], None] = lambda sent: None

    @property
    def length(self) -> int:
        return len(self.body) + sum(s.size for s in self.spans)


class Handler(Protocol):
    async def handle(self, request: Request, body: bytes) -> Response:
        """May take long: the engine tells the asker that it is still waiting. Cancelled when the asker goes away."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    heartbeat_s: float = 1.0
    """How often an asker hears that its answer is still being waited for; well below any asker's stall_s."""
    stall_s: float = 30.0
    """An asker that has not finished its request after so long, or takes next to nothing of an answer, is dropped."""
    idle_s: float = 120.0
    connections_max: int = CONNECTIONS_MAX
    bytes_per_s: float = 0.0
    """Upload cap over all connections; 0 for none."""
    congestion: str = ""
    """TCP congestion control of accepted connections, such as `cubic`; empty leaves the machine's default."""


class HttpServer:
    """Serves one handler on one listening socket."""

    def __init__(
        self, handler: Handler, limits: ServerLimits | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.handler = handler
        self.tls = tls
        self.limits = limits or ServerLimits()
        self.sent = Sent()
        self.draining = False
        self.pace = Pace(self.limits.bytes_per_s)
        self.answers: set[asyncio.Task[None]] = set()
        """Those under way, of connections that were dropped too: each holds a lease until it ends."""
        self._connections: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._resting = False
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port it got (the one asked for, unless that was 0)."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            set_congestion(listener, self.limits.congestion)
            listener.bind((host, port))
            listener.listen(1024)
        except OSError as why:
            listener.close()
            raise Invalid(
                f"cannot listen: {why.strerror or why}",
                where=f"{host}:{port}",
                hint="name a free port and an address of this machine",
            ) from why
        listener.setblocking(False)
        self._listener = listener
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.fileno(), self._accept)
        self._sweep()
        return int(listener.getsockname()[1])

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """No new connections; those in the middle of an answer get `drain_s` to finish it."""
        loop = asyncio.get_running_loop()
        self.draining = True
        if self._listener is not None:
            loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            if not connection.busy:
                connection.close()
        if self.answers and drain_s > 0:
            await asyncio.wait(self.answers, timeout=drain_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.close()
        if self.answers:
            await asyncio.wait(self.answers)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: the backlog waits for the next sweep. Asking again at once would be a hot loop.
                asyncio.get_running_loop().remove_reader(self._listener.fileno())
                self._resting = True
                return
            if len(self._connections) >= self.limits.connections_max:
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._connections.add(_Connection(self, sock))

    def _sweep(self) -> None:
        """One coarse timer for all connections, not one each: deadlines here are seconds, connections thousands."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.check(now)
        if self._resting and self._listener is not None:
            self._resting = False
            loop.add_reader(self._listener.fileno(), self._accept)
        self._sweeper = loop.call_later(1.0, self._sweep)

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection:
    """One accepted socket. Reads while it answers, so that an asker that goes away cancels its answer at once."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self._server, self._sock, self._fd = server, sock, sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._outlet = Outlet(sock, server.sent, server.pace)
        self.task: asyncio.Task[None] | None = None
        self._asked_at = self._loop.time()
        """When its request began to come, or its last answer ended."""
        self._closed = False
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._shaking_hands = self._tls is not None
        self._reading = True
        self._beating: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def busy(self) -> bool:
        return self.task is not None

    def check(self, now: float) -> None:
        limits = self._server.limits
        if not self.busy:
            late = now - self._asked_at > (limits.stall_s if self._buffer else limits.idle_s)
        else:
            late = self._outlet.stalled(now, limits.stall_s)
        if late:
            self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._outlet.close()
        self._stop_beating()
        if self.task is not None:
            self.task.cancel()
        self._sock.close()
        self._server.forget(self)

    # Reading

    def _on_readable(self) -> None:
        try:
            if self._shaking_hands and self._tls is not None:
                self._tls.do_handshake()
                self._shaking_hands = False
            data = self._sock.recv(64 << 10)
            while self._tls is not None and data and self._tls.pending():  # Decrypted already: no event will tell.
                data += self._sock.recv(64 << 10)
        except WOULD_BLOCK:
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        if not self._buffer:
            self._asked_at = self._loop.time()
        self._buffer += data
        if self.busy:
            if len(self._buffer) > HEAD_BYTES_MAX:  # It sends faster than it is answered: stop listening for now.
                self._loop.remove_reader(self._fd)
                self._reading = False
            return
        self._next_request()

    def _next_request(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                self._refuse(400, "a head that is too long")
            return
        try:
            request = parse_request(bytes(self._buffer[:end]))
            length = request.length
        except BadMessage as why:
            self._refuse(400, str(why))
            return
        if length > BODY_BYTES_MAX:
            self._refuse(413, "a body that is too long")
            return
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        self.task = self._loop.create_task(self._answer(request, body))
        self._server.answers.add(self.task)
        self.task.add_done_callback(self._server.answers.discard)

    def _refuse(self, status: int, why: str) -> None:
        head = response_bytes(status, HTTPStatus(status).phrase, [("content-length", "0"), ("connection", "close")])
        with contextlib.suppress(OSError):
            self._sock.send(head)
        self._server.sent.by_status[status] += 1
        self.close()

    # Answering

    async def _answer(self, request: Request, body: bytes) -> None:
        keep = request.keep_alive
        waits = "x-bdn-asker" in request.headers
        beat = self._loop.call_later(self._server.limits.heartbeat_s, self._beat) if waits else None
        self._beating = beat
        try:
            response = await self._server.handler.handle(request, body)
            self._stop_beating()
            keep = keep and not self._server.draining
            await self._send(request, response, keep)
        except OSError:
            keep = False  # The asker went away in the middle; whoever holds a lease has heard through `done`.
        except asyncio.CancelledError:
            keep = False
        except Exception:
            log.exception("answering %s %s failed", request.method, request.path)
            self._refuse(500, "a defect")
            keep = False
        self._stop_beating()
        self.task, self._asked_at = None, self._loop.time()
        if not keep:
            self.close()
        elif not self._closed:
            if not self._reading:
                self._loop.add_reader(self._fd, self._on_readable)
                self._reading = True
            self._next_request()

    def _beat(self) -> None:
        """Slow is not silent: an asker leaves a node that says nothing, and waits for one that says it waits too."""
        try:
            if self._sock.send(WAITING) != len(WAITING):
                self.close()
                return
        except WOULD_BLOCK:
            pass
        except OSError:
            self.close()
            return
        self._beating = self._loop.call_later(self._server.limits.heartbeat_s, self._beat)

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _send(self, request: Request, response: Response, keep: bool) -> None:
        outlet = self._outlet
        before = outlet.out
        outlet.begin()
        try:
            headers = [("content-length", str(response.length)), *response.headers]
            if not keep:
                headers.append(("connection", "close"))
            head = response_bytes(response.status, HTTPStatus(response.status).phrase, headers)
            self._server.sent.requests += 1
            self._server.sent.by_status[response.status] += 1
            if request.method == "HEAD":
                await outlet.send(head)
                return
            if len(response.body) <= JOINED_BYTES:
                await outlet.send(head + response.body, more=bool(response.spans))
            else:
                await outlet.send(head, more=True)
                await outlet.send(response.body, more=bool(response.spans))
            asker = request.headers.get("x-bdn-asker", "")
            for span in response.spans:
                await outlet.send_span(span, asker)
        finally:
            response.done(outlet.out - before)

"""Owns one client connection: a request out, a response in, its body handed on while it is hot in cache.

A BufferedProtocol that reads into one small buffer shared by all connections of a loop (get_buffer, read and
buffer_updated happen in one turn), so that socket, digest and disk all see the same 256 KiB of cache.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from bdn.errors import BdnError, SourceDown, SourceSilent
from bdn.http.head import HEAD_BYTES_MAX, BadMessage, Head, parse_head
from bdn.http.lowwater import LOOK_S, LowWater

BUFFER_BYTES = 256 << 10
HEADS_BYTES = 1 << 10  # Read with a head at most: what follows it there is copied, the rest of the body is not.
WORDS_BYTES_MAX = 64 << 10  # Of an answer that is not the one asked for: enough for an error's XML, no more.
LEAST_BYTES = 4 << 10  # Of a body, within stall_s: a source that brings less only keeps the connection.
CONNECT_S = 3.0  # A dead node must not cost the time of a slow one.

Write = Callable[[memoryview], None]


class Landing(Protocol):
    """A sink that may have memory to read the socket into: no buffer of ours between."""

    def room(self) -> memoryview | None: ...

    def filled(self, size: int) -> None: ...

    def hold(self, resume: Callable[[], None]) -> bool: ...


class Receiver(Protocol):
    """What wants a response's body."""

    def begin(self, head: Head) -> Write | None:
        """Where the body goes, or None to have it returned (bounded). Raises what makes the response unusable."""

    def landing(self) -> Landing | None:
        """After `begin`: where the body can go without a copy, if there is such a place."""


class Wire(asyncio.BufferedProtocol):
    """One connection, one exchange at a time. Any fault closes it; an exchange that is cancelled does too."""

    def __init__(self, name: str, buffer: memoryview) -> None:
        self.name = name
        self.idle_since = 0.0
        self.used = False
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Head] | None = None
        self._receiver: Receiver | None = None
        self._head: Head | None = None
        self._head_bytes = bytearray()
        self._write: Write | None = None
        self._landing: Landing | None = None
        self._landed = self._held = False
        self._words = bytearray()
        self._left = 0
        self._low = LowWater()
        self._stall_s = 0.0
        self._no_body = False
        self._answered = False
        self._moved_at = 0.0
        self._marked_at, self._marked_left = 0.0, 0
        """When the body was last looked at, and how much of it was to come then."""

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def answered(self) -> bool:
        """Whether any byte of the last exchange came: if none did, the request may be tried on another connection."""
        return self._answered

    async def exchange(
        self, request: bytes, receiver: Receiver, *, stall_s: float, no_body: bool = False
    ) -> tuple[Head, bytes]:
        """The response's head, and its body where the receiver did not take it.

        Raises SourceSilent after `stall_s` without a byte (an interim 102 counts as one) or with next to nothing of a
        body that has begun, SourceDown when the other
        side hangs up or speaks something else, and whatever the receiver raises.
        """
        if self._transport is None or self._done is not None:
            raise SourceDown(self.name, "the connection is closed")
        self._receiver, self._head, self._write, self._landing = receiver, None, None, None
        self._head_bytes, self._words = bytearray(), bytearray()
        self._no_body, self._answered = no_body, False
        self._moved_at = self._loop.time()
        done = self._done = self._loop.create_future()
        self._stall_s = stall_s
        self._watcher = self._loop.call_later(stall_s, self._watch)
        self._transport.write(request)
        try:
            head = await done
        except BaseException:
            self.abort()
            raise
        finally:
            self._watcher.cancel()
            self._done, self._receiver, self._write, self._landing = None, None, None, None
        self.used = True
        if not head.keep_alive:
            self.abort()
        return head, bytes(self._words)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._low.leave()

    def _watch(self) -> None:
        now, stall_s = self._loop.time(), self._stall_s
        quiet = 0.0 if self._held else now - self._moved_at
        if self._low.up:
            # Nothing is said of the source in this turn: bytes may have come that only the next one reads.
            if quiet >= self._look_s:
                self._low.lower()
            self._watcher = self._loop.call_later(self._look_s, self._watch)
        elif quiet >= stall_s or self._drips(now, stall_s):
            self._fail(SourceSilent(self.name, stall_s))
        else:
            self._watcher = self._loop.call_later(stall_s - quiet, self._watch)

    @property
    def _look_s(self) -> float:
        return min(LOOK_S, self._stall_s / 2)

    def _drips(self, now: float, stall_s: float) -> bool:
        """Whether a body has begun and hardly moves: a byte now and then is no life sign."""
        if self._head is None or self._held or now - self._marked_at < stall_s:
            return False
        brought, self._marked_at, self._marked_left = self._marked_left - self._left, now, self._left
        return brought < LEAST_BYTES

    def _fail(self, why: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(why)
        self.abort()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            assert self._head is not None
            self._low.end(self._loop.time())
            self._done.set_result(self._head)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's.
        if transport.get_extra_info("sslcontext") is None:
            self._low = LowWater(transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._low.leave()
        self._fail(SourceDown(self.name, f"the connection was lost ({exc or 'closed by the other side'})"))

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._landing.room() if self._landing is not None and self._left > 0 else None
        self._landed = room is not None
        if room is None:
            return self._buffer if self._head is not None else self._buffer[:HEADS_BYTES]
        return room

    def buffer_updated(self, nbytes: int) -> None:
        if self._landed and self._landing is not None and self._done is not None:
            self._land(self._landing, nbytes)
            return
        if self._done is None or self._done.done():
            self.abort()  # Bytes that nobody asked for: what follows could not be told from an answer.
            return
        self._moved_at = self._loop.time()
        self._answered = True
        view = self._buffer[:nbytes]
        try:
            if self._head is None:
                at = self._take_head(view)
                if at < 0:
                    return
                view = view[at:]
            self._take_body(view)
        except BadMessage as why:
            self._fail(SourceDown(self.name, f"it does not speak HTTP as expected: {why}"))
        except BdnError as why:
            self._fail(why)
        except Exception as why:  # A defect in a receiver must reach the one who waits, not the event loop's log.
            self._fail(why)

    def _land(self, landing: Landing, nbytes: int) -> None:
        self._moved_at = self._loop.time()
        self._left -= nbytes
        try:
            landing.filled(nbytes)
        except Exception as why:  # Such as a full disk: for the one who waits.
            self._fail(why)
            return
        if self._left < self._low.bytes:
            self._low.fit(self._left)
        if self._left == 0:
            self._finish()
        elif self._transport is not None and landing.hold(self._resume):
            self._held = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._held, self._moved_at = False, self._loop.time()
        self._marked_at, self._marked_left = self._moved_at, self._left
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def _take_head(self, view: memoryview) -> int:
        """How many bytes of `view` belong to heads; -1 while the final head is incomplete."""
        before = len(self._head_bytes)
        self._head_bytes += view[: HEAD_BYTES_MAX + 4 - before]
        start = 0
        while True:
            end = self._head_bytes.find(b"\r\n\r\n", start)
            if end < 0:
                if len(self._head_bytes) - start > HEAD_BYTES_MAX:
                    raise BadMessage("a head that is too long")
                del self._head_bytes[:start]
                return -1
            head = parse_head(bytes(self._head_bytes[start:end]))
            start = end + 4
            if not head.informational:
                break
        self._start_body(head)
        return start - before

    def _start_body(self, head: Head) -> None:
        self._head = head
        if self._no_body or head.status in (204, 304):
            self._left = 0
            return
        length = head.length
        if length is None:
            raise BadMessage("no Content-Length")
        assert self._receiver is not None
        self._write = self._receiver.begin(head)
        if self._write is None and length > WORDS_BYTES_MAX:
            raise BadMessage(f"status {head.status} with a body of {length} bytes")
        self._left = self._marked_left = length
        self._marked_at = self._loop.time()
        self._landing = self._receiver.landing() if self._write is not None else None
        self._low.begin(length, self._marked_at)
        if self._low.up:
            self._watcher.cancel()
            self._watcher = self._loop.call_later(self._look_s, self._watch)

    def _take_body(self, view: memoryview) -> None:
        if len(view) > self._left:
            raise BadMessage("more bytes than its Content-Length says")
        if view:
            self._left -= len(view)
            if self._left < self._low.bytes:
                self._low.fit(self._left)
            if self._write is not None:
                self._write(view)
            else:
                self._words += view
        if self._left == 0:
            self._finish()


async def connect(name: str, host: str, port: int, buffer: memoryview, tls: ssl.SSLContext | None) -> Wire:
    """Raises SourceDown when nobody answers within CONNECT_S."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, wire = await loop.create_connection(lambda: Wire(name, buffer), host, port, ssl=tls)
    except TimeoutError:
        raise SourceDown(name, f"no connection within {CONNECT_S:g} s") from None
    except ssl.SSLError as why:
        raise SourceDown(name, f"TLS failed: {why.reason or why}") from why
    except OSError as why:
        raise SourceDown(name, why.strerror or str(why)) from why
    except (ValueError, OverflowError) as why:  # A host that cannot be one, such as a name of 64 letters and no dot.
        raise SourceDown(name, f"{host[:80]!r} is no address: {why}") from why
    return wire

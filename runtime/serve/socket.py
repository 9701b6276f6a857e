"""One WebSocket, any of the protocols: reads what the client asks, runs a pump per stream, and closes in good order.

The promises kept here: an error message goes out before every close that is not a normal end; after the answer to a
cancel nothing of that stream follows; a socket that is gone frees all its lanes at once; a stream's failure does not
touch the others on its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

from aiohttp import WSCloseCode, WSMsgType, web

from runtime.admission import KeyLimits
from runtime.serve.door import log
from runtime.serve.hub import Hub, Refused, Stream
from runtime.serve.wire import (
    CancelAsk,
    Done,
    EndAsk,
    Failed,
    FlushAsk,
    Inbound,
    Outbound,
    Ping,
    Pong,
    Say,
    Setup,
    Wire,
    WireError,
    close_code,
)

# A peer that takes nothing gets this long to take the last words before its connection is cut.
LAST_WORDS_S = 2.0
# The first byte of a frame that is a whole message.
TEXT, BINARY = 0x80 | WSMsgType.TEXT, 0x80 | WSMsgType.BINARY
# Ids of streams that ended are remembered so far: text that crossed the end on its way is late, not wrong.
ENDED_IDS_MAX = 256


class _Response(web.WebSocketResponse):
    """aiohttp closes by itself on broken frames, before anybody could say why; this says why first."""

    def __init__(self, *, heartbeat_s: float, message_bytes_max: int, wire: Wire) -> None:
        super().__init__(heartbeat=heartbeat_s, max_msg_size=message_bytes_max, compress=False, timeout=LAST_WORDS_S)
        self._wire, self._limit = wire, message_bytes_max
        self.said_why = False

    async def close(
        self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True
    ) -> bool:
        if code in (WSCloseCode.PROTOCOL_ERROR, WSCloseCode.MESSAGE_TOO_BIG, WSCloseCode.INVALID_TEXT):
            large = f"a message may hold {self._limit} bytes at most"
            broken = f"the WebSocket frame cannot be read (close code {code})"
            too_large = code == WSCloseCode.MESSAGE_TOO_BIG
            await self.say_why(Failed(None, *(("too_large", large) if too_large else ("malformed", broken))))
        return await super().close(code=code, message=message, drain=drain)

    async def say_why(self, why: Failed) -> None:
        if self.said_why or self.closed:
            return
        self.said_why = True
        frame = self._wire.render(why)
        with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await _send(self, frame)


async def _send(ws: web.WebSocketResponse, message: str | bytes | None) -> None:
    if isinstance(message, str):
        await ws.send_str(message)
    elif message is not None:
        await ws.send_bytes(message)


def framed(message: str | bytes) -> tuple[bytes, bytes]:
    """The WebSocket frame of a message as a server sends it: whole, neither masked nor compressed (RFC 6455, 5.2).

    In two parts, so that sound is copied once, when all parts of all messages are joined.
    """
    kind, data = (TEXT, message.encode()) if isinstance(message, str) else (BINARY, message)
    size = len(data)
    if size < 126:
        return struct.pack(">BB", kind, size), data
    if size < 1 << 16:
        return struct.pack(">BBH", kind, 126, size), data
    return struct.pack(">BBQ", kind, 127, size), data


class Conversation:
    """The streams of one socket by the client's ids. `first` is a setup that the URL already gave."""

    def __init__(self, hub: Hub, wire: Wire, key: KeyLimits, ws: _Response, request: web.Request) -> None:
        assert request.transport
        self._hub, self._wire, self._key, self._ws, self._transport = hub, wire, key, ws, request.transport
        self._taken = request.writer.drain
        self._streams: dict[str | None, Stream] = {}
        self._pumps: dict[str | None, asyncio.Task[None]] = {}
        self._ended: dict[str | None, None] = {}  # in order of ending
        self._opened = 0
        self._closing: asyncio.Task[None] | None = None

    async def run(self, first: Setup | None = None) -> None:
        try:
            if first:
                await self._obey_all((first,))
            async for message in self._ws:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._read(message.data)
        except ConnectionError:
            raise
        except Exception as why:
            log().exception("a conversation failed")
            await self._close(Failed(None, "internal", f"the server failed: {type(why).__name__}"))
        finally:
            await self._leave()

    async def goodbye(self, code: str, message: str) -> None:
        """Says why and closes; for the end of the server and for sockets that may not stay."""
        await self._close(Failed(None, code, message))

    async def _read(self, data: str | bytes) -> None:
        try:
            messages = self._wire.parse(data)
        except WireError as why:
            # A frame nobody can read leaves no way to know what the rest means; a wrong value spoils one stream.
            await self._refuse(why, fatal=why.code == "malformed" or why.req_id is None)
            return
        await self._obey_all(messages)

    async def _obey_all(self, messages: tuple[Inbound, ...]) -> None:
        for message in messages:
            try:
                await self._obey(message)
            except WireError as why:
                fatal = isinstance(message, Setup) and message.close_on_end
                await self._refuse(why, fatal=fatal or why.req_id is None)
                return

    async def _obey(self, message: Inbound) -> None:
        match message:
            case Ping(token=token):
                await self._tell(Pong(token))
            case Setup():
                await self._open(message)
            case Say(req_id=req_id, text=text):
                if stream := self._find(req_id):
                    await stream.say(text)
            case FlushAsk(req_id=req_id, mark=mark):
                if stream := self._find(req_id):
                    stream.flush(mark)
            case EndAsk(req_id=req_id):
                if stream := self._find(req_id):
                    stream.end()
            case CancelAsk(req_id=req_id):
                await self._cancel(req_id)

    async def _open(self, setup: Setup) -> None:
        if setup.req_id in self._streams:
            raise WireError("id_in_use", "a stream with this id is still open, and goes on", setup.req_id)
        if len(self._streams) >= self._hub.settings.socket_streams_max:
            raise WireError(
                "too_many_streams", f"{len(self._streams)} streams are open on this socket", setup.req_id
            )
        self._opened += 1
        stream = self._hub.open(setup, self._key, number=self._opened, protocol=self._wire.name)
        stream.on_stall = self._stalled
        self._streams[setup.req_id] = stream
        self._ended.pop(setup.req_id, None)
        await self._tell(stream.ready)
        self._pumps[setup.req_id] = asyncio.create_task(self._pump(stream))

    async def _pump(self, stream: Stream) -> None:
        """Everything of one stream, until its last message."""
        try:
            try:
                await self._send_all(stream)
            except (ConnectionError, RuntimeError):
                raise
            except Exception as why:
                log().exception("a stream failed")
                stream.fail("internal", f"the server failed: {type(why).__name__}")
                await self._send_all(stream)
        except (ConnectionError, RuntimeError):
            stream.cancel()  # the socket is gone; the reader of it ends the rest
        finally:
            if self._pumps.get(stream.setup.req_id) is asyncio.current_task():
                del self._pumps[stream.setup.req_id]

    async def _send_all(self, stream: Stream) -> None:
        while outs := await stream.some():
            last = outs[-1]
            if not isinstance(last, Done | Failed):
                await self._write(outs)
                continue
            await self._write(outs[:-1])
            self._retire(stream.setup.req_id)
            await self._last(last, close=stream.setup.close_on_end)

    async def _write(self, outs: list[Outbound]) -> None:
        """All of them in one piece, past aiohttp, which takes each on a way of its own; back once more can be taken."""
        parts: list[bytes] = []
        for out in outs:
            if (message := self._wire.render(out)) is not None:
                parts += framed(message)
        if self._ws.closed or self._transport.is_closing():
            raise ConnectionResetError("the socket is closed")
        if parts:
            self._transport.write(b"".join(parts))
            await self._taken()

    async def _last(self, out: Done | Failed, *, close: bool) -> None:
        """The last message of a stream, and the close where the stream was the socket's only purpose."""
        if not close:
            await self._tell(out)
        elif isinstance(out, Failed):
            self._closing = asyncio.create_task(self._close(out))
        else:
            await self._tell(out)
            self._closing = asyncio.create_task(self._hang_up(int(WSCloseCode.OK), b""))

    async def _cancel(self, req_id: str | None) -> None:
        stream = self._find(req_id)
        if stream is None:
            return
        self._retire(req_id)
        stream.cancel()
        pump = self._pumps.pop(req_id, None)
        if pump:
            pump.cancel()
        await self._tell(Done(req_id, stream.number, stream.sent_s, cancelled=True))

    def _find(self, req_id: str | None) -> Stream | None:
        """The open stream of that id; None if it has ended already. Raises WireError if it never was."""
        if req_id not in self._streams and req_id not in self._ended:
            raise WireError("unknown_stream", "no stream with this id was set up on this socket", req_id)
        return self._streams.get(req_id)

    def _retire(self, req_id: str | None) -> None:
        self._streams.pop(req_id, None)
        self._ended[req_id] = None
        if len(self._ended) > ENDED_IDS_MAX:
            del self._ended[next(iter(self._ended))]

    async def _refuse(self, why: WireError, *, fatal: bool) -> None:
        retry_after_s = why.retry_after_s if isinstance(why, Refused) else None
        failed = Failed(why.req_id, why.code, str(why), retry_after_s)
        stream = self._streams.get(why.req_id)
        over = stream is not None and why.code not in ("invalid", "id_in_use")
        if fatal:
            if stream and over:
                self._hub.drop(stream, why.code)
            await self._close(failed)
        elif stream and over:
            stream.fail(why.code, str(why))  # its pump says so, as its last word
        else:
            await self._tell(failed)

    async def _tell(self, out: Outbound) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await _send(self._ws, self._wire.render(out))

    def _stalled(self) -> None:
        """The reader was given up: say so if it can still be said, then cut. It may not hold even this task up."""
        why = Failed(None, "slow_reader", "the sound was not read in time")
        self._closing = self._closing or asyncio.create_task(self._close(why))

    async def _close(self, why: Failed) -> None:
        await self._ws.say_why(why)
        await self._hang_up(close_code(why.code), why.message.encode()[:120])

    async def _hang_up(self, code: int, message: bytes) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._ws.close(code=code, message=message)
            return  # aiohttp has closed the transport itself
        self._transport.abort()

    async def _leave(self) -> None:
        for stream in self._streams.values():
            stream.cancel()
        tasks = [*self._pumps.values(), *([self._closing] if self._closing else [])]
        for task in self._pumps.values():
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def response(hub: Hub, wire: Wire) -> _Response:
    return _Response(
        heartbeat_s=hub.settings.heartbeat_s, message_bytes_max=hub.settings.message_bytes_max, wire=wire
    )

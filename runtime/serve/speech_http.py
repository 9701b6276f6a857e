"""Speech over plain HTTP: one text in, sound out as it is made; Gradium's, OpenAI's and our own POST.

A failure before the first sound is an HTTP status. After it the connection is cut without its proper end, so that no
client takes a broken answer for a short one.
"""

from __future__ import annotations

import contextlib

from aiohttp import web

from runtime.serve import gradium, native, openai
from runtime.serve.door import Door, body_object, bound_send_buffer
from runtime.serve.hub import Hub, Stream
from runtime.serve.wire import (
    TEXT_CHARS_MAX,
    Audio,
    Done,
    Failed,
    FlushAsk,
    Outbound,
    Say,
    Setup,
    WireError,
    get_flag,
    get_text,
    required_text,
    spec_of,
)


class SpeechHttp:
    def __init__(self, hub: Hub, door: Door) -> None:
        self._hub, self._door = hub, door

    async def openai(self, request: web.Request) -> web.StreamResponse:
        key = self._door.enter(request)
        ask = openai.parse_speech(await body_object(request))
        stream = self._hub.open(ask.setup, key, number=1, protocol="openai", http=True)
        try:
            await stream.say(ask.text)
            stream.end()
            if ask.sse:
                return await _answer(request, stream, _Sse(len(ask.text)))
            return await _answer(request, stream, _Raw(stream))
        finally:
            stream.cancel()

    async def gradium(self, request: web.Request) -> web.StreamResponse:
        key = self._door.enter(request)
        body = await body_object(request)
        setup = gradium.setup_of(body, None)
        text = required_text(body, "text", chars_max=TEXT_CHARS_MAX, piece=True)
        only_audio = get_flag(body, "only_audio", False)
        stream = self._hub.open(setup, key, number=1, protocol="gradium-http", http=True)
        try:
            await _say(stream, setup, text)
            return await _answer(request, stream, _Raw(stream) if only_audio else _Lines(stream))
        finally:
            stream.cancel()

    async def native(self, request: web.Request) -> web.StreamResponse:
        key = self._door.enter(request)
        body = await body_object(request)
        text = required_text(body, "text", chars_max=TEXT_CHARS_MAX, piece=True)
        lines = get_flag(body, "timestamps", False)
        stream = self._hub.open(native.setup_of(body, None), key, number=1, protocol="native-http", http=True)
        try:
            await stream.say(text)
            stream.end()
            return await _answer(request, stream, _Lines(stream) if lines else _Raw(stream))
        finally:
            stream.cancel()

    async def moshi(self, request: web.Request) -> web.StreamResponse:
        key = self._door.enter(request)
        body = await body_object(request)
        text = required_text(body, "text", chars_max=TEXT_CHARS_MAX, piece=True)
        setup = Setup(None, get_text(body, "voice"), "wav", spec_of({}))
        stream = self._hub.open(setup, key, number=1, protocol="moshi-http", http=True)
        try:
            await stream.say(text)
            stream.end()
            return await _answer(request, stream, _Raw(stream))
        finally:
            stream.cancel()


async def _say(stream: Stream, setup: Setup, text: str) -> None:
    for message in gradium.split_flushes(text, setup.req_id):
        if isinstance(message, Say):
            await stream.say(message.text)
        elif isinstance(message, FlushAsk):
            stream.flush(message.mark)
    stream.end()


class _Raw:
    """Nothing but the sound."""

    def __init__(self, stream: Stream) -> None:
        self.content_type = stream.ready.content_type

    def spell(self, out: Outbound) -> bytes:
        return out.data if isinstance(out, Audio) else b""


class _Sse:
    content_type = "text/event-stream"

    def __init__(self, input_chars: int) -> None:
        self._input_chars = input_chars

    def spell(self, out: Outbound) -> bytes:
        match out:
            case Audio(data=data):
                return openai.sse_delta(data)
            case Done(audio_s=audio_s):
                return openai.sse_done(self._input_chars, audio_s)
            case Failed(code=code, message=message):
                return openai.sse_error(code, message)
        return b""


class _Lines:
    """One Gradium message a line, the first a `ready`."""

    content_type = "application/x-ndjson"

    def __init__(self, stream: Stream) -> None:
        self._wire = gradium.GradiumWire()
        self._first = (self._wire.render(stream.ready) or "") + "\n"

    def spell(self, out: Outbound) -> bytes:
        line = self._wire.render(out)
        first, self._first = self._first, ""
        return (first + (line + "\n" if line else "")).encode()


async def _answer(request: web.Request, stream: Stream, body: _Raw | _Sse | _Lines) -> web.StreamResponse:
    """Status and headers once it is known that there is something to hear, then the rest as it comes."""
    outs: list[Outbound] = []
    while not any(isinstance(out, Audio | Done | Failed) for out in outs):
        if not (more := await stream.some()):
            break
        outs += more
    if outs and isinstance(outs[-1], Failed):
        raise WireError(outs[-1].code, outs[-1].message)
    response = web.StreamResponse(headers={
        "Content-Type": body.content_type,
        "X-Request-Id": stream.request_id,
        "X-Sample-Rate": str(stream.ready.sample_rate),
        "Cache-Control": "no-store",
    })  # fmt: skip
    bound_send_buffer(request)
    stream.on_stall = lambda: request.transport.abort() if request.transport else None
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # the caller has hung up: nobody is left to be told
        while outs:
            if data := b"".join(map(body.spell, outs)):
                await response.write(data)
            if isinstance(outs[-1], Failed) and request.transport:
                request.transport.abort()
                return response
            outs = await stream.some()
        await response.write_eof()
    return response

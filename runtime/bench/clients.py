"""One call to a server, by a public protocol or our own, recorded chunk by chunk. All I/O of the bench is here.

Times are time.monotonic(), not the loop's: uvloop's clock counts whole milliseconds.

In the `warm` state the connection (on a WebSocket also the set-up up to its answer) is made before the call is due, as
a voice agent does; in the `cold` state it is part of what is timed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import aiohttp
import numpy as np

from runtime.audio import Samples
from runtime.bench.arrivals import Call, pieces, words
from runtime.bench.meter import Take

PREPARE_S = 1.0  # before a call is due, in the warm state
READ_S_MAX = 120.0
GONE_S = 30.0  # a server that does not answer for so long has gone


@dataclass(frozen=True, slots=True)
class Target:
    """A server: `url` is its base, `protocol` gradium, openai or native (our own WebSocket).

    `audio_format`: 16-bit samples by the protocol's name for them; "": what its clients ask for.
    """

    url: str
    protocol: str
    key: str
    voice: str
    warm: bool
    tokens_per_s: float
    seeded: bool = True  # whether a seed may be sent; other servers may not know the field
    audio_format: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"x-api-key": self.key, "authorization": f"Bearer {self.key}"}


async def metrics(session: aiohttp.ClientSession, target: Target, names: Collection[str]) -> dict[str, float]:
    """These metrics of the server, those without labels; empty where it has none."""
    async with session.get(target.url.rstrip("/") + "/metrics", headers=target.headers) as reply:
        text = await reply.text() if reply.status == 200 else ""
    rows = (line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    return {row[0]: float(row[1]) for row in rows if len(row) == 2 and row[0] in names}


async def metrics_if_there(
    session: aiohttp.ClientSession, target: Target, names: Collection[str]
) -> dict[str, float] | None:
    """The same of a server that may have gone meanwhile; then None."""
    try:
        async with asyncio.timeout(GONE_S):
            return await metrics(session, target, names)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def speak(session: aiohttp.ClientSession, target: Target, call: Call, start: float) -> Take:
    """Makes the call at its time; never raises for what a server or the network does."""
    now = time.monotonic
    take = Take(due=start + call.due_s)
    lead = PREPARE_S if target.warm else 0.0
    await asyncio.sleep(max(0.0, take.due - lead - now()))
    try:
        async with asyncio.timeout(READ_S_MAX):
            await CALLS[target.protocol](session, target, call, take)
    except TimeoutError:
        take.error, take.detail = "timeout", f"nothing more within {READ_S_MAX:g} s"
    except (aiohttp.ClientError, OSError) as why:
        take.error, take.detail = "connection", f"{type(why).__name__}: {why}"
    take.ended = now()
    return take


def setup_message(target: Target, call: Call) -> dict[str, object]:
    out: dict[str, object] = {"type": "setup", "model_name": "default", "output_format": target.audio_format or "pcm"}
    if target.voice:
        out["voice_id"] = target.voice
    if target.seeded:
        out["json_config"] = json.dumps({"seed": call.seed})
    return out


async def _gradium(session: aiohttp.ClientSession, target: Target, call: Call, take: Take) -> None:
    opening, text = setup_message(target, call), words(pieces(call.text, target.tokens_per_s, call.seed))
    await _on_socket(session, target, take, "/api/speech/tts", opening, "ready", 48_000, text, "end_of_stream")


async def _native(session: aiohttp.ClientSession, target: Target, call: Call, take: Take) -> None:
    opening: dict[str, object] = {
        "type": "start", "voice": target.voice, "format": target.audio_format or "pcm_24000",
        **({"seed": call.seed} if target.seeded else {}),
    }  # fmt: skip
    text = pieces(call.text, target.tokens_per_s, call.seed)
    await _on_socket(session, target, take, "/v1/tts", opening, "started", 24_000, text, "end")


async def _on_socket(
    session: aiohttp.ClientSession,
    target: Target,
    take: Take,
    path: str,
    opening: dict[str, object],
    answer: str,
    rate: int,
    text_pieces: list[tuple[float, str]],
    end: str,
) -> None:
    """The opening, its answer (which may say another rate), then text one way and sound the other."""
    url = target.url.replace("http", "ws", 1).rstrip("/") + path
    async with session.ws_connect(url, headers=target.headers) as ws:
        await ws.send_str(json.dumps(opening))
        message = await _next(ws)
        if message.get("type") != answer:
            _note_error(take, message)
            return
        said = message.get("sample_rate")
        take.rate = said if isinstance(said, int) else rate
        async with _sending(ws, take, text_pieces, end):
            await _receive(ws, take)


@contextlib.asynccontextmanager
async def _sending(
    ws: aiohttp.ClientWebSocketResponse, take: Take, text_pieces: list[tuple[float, str]], end: str
) -> AsyncIterator[None]:
    """The text goes out while what is within runs."""
    sender = asyncio.create_task(_send_text(ws, take, text_pieces, end))
    try:
        yield
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _send_text(
    ws: aiohttp.ClientWebSocketResponse, take: Take, text_pieces: list[tuple[float, str]], end: str
) -> None:
    now = time.monotonic
    for at, piece in text_pieces:
        await asyncio.sleep(max(0.0, take.due + at - now()))
        take.began = take.began or now()
        await ws.send_str(json.dumps({"type": "text", "text": piece}))
    await ws.send_str(json.dumps({"type": end}))


async def _receive(ws: aiohttp.ClientWebSocketResponse, take: Take) -> None:
    now = time.monotonic
    while True:
        message = await _next(ws)
        match message.get("type"):
            case "audio":
                data = message.get("data")
                pcm = _s16(data if isinstance(data, bytes) else base64.b64decode(str(message.get("audio", ""))))
                if len(pcm):
                    take.chunks.append((now(), pcm))
            case "end_of_stream" | "done":
                return
            case "error" | "closed":
                _note_error(take, message)
                return


async def _next(ws: aiohttp.ClientWebSocketResponse) -> dict[str, object]:
    """The next message; of our own protocol's binary frames, as `data`, what follows the stream's number."""
    message = await ws.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return {"type": "audio", "data": message.data[4:]}
    if message.type is not aiohttp.WSMsgType.TEXT:
        return {"type": "closed", "message": f"closed with {ws.close_code}"}
    value = json.loads(message.data)
    return value if isinstance(value, dict) else {}


def _note_error(take: Take, message: dict[str, object]) -> None:
    code = message.get("code")  # our own word for it; Gradium's is a number, and has our word beside it
    take.error = str(message.get("reason") or (code if isinstance(code, str) else message.get("type")))
    take.detail = str(message.get("message", ""))


async def _openai(session: aiohttp.ClientSession, target: Target, call: Call, take: Take) -> None:
    now = time.monotonic
    url = target.url.rstrip("/") + "/v1/audio/speech"
    if target.warm:
        async with session.get(target.url.rstrip("/") + "/v1/models", headers=target.headers) as reply:
            await reply.read()
        await asyncio.sleep(max(0.0, take.due - now()))
    body: dict[str, object] = {"model": "tts-1", "input": call.text, "voice": target.voice or "alloy"}
    body |= {"response_format": "pcm"} | ({"seed": call.seed} if target.seeded else {})
    take.began = now()
    async with session.post(url, json=body, headers=target.headers) as reply:
        if reply.status != 200:
            text = await reply.text()
            take.error, take.detail = _code(text) or f"http_{reply.status}", text[:200]
            return
        held = b""
        async for data in reply.content.iter_any():
            held += data
            whole = len(held) & ~1
            if whole:
                take.chunks.append((now(), _s16(held[:whole])))
                held = held[whole:]


CALLS: Mapping[str, Callable[[aiohttp.ClientSession, Target, Call, Take], Awaitable[None]]] = {
    "gradium": _gradium,
    "openai": _openai,
    "native": _native,
}


def _code(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _s16(data: bytes) -> Samples:
    return np.frombuffer(data[: len(data) & ~1], "<i2").astype(np.float32) / 32768.0

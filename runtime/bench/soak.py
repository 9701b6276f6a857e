"""Chaos for minutes: calls that join, leave, stall, break off and send garbage, while others must hear what is theirs.

Wrong sound is found without knowing the model: the same text, voice and seed must give the same samples every time,
whoever else is being served. But for one thing: a matrix product's last bit depends on how many streams share it, and
once in a hundred thousand codes that bit decides; from there on the sound is another, equally good one. Such a *fork*
is told from somebody else's sound by looking for its samples in all the sounds there are. Leaks are found by the
server's own metrics before and after.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from numpy.typing import NDArray

from runtime.bench.arrivals import PROMPTS, Call
from runtime.bench.clients import Target, metrics, metrics_if_there, setup_message

# What each call does; most are good, or nothing would be checked.
ACTS = ("speak", "speak", "speak", "leave", "cut", "stall", "garbage", "cancel", "empty")
GARBAGE = ("", "{", "[]", '{"type":"text","text":1}', '{"type":"nonsense"}', "\ud7ff" * 50, '{"type":"setup"}' * 2)
STALL_S = 3.0
UNDERRUNS = "tts_underruns_total"
WATCHED = ("process_resident_memory_bytes", "tts_streams_active", "tts_sockets", UNDERRUNS)
# Few sounds, so that each is heard often enough to be compared.
TEXTS, SEEDS, SEED_STEP = PROMPTS[:4], 2, 1000
ROUNDING_MAX = 8  # of 32767
FORKS_MAX = 0.02  # of the sounds compared; more is no rounding
LOOKED_FOR = 256  # samples after a fork that are looked for elsewhere, from where the resampler has settled


@dataclass
class Tally:
    acts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    sounds: dict[tuple[str, int], bytes] = field(default_factory=dict)
    compared: int = 0
    forks: int = 0
    wrong: list[str] = field(default_factory=list)
    gone: bool = False  # the server does not answer any more
    memory: list[float] = field(default_factory=list)


async def soak(
    target: Target, *, minutes: float, streams: int, seed: int, say: Callable[[str], None], pause_s: float = 0.25
) -> dict[str, object]:
    """Runs `streams` callers at a time for so long; `passed` says whether nothing leaked and nobody heard another."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    end = loop.time() + minutes * 60
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        before = await metrics(session, target, WATCHED)
        watcher = asyncio.create_task(_watch(session, target, tally, end, say))
        callers = [
            _caller(session, target, tally, random.Random(f"{seed}/{n}"), end, pause_s) for n in range(streams)
        ]
        await asyncio.gather(*callers)
        await watcher
        after = await _settled(session, target, tally)
    half = tally.memory[len(tally.memory) // 2 :]
    growth = (max(half[-3:], default=0.0) - min(half[:3], default=0.0)) / 2**20
    leaked = None if tally.gone else after.get("tts_streams_active", 0.0)
    return {
        "minutes": minutes, "streams": streams, "acts": dict(sorted(tally.acts.items())),
        "outcomes": dict(sorted(tally.outcomes.items())), "sounds_compared": tally.compared,
        "forks": tally.forks, "wrong_sound": tally.wrong[:5], "lanes_leaked": leaked,
        "memory_mib": {"start": _mib(before), "end": _mib(after), "growth_second_half": round(growth, 2)},
        "server_answers": not tally.gone,
        "underruns": None if tally.gone else after.get(UNDERRUNS, 0.0) - before.get(UNDERRUNS, 0.0),
        "passed": not tally.wrong and not tally.gone and not leaked and bool(tally.compared)
        and tally.forks <= max(1, FORKS_MAX * tally.compared),
    }  # fmt: skip


def _mib(values: dict[str, float]) -> float:
    return round(values.get("process_resident_memory_bytes", 0.0) / 2**20, 1)


async def _settled(session: aiohttp.ClientSession, target: Target, tally: Tally) -> dict[str, float]:
    """The metrics once no stream is active, or after the longest a stream may be kept for a reader."""
    values = await _seen(session, target, tally)
    for _ in range(60):
        if not values.get("tts_streams_active"):
            break
        await asyncio.sleep(0.5)
        values = await _seen(session, target, tally)
    return values


async def _seen(session: aiohttp.ClientSession, target: Target, tally: Tally) -> dict[str, float]:
    values = await metrics_if_there(session, target, WATCHED)
    tally.gone |= values is None
    return values or {}


async def _watch(
    session: aiohttp.ClientSession, target: Target, tally: Tally, end: float, say: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < end and not tally.wrong and not tally.gone:
        values = await _seen(session, target, tally)
        tally.memory.append(values.get("process_resident_memory_bytes", 0.0))
        say(f"{end - loop.time():.0f} s left, {_mib(values)} MiB, {tally.compared} compared, {len(tally.wrong)} wrong")
        await asyncio.sleep(min(10.0, max(0.5, (end - loop.time()) / 12)))


async def _caller(
    session: aiohttp.ClientSession, target: Target, tally: Tally, rng: random.Random, end: float, pause_s: float
) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < end and not tally.wrong and not tally.gone:  # one wrong sound is enough
        act = rng.choice(ACTS)
        call = Call(0.0, rng.choice(TEXTS), SEED_STEP * rng.randrange(SEEDS))
        tally.acts[act] += 1
        try:
            async with asyncio.timeout(120):
                outcome = await _perform(session, target, tally, act, call, rng)
        except TimeoutError:
            outcome = "timeout"
        except (aiohttp.ClientError, OSError):
            outcome = "cut"
        tally.outcomes[f"{act}:{outcome}"] += 1
        await asyncio.sleep(rng.expovariate(1 / pause_s))


async def _perform(
    session: aiohttp.ClientSession, target: Target, tally: Tally, act: str, call: Call, rng: random.Random
) -> str:
    url = target.url.replace("http", "ws", 1).rstrip("/") + "/api/speech/tts"
    async with session.ws_connect(url, headers=target.headers) as ws:
        if act == "garbage":
            await ws.send_str(rng.choice(GARBAGE))
            return await _end(ws)
        await ws.send_str(json.dumps(setup_message(target, call)))
        await ws.send_str(json.dumps({"type": "text", "text": "" if act == "empty" else call.text}))
        if act in ("speak", "empty", "stall"):
            await ws.send_str('{"type": "end_of_stream"}')
        if act in ("leave", "cut", "cancel") and (ended := await _some_sound(ws, rng.randrange(1, 6))):
            return ended
        if act == "leave":
            return "left"
        if act == "cut":
            _cut(ws)
            return "cut"
        if act == "cancel":
            await ws.send_str('{"type": "cancel"}')
        if act == "stall":
            await asyncio.sleep(STALL_S)
        return await _end(ws, tally if act in ("speak", "stall") else None, call)


def _cut(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Ends the connection below the WebSocket, as a crash does. By descriptor: uvloop's sockets cannot be shut down."""
    raw = ws.get_extra_info("socket")
    if raw is not None:
        with socket.fromfd(raw.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
            same.shutdown(socket.SHUT_RDWR)


async def _some_sound(ws: aiohttp.ClientWebSocketResponse, chunks: int) -> str:
    """Reads so many pieces of sound; how the call ended if it ended before, a refusal for instance."""
    while chunks:
        message = await ws.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return "closed_without_a_word"
        value = json.loads(message.data)
        chunks -= value["type"] == "audio"
        if value["type"] in ("error", "end_of_stream"):
            return str(value.get("reason", value["type"]))
    return ""


def alike(a: bytes, b: bytes) -> bool:
    """Equal but for rounding: 6e-7 was measured between one and eight streams."""
    return len(a) == len(b) and _parting(_samples(a), _samples(b)) is None


def foreign(heard: bytes, own: bytes, others: Iterable[bytes]) -> bool:
    """Whether what follows the first difference is somebody else's sound, or this call's own from another place."""
    x, y = _samples(heard), _samples(own)
    at = _parting(x, y)
    if at is None:
        return False  # the one is the other's beginning: a length, which rounding may change
    tail = x[at + LOOKED_FOR :]
    loud = np.flatnonzero(np.abs(tail) > 10 * ROUNDING_MAX)
    if not len(loud):
        return False
    window = tail[loud[0] : loud[0] + LOOKED_FOR]
    return any(_holds(_samples(other), window) for other in (own, *others))


def _samples(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data[: len(data) & ~1], "<i2").astype(np.int32)


def _parting(a: NDArray[np.int32], b: NDArray[np.int32]) -> int | None:
    """Index of the first sample that differs by more than rounding; None if there is none."""
    n = min(len(a), len(b))
    apart = np.flatnonzero(np.abs(a[:n] - b[:n]) > ROUNDING_MAX)
    return int(apart[0]) if len(apart) else None


def _holds(sound: NDArray[np.int32], window: NDArray[np.int32]) -> bool:
    """Whether the window occurs anywhere in the sound."""
    places = np.arange(max(0, len(sound) - len(window) + 1))
    for n, value in enumerate(window):
        places = places[np.abs(sound[places + n] - value) <= ROUNDING_MAX]
        if not len(places):
            return False
    return bool(len(places))


async def _end(ws: aiohttp.ClientWebSocketResponse, tally: Tally | None = None, call: Call | None = None) -> str:
    """Reads to the end; compares the sound with what the same call gave before."""
    heard = bytearray()
    while True:
        message = await ws.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return "closed_without_a_word"
        value = json.loads(message.data)
        if value["type"] == "audio":
            heard += base64.b64decode(value["audio"])
        elif value["type"] == "error":
            return str(value.get("reason", "error"))
        elif value["type"] == "end_of_stream":
            break
    if tally and call:
        _compare(tally, call, bytes(heard))
    return "done"


def _compare(tally: Tally, call: Call, heard: bytes) -> None:
    first = tally.sounds.setdefault((call.text, call.seed), heard)
    tally.compared += 1
    if alike(first, heard):
        return
    tally.forks += 1
    if foreign(heard, first, [s for key, s in tally.sounds.items() if key != (call.text, call.seed)]):
        tally.wrong.append(f"{call.text[:40]} (seed {call.seed})")

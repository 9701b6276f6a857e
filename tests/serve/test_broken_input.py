"""Characters cut in two, numbers without bounds, bytes that are no HTTP and frames that are no WebSocket's.

An answer, no traceback, no lane kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.serve.pieces import is_whole, joined
from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import Running, serving

HALF = "\ud83d"
POST = b"POST /v1/tts HTTP/1.1\r\nHost: x\r\n"


@given(st.text(alphabet="ab\U0001f600\U0001d11e", max_size=12), st.lists(st.integers(0, 24), max_size=6))
def test_text_cut_between_its_utf_16_units_is_the_same_text(text: str, cuts: list[int]) -> None:
    units = "".join(chr(int.from_bytes(text.encode("utf-16-le")[i : i + 2], "little")) for i in range(
        0, len(text.encode("utf-16-le")), 2))  # fmt: skip
    at = [0, *sorted(min(c, len(units)) for c in cuts), len(units)]
    half, out = "", ""
    for begin, end in pairwise(at):
        done, half = joined(half, units[begin:end])
        assert is_whole(done)
        out += done
    assert (out, half) == (text, "")


def test_a_half_without_its_other_one_is_replaced() -> None:
    assert joined("", "a\udc00b") == ("a\ufffdb", "")
    assert joined(HALF, "b") == ("\ufffdb", "")
    assert joined(HALF, "") == ("", HALF)


async def conversation(at: Running, path: str, *messages: dict[str, object]) -> list[dict[str, object]]:
    """What the socket says to these, up to its close or the end of a stream."""
    heard: list[dict[str, object]] = []
    async with at.http.ws_connect(at.ws_url + path) as ws, asyncio.timeout(20):
        for message in messages:
            await ws.send_str(json.dumps(message))
        async for frame in ws:
            if isinstance(frame.data, str):
                heard.append(json.loads(frame.data))
                if heard[-1]["type"] in ("done", "end_of_stream"):
                    break
    return heard


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/tts", {"type": "start", "id": HALF}),
        ("/v1/tts", {"type": "text", "id": HALF, "text": "x"}),
        ("/api/speech/tts", {"type": "setup", "client_req_id": HALF}),
        ("/api/speech/tts", {"type": "text", "client_req_id": HALF, "text": "x"}),
    ],
)
def test_an_id_with_half_a_character_is_refused_in_words(
    path: str, message: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving() as at:
            heard = await conversation(at, path, message)
            assert heard[-1]["type"] == "error" and "half of a character" in str(heard[-1]["message"])
            await at.lanes_free()

    asyncio.run(test())
    assert not caplog.records


def test_an_emoji_sent_in_two_halves_ends_its_stream_like_any_text(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as at:
            say = [{"type": "text", "id": "a", "text": t} for t in ("hello a\ud83d", "\ude00 b\udc00 ", "bye " + HALF)]
            heard = await conversation(at, "/v1/tts", {"type": "start", "id": "a"}, *say, {"type": "end", "id": "a"})
            assert heard[-1]["type"] == "done"
            assert "a\U0001f600" in [m.get("text") for m in heard if m["type"] == "word"]
            await at.lanes_free()

    asyncio.run(test())
    assert not caplog.records


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
     b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x16\x03\x01\x02\r\n\r\n",
     POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx",
     POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
     POST + b"Content-Length: 5\r\nContent-Length: 25\r\n\r\n{}", POST + b"Content-Length: +5\r\n\r\n{}",
     POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", POST + b"X-A: a\0b\r\n\r\n",
     POST + b"X-A: a\r\n b\r\n\r\n",
     POST + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
     POST + b"Content-Encoding: deflate\r\nContent-Length: 2\r\n\r\nzz"],
)  # fmt: skip
def test_what_is_no_http_is_answered_with_400_and_nothing_is_logged(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving() as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
            writer.write(garbage)
            assert b" 400 " in await reader.readline()
            writer.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    assert not [r for r in caplog.records if r.exc_info]


@pytest.mark.parametrize("path", ["/v1/tts", "/api/speech/tts", "/api/tts_streaming"])
def test_who_hangs_up_before_the_answer_is_not_logged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each was a traceback of 35 lines."""
    upgrade = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()

    async def test() -> None:
        async with serving() as at:
            for turns in (0, 1, 2, 3) * 4:
                _, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
                writer.write(upgrade)
                for _ in range(turns):
                    await asyncio.sleep(0)
                writer.transport.abort()
            async with at.http.get(at.url + "/livez") as reply:
                assert reply.status == 200
            await at.lanes_free()

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    assert not [r for r in caplog.records if r.exc_info]


NUMBERS = ("9" * 400, "-" + "9" * 400, "1e999", "-1e999", "NaN", "Infinity", "1e308", '"1"', "[]")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("path", ["/v1/tts", "/v1/audio/speech"])
def test_a_number_that_no_knob_takes_is_a_400(path: str, number: str, caplog: pytest.LogCaptureFixture) -> None:
    """A whole number of 400 digits was a failure of the server once: it is no float."""

    async def test() -> None:
        async with serving() as at:
            for knob in ("speed", "temp", "seed"):
                body = f'{{"text": "a", "input": "a", "model": "tts-1", "{knob}": {number}}}'
                async with at.http.post(at.url + path, data=body) as reply:
                    assert reply.status == 400, (knob, await reply.text())

    asyncio.run(test())
    assert not [r for r in caplog.records if r.exc_info]


def frame(head: int, payload: bytes, *, size: int | None = None) -> bytes:
    """A masked frame with this first byte; `size`: the length that it claims, as eight bytes."""
    length = bytes([0x80 | len(payload)]) if size is None else b"\xff" + size.to_bytes(8, "big")
    return bytes([head]) + length + bytes(4) + payload


FRAMES = {
    "a reserved bit": (frame(0xC1, b"{}"), 1002),
    "an unknown kind": (frame(0x83, b"x"), 1002),
    "a ping in pieces": (frame(0x09, b"x"), 1002),
    "the middle of nothing": (frame(0x80, b"x"), 1002),
    "a message inside another": (frame(0x01, b"{") + frame(0x81, b"}"), 1002),
    "no UTF-8": (frame(0x81, b"\xff\xfe"), 1007),
    "a length of 2^63": (frame(0x81, b"x", size=1 << 63), 1009),
    "a length of 2^62": (frame(0x81, b"x", size=1 << 62), 1009),
    "a close code of one byte": (frame(0x88, b"x"), 1002),
    "a close code that is none": (frame(0x88, b"\x00\x00"), 1002),
    "pieces without end": (frame(0x01, b"a" * 100) + frame(0x00, b"a" * 100) * 100, 1009),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_that_is_no_websockets_ends_the_socket_and_frees_its_lanes(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, code = FRAMES[kind]

    async def test() -> None:
        async with serving(message_bytes_max=4096) as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
            writer.write(
                b"GET /api/speech/tts HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            writer.write(frame(0x81, b'{"type": "setup", "output_format": "pcm"}'))
            await reader.readuntil(b'"ready"')
            assert at.engine.held or at.server.admission.active
            writer.write(data)
            rest = await reader.read()
            assert b'"type": "error"' in rest and rest[-2:] == code.to_bytes(2, "big"), rest
            await at.lanes_free()
            writer.close()

    asyncio.run(test())
    assert not [r for r in caplog.records if r.exc_info]


def test_a_thousand_set_ups_on_one_socket_take_what_one_socket_may_and_leave_nothing() -> None:
    async def test() -> None:
        async with serving(FakeEngine(lanes=8)) as at:
            async with at.http.ws_connect(f"{at.ws_url}/api/speech/tts") as ws:
                for n in range(1000):
                    setup = {"type": "setup", "client_req_id": f"r{n}", "close_ws_on_eos": False}
                    await ws.send_str(json.dumps(setup))
                kinds = [(await ws.receive_json())["type"] for _ in range(1000)]
                assert kinds == ["ready"] * 8 + ["error"] * 992
                await ws.send_str(json.dumps({"type": "ping", "token": "t"}))
                assert (await ws.receive_json())["type"] == "pong", "the streams let in are not disturbed"
            await at.lanes_free()
            assert at.server.admission.active == 0

    asyncio.run(test())

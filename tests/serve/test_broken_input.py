"""Characters cut in two and bytes that are no HTTP: an answer, no traceback, no lane kept."""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.serve.pieces import is_whole, joined
from tests.serve.harness import Running, serving

HALF = "\ud83d"


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
     b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x16\x03\x01\x02\r\n\r\n"],
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

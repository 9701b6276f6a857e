"""WebSockets as clients see them: the Gradium order of messages, multiplexing, cancel, errors before closes, limits."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import WSMsgType
from aiohttp.http import WebSocketWriter

from runtime.serve.socket import framed
from tests.serve.fake_engine import FakeEngine, planted
from tests.serve.harness import Running, heard, only, run, served, serving

TEXT = "one two three four five"


class Talk:
    """One Gradium WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send_str(json.dumps({"type": kind, **fields}))

    async def setup(self, req_id: str | None = None, seed: int = 1, **fields: Any) -> None:
        config = json.dumps({"seed": seed})
        named = {"client_req_id": req_id} if req_id else {}
        await self.send("setup", output_format="pcm_24000", json_config=config, **named, **fields)

    async def next(self) -> dict[str, Any]:
        message = await self.ws.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def until(self, kind: str, req_id: str | None = None) -> list[dict[str, Any]]:
        """All messages up to and with the first of this kind (of this id)."""
        out = []
        while True:
            out.append(await self.next())
            if out[-1]["type"] == kind and (req_id is None or out[-1].get("client_req_id") == req_id):
                return out

    async def closed_with(self) -> int:
        while (await self.ws.receive()).type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
            pass
        return self.ws.close_code or 0


async def talk(at: Running, **options: Any) -> Talk:
    return Talk(await at.http.ws_connect(f"{at.ws_url}/api/speech/tts", **options))


def sound(messages: list[dict[str, Any]], req_id: str | None = None) -> bytes:
    return b"".join(
        base64.b64decode(m["audio"]) for m in messages if m["type"] == "audio" and m.get("client_req_id") == req_id
    )


@served()
async def test_ready_comes_first_then_sound_and_words_then_the_end_and_a_normal_close(at: Running) -> None:
    it = await talk(at)
    await it.setup(seed=7)
    await it.send("text", text=TEXT)
    await it.send("end_of_stream")
    messages = await it.until("end_of_stream")
    assert messages[0]["type"] == "ready" and messages[0]["sample_rate"] == 24_000
    assert [m["text"] for m in messages if m["type"] == "text"] == TEXT.split()
    assert heard(sound(messages)) == only(7)
    audio = [m for m in messages if m["type"] == "audio"]
    assert audio[0]["start_s"] == 0 and all(
        a["stop_s"] == pytest.approx(b["start_s"], abs=1e-3) for a, b in itertools.pairwise(audio)
    )
    assert await it.closed_with() == 1000
    await at.lanes_free()


@served()
async def test_audio_begins_while_text_still_arrives(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    for word in ["one", "two", "three", "four", "five", "six"]:
        await it.send("text", text=word)
    await it.until("audio")  # no end_of_stream was sent
    await it.send("text", text="seven")
    await it.send("end_of_stream")
    messages = await it.until("end_of_stream")
    assert [m["text"] for m in messages if m["type"] == "text"][-1] == "seven"


@served()
async def test_flush_speaks_every_word_received_and_loses_none_after_it(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    for piece in ["hello", "there", "<flush>"]:
        await it.send("text", text=piece)
    said: list[str] = []
    while said != ["hello", "there"]:
        message = await it.next()
        said += [message["text"]] if message["type"] == "text" else []
    await it.send("text", text="bye")
    await it.send("end_of_stream")
    assert [m["text"] for m in await it.until("end_of_stream") if m["type"] == "text"] == ["bye"]


@pytest.mark.parametrize("text", ["", "   ", "🙂🎉", "…", "<flush>"])
@served()
async def test_nothing_to_say_is_a_valid_empty_result(at: Running, text: str) -> None:
    it = await talk(at)
    await it.setup()
    await it.send("text", text=text)
    await it.send("end_of_stream")
    assert [m["type"] for m in await it.until("end_of_stream")] == ["ready", "end_of_stream"]
    assert await it.closed_with() == 1000


@served()
async def test_streams_share_a_socket_and_each_hears_only_itself(at: Running) -> None:
    it = await talk(at)
    ids = [f"r{n}" for n in range(4)]
    for n, req_id in enumerate(ids):
        await it.setup(req_id, seed=100 + n, close_ws_on_eos=False)
    for word in TEXT.split():
        for req_id in ids:
            await it.send("text", text=word, client_req_id=req_id)
    for req_id in ids:
        await it.send("end_of_stream", client_req_id=req_id)
    messages: list[dict[str, Any]] = []
    while sum(m["type"] == "end_of_stream" for m in messages) < 4:
        messages.append(await it.next())
    for n, req_id in enumerate(ids):
        assert heard(sound(messages, req_id)) == only(100 + n)
        words = [m["text"] for m in messages if m["type"] == "text" and m["client_req_id"] == req_id]
        assert words == TEXT.split()
    await it.setup("again", close_ws_on_eos=False)  # the socket is still good
    assert (await it.next())["type"] == "ready"


@served(lambda: FakeEngine(lanes=2))
async def test_after_the_answer_to_a_cancel_nothing_of_that_stream_follows(at: Running) -> None:
    it = await talk(at)
    for req_id in ("gone", "stays"):
        await it.setup(req_id, seed=len(req_id), close_ws_on_eos=False)
        await it.send("text", text=TEXT * 9, client_req_id=req_id)
    await it.until("audio", "gone")
    await it.send("cancel", client_req_id="gone")
    ack = (await it.until("end_of_stream", "gone"))[-1]
    assert ack["cancelled"] is True
    await it.send("text", text="late", client_req_id="gone")  # crossed on its way: ignored
    await it.send("end_of_stream", client_req_id="stays")
    after = await it.until("end_of_stream", "stays")
    assert not [m for m in after if m.get("client_req_id") == "gone"]
    await at.until(lambda: len(at.engine.held) == 0)


@served()
async def test_a_disconnect_in_the_middle_frees_the_lane_and_is_counted(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    await it.send("text", text=TEXT * 20)
    await it.until("audio")
    assert at.engine.held
    await it.ws.close()
    await at.lanes_free()
    assert await at.metric("tts_streams_total", protocol="gradium", outcome="cancelled") == 1


@served()
async def test_a_connection_cut_without_a_close_frees_the_lane(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    await it.send("text", text=TEXT * 20)
    await it.until("audio")
    transport = it.ws._conn.transport  # type: ignore[union-attr]
    assert transport
    transport.abort()
    await at.lanes_free()


@served(heartbeat_s=0.4)
async def test_a_peer_that_no_longer_answers_pings_is_gone_and_its_lane_is_freed(at: Running) -> None:
    """A half-open socket: the network in between has dropped the connection, and nobody was told."""
    it = await talk(at, autoping=False)
    await it.setup()  # no text: nothing is sent that could fail
    await at.until(lambda: bool(at.engine.held))
    await at.lanes_free()
    assert await at.metric("tts_streams_total", protocol="gradium", outcome="cancelled") == 1


@served(lambda: FakeEngine(lanes=2))
async def test_a_call_beyond_capacity_is_told_so_with_a_hint_and_disturbs_nobody(at: Running) -> None:
    talks = [await talk(at) for _ in range(3)]
    for n, it in enumerate(talks[:2]):
        await it.setup(seed=n + 1)
        await it.send("text", text=TEXT)
        assert (await it.next())["type"] == "ready"
    await talks[2].setup()
    error = await talks[2].next()
    assert error["type"] == "error" and error["reason"] == "at_capacity" and error["retry_after_s"] > 0
    assert await talks[2].closed_with() == error["code"] == 1008
    for n, it in enumerate(talks[:2]):
        await it.send("end_of_stream")
        assert heard(sound(await it.until("end_of_stream"))) == only(n + 1)
    assert await at.metric("tts_refused_total", code="at_capacity") == 1


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("not json", 1002),
        ('{"type":"nonsense"}', 1002),
        ('{"type":"text","text":"no setup"}', 1002),
        ('{"type":"setup","voice_id":"nobody"}', 1003),
        ('{"type":"setup","output_format":"vinyl"}', 1003),
        ('{"type":"setup","json_config":"{"}', 1003),
        (b"\xff\x00", 1002),
        ("x" * 3000, 1009),
    ],
)
@served(message_bytes_max=2048)
async def test_every_error_is_said_before_its_close(at: Running, frame: str | bytes, code: int) -> None:
    it = await talk(at)
    await (it.ws.send_bytes(frame) if isinstance(frame, bytes) else it.ws.send_str(frame))
    error = await it.next()
    assert error["type"] == "error" and error["message"] and error["code"] == code
    assert await it.closed_with() == code


@served()
async def test_an_unknown_voice_is_refused_with_the_list_of_voices(at: Running) -> None:
    it = await talk(at)
    await it.setup(voice_id="nobody")
    assert "anna, ben" in (await it.next())["message"]


@served(lambda: FakeEngine(fail_seed=13))
async def test_one_bad_stream_does_not_touch_the_others_on_its_socket(at: Running) -> None:
    it = await talk(at)
    await it.setup("bad", seed=13, close_ws_on_eos=False)
    await it.setup("wrong", voice_id="nobody", close_ws_on_eos=False)
    await it.until("error", "wrong")
    await it.send("text", text=TEXT, client_req_id="bad")
    await it.send("end_of_stream", client_req_id="bad")
    error = (await it.until("error", "bad"))[-1]
    assert error["code"] == 1011 and error["reason"] == "internal"
    await it.setup("good", seed=4, close_ws_on_eos=False)
    await it.send("text", text=TEXT, client_req_id="good")
    await it.send("end_of_stream", client_req_id="good")
    assert heard(sound(await it.until("end_of_stream", "good"), "good")) == only(4)


@served(stall_s=0.3, outbox_s=0.5, ahead_s=600.0)
async def test_a_reader_that_takes_nothing_is_shed_with_a_reason_and_its_lane_is_freed(at: Running) -> None:
    it = await talk(at)
    transport = it.ws._conn.transport  # type: ignore[union-attr]
    assert transport
    await it.setup()
    await it.send("text", text=TEXT * 2000)
    transport.pause_reading()
    await at.until(lambda: at.server.meters.shed._value.get() == 1)
    await at.lanes_free()


@served(idle_s=1.0)
async def test_a_stream_without_text_is_ended_after_the_idle_time_and_told_why(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    assert [m["type"] for m in await it.until("error")] == ["ready", "error"]
    await at.lanes_free()


@served(idle_s=1.0)
async def test_slow_text_does_not_end_a_stream(at: Running) -> None:
    it = await talk(at)
    await it.setup()
    for word in TEXT.split():
        await it.send("text", text=word)
        await asyncio.sleep(0.4)  # in all twice the idle time
    await it.send("end_of_stream")
    messages = await it.until("end_of_stream")
    assert [m["text"] for m in messages if m["type"] == "text"] == TEXT.split()


@served()
async def test_the_native_protocol_speaks_flushes_and_cancels(at: Running) -> None:
    ws = await at.http.ws_connect(f"{at.ws_url}/v1/tts")
    for message in (
        {"type": "start", "id": "a", "seed": 5},
        {"type": "text", "id": "a", "text": "hel"},
        {"type": "text", "id": "a", "text": "lo you"},
        {"type": "flush", "id": "a", "mark": 9},
    ):
        await ws.send_str(json.dumps(message))
    seen: list[Any] = []
    while not (seen and isinstance(seen[-1], dict) and seen[-1]["type"] == "flushed"):
        frame = await ws.receive()
        seen.append(json.loads(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else frame.data)
    facts = [m for m in seen if isinstance(m, dict)]
    audio = b"".join(m[4:] for m in seen if isinstance(m, bytes))
    assert facts[0]["type"] == "started" and facts[0]["stream"] == 1
    assert [m["text"] for m in facts if m["type"] == "word"] == ["hello", "you"]
    assert facts[-1]["mark"] == 9 and heard(audio) == only(5)
    await ws.send_str('{"type":"cancel","id":"a"}')
    while (message := json.loads((await ws.receive()).data))["type"] != "done":
        pass
    assert message["cancelled"] is True
    await ws.close()


@served()
async def test_the_moshi_protocol_speaks(at: Running) -> None:
    import ormsgpack

    ws = await at.http.ws_connect(f"{at.ws_url}/api/tts_streaming?format=PcmMessagePack&seed=3&cfg_alpha=2.0")
    first = ormsgpack.unpackb((await ws.receive()).data)
    assert first == {"type": "Ready"}
    await ws.send_str("one two")
    await ws.send_bytes(ormsgpack.packb({"type": "Text", "text": "three"}))
    await ws.send_bytes(b"\0")
    words, samples = [], 0
    while (frame := await ws.receive()).type is aiohttp.WSMsgType.BINARY:
        message = ormsgpack.unpackb(frame.data)
        words += [message["text"]] if message["type"] == "Text" else []
        samples += len(message["pcm"]) if message["type"] == "Audio" else 0
    assert words == ["one", "two", "three"] and samples > 24_000 * 0.3 and ws.close_code == 1000


@served(lambda: FakeEngine(lanes=8))
async def test_a_thousand_connects_and_cancels_leave_nothing_behind(at: Running) -> None:
    it = await talk(at)
    for round in range(125):
        ids = [f"{round}-{n}" for n in range(8)]
        for req_id in ids:
            await it.setup(req_id, close_ws_on_eos=False)
            await it.send("text", text=TEXT, client_req_id=req_id)
            await it.send("cancel", client_req_id=req_id)
        await it.until("end_of_stream", ids[-1])
    await at.until(lambda: at.engine.opened == at.engine.closed == 1000)
    assert not at.engine.held
    assert at.server.admission.active == 0 and not at.server.hub._streams and not at.server.hub._unread


@served()
async def test_draining_lets_streams_finish_and_nobody_in(at: Running) -> None:
    it, late = await talk(at), await talk(at)
    await it.setup()
    await it.send("text", text=f"{TEXT} {TEXT}")
    await it.until("audio")
    draining = asyncio.create_task(at.server.drain())
    await asyncio.sleep(0)
    await late.setup()
    assert (await late.next())["reason"] == "draining"
    async with at.http.get(f"{at.url}/readyz") as reply:
        assert reply.status == 503 and (await reply.json())["draining"]
    assert not draining.done()
    await it.send("end_of_stream")
    await it.until("end_of_stream")
    assert await draining is True


@served()
async def test_a_second_start_of_an_open_id_says_that_the_first_goes_on(at: Running) -> None:
    ws = await at.http.ws_connect(f"{at.ws_url}/v1/tts")
    for message in ({"type": "start"}, {"type": "start"}, {"type": "text", "text": "one two"}, {"type": "end"}):
        await ws.send_json(message | {"id": "a"})
    seen = []
    while not seen or seen[-1]["type"] != "done":
        frame = await ws.receive()
        if isinstance(frame.data, str):
            seen.append(json.loads(frame.data))
    [error] = [m for m in seen if m["type"] == "error"]
    assert error["code"] == "id_in_use" and [m["text"] for m in seen if m["type"] == "word"] == ["one", "two"]


@served(message_bytes_max=2048)
async def test_a_message_that_is_too_large_is_told_the_limit(at: Running) -> None:
    ws = await at.http.ws_connect(f"{at.ws_url}/v1/tts")
    await ws.send_str("x" * 3000)
    assert "2048 bytes" in (await ws.receive_json())["message"]
    assert (await ws.receive()).data == 1009


@served()
async def test_a_text_message_without_its_text_is_refused_by_name(at: Running) -> None:
    for path, first in (("/v1/tts", "start"), ("/api/speech/tts", "setup")):
        ws = await at.http.ws_connect(at.ws_url + path)
        await ws.send_json({"type": first})
        await ws.receive()
        await ws.send_json({"type": "text"})
        assert (await ws.receive_json())["message"] == "text is missing"


@served(text_chars_max=100)
async def test_too_much_text_ends_its_stream_and_no_other(at: Running) -> None:
    talk = Talk(await at.http.ws_connect(f"{at.ws_url}/api/speech/tts"))
    for n, req_id in enumerate("ab"):
        await talk.setup(req_id, seed=n, close_ws_on_eos=False)
        await talk.until("ready", req_id)
    await talk.send("text", text="word " * 30, client_req_id="a")
    assert (await talk.until("error", "a"))[-1]["reason"] == "too_large"
    await talk.send("text", text="late", client_req_id="a")
    await talk.send("text", text=TEXT, client_req_id="b")
    await talk.send("end_of_stream", client_req_id="b")
    said = await talk.until("end_of_stream", "b")
    assert {message["client_req_id"] for message in said} == {"b"}, "nothing follows the error of a"
    await at.until(at.server.hub.empty.is_set)


@served()
async def test_a_socket_keeps_nothing_of_the_streams_that_ended_on_it(at: Running) -> None:
    talk = Talk(await at.http.ws_connect(f"{at.ws_url}/api/speech/tts"))
    for n in range(5):
        await talk.setup(f"turn {n}", close_ws_on_eos=False)
        await talk.send("text", text="one", client_req_id=f"turn {n}")
        await talk.send("end_of_stream", client_req_id=f"turn {n}")
        await talk.until("end_of_stream", f"turn {n}")
    (conversation,) = at.server._conversations
    await at.until(lambda: not conversation._pumps)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_frames_are_those_that_the_library_writes(size: int) -> None:
    """Sound goes past aiohttp's writer, whose frames these must be; words of several bytes a letter as well."""
    for message in ("ü" * size, b"\x81" * size):
        written = bytearray()
        writer = WebSocketWriter(_Protocol(), _Wire(written), use_mask=False)  # type: ignore[arg-type]
        asyncio.run(write_by_library(writer, message))
        assert b"".join(framed(message)) == written


async def write_by_library(writer: WebSocketWriter, message: str | bytes) -> None:
    if isinstance(message, str):
        await writer.send_frame(message.encode(), WSMsgType.TEXT)
    else:
        await writer.send_frame(message, WSMsgType.BINARY)


class _Protocol:
    _paused = False


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self, written: bytearray) -> None:
        self._written = written

    def write(self, data: bytes) -> None:
        self._written += data

    def is_closing(self) -> bool:
        return False


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1e20])
@pytest.mark.parametrize("trim", [True, False])
def test_samples_that_are_no_sound_are_never_heard_and_break_that_stream_alone(
    bad: float, first: int, trim: bool
) -> None:
    """Also those whose squares alone, which are what is looked at, are no numbers."""

    async def test() -> None:
        async with serving(FakeEngine(bad_seed=9, bad=bad, bad_from=first), trim_silence=trim) as at:
            it = await talk(at)
            for req_id, seed in (("bad", 9), ("good", 2)):
                await it.setup(req_id, seed, close_ws_on_eos=False)
                await it.send("text", text=TEXT, client_req_id=req_id)
                await it.send("end_of_stream", client_req_id=req_id)
            messages = await it.until("end_of_stream", "good")
            if not any(m["type"] == "error" for m in messages):
                messages += await it.until("error", "bad")
            (error,) = [m for m in messages if m["type"] == "error"]
            assert (error["client_req_id"], error["reason"]) == ("bad", "internal")
            assert "not numbers" in error["message"]
            assert heard(sound(messages, "good")) == only(2)
            values = np.abs(np.frombuffer(sound(messages, "bad"), "<i2").astype(int))
            assert len(values) <= first * 1920 and set(values) <= {planted(9)}
            await at.lanes_free()

    run(test)


def test_samples_far_too_loud_are_clipped_and_not_taken_for_none() -> None:
    async def test() -> None:
        async with serving(FakeEngine(bad_seed=9, bad=1e6)) as at:
            it = await talk(at)
            await it.setup(seed=9)
            await it.send("text", text=TEXT)
            await it.send("end_of_stream")
            values = np.frombuffer(sound(await it.until("end_of_stream")), "<i2")
            assert values.max() == 32767

    run(test)

"""Wire formats: what real clients send is understood, what they read is spelled, and anything else is a WireError."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.audio import formats
from runtime.serve import gradium, native, openai
from runtime.serve.wire import (
    Audio,
    CancelAsk,
    Done,
    EndAsk,
    Failed,
    FlushAsk,
    FlushedOut,
    PausedOut,
    Ping,
    Pong,
    Ready,
    Say,
    Setup,
    Wire,
    WireError,
    Word,
    close_code,
    spec_of,
)

G, N = gradium.GradiumWire(), native.NativeWire()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
KEYS = [
    "type", "client_req_id", "id", "voice", "voice_id", "output_format", "format", "json_config", "text", "mark",
    "close_ws_on_eos", "seed", "temp", "cfg", "speed", "padding_bonus", "priority", "pronunciation_id", "input",
    "response_format", "stream_format", "max_padding",
]  # fmt: skip
TYPES = ["setup", "text", "end_of_stream", "start", "flush", "end", "cancel", "ping", "audio"]
messages = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)}, optional={k: json_values for k in KEYS if k != "type"}
)


@pytest.mark.parametrize("wire", [G, N], ids=["gradium", "native"])
@settings(max_examples=60, deadline=None)
@given(frame=messages.map(json.dumps) | st.text() | st.binary() | json_values.map(json.dumps))
def test_any_frame_is_understood_or_refused_with_a_word(wire: Wire, frame: str | bytes) -> None:
    try:
        for message in wire.parse(frame):
            assert isinstance(message, Setup | Say | FlushAsk | EndAsk | CancelAsk | Ping)
    except WireError as why:
        assert why.code in {"malformed", "invalid", "too_large"} and str(why)


@settings(max_examples=60, deadline=None)
@given(messages)
def test_any_speech_body_is_understood_or_refused_with_a_word(body: dict[str, object]) -> None:
    try:
        assert openai.parse_speech(body).setup.audio_format in formats()
    except WireError as why:
        assert openai.status_of(why.code) in {400, 413}


@pytest.mark.parametrize("wire", [G, N], ids=["gradium", "native"])
def test_deep_nesting_is_refused_and_not_a_crash(wire: Wire) -> None:
    with pytest.raises(WireError):
        wire.parse("[" * 100_000)


def test_gradium_setup_as_the_clients_send_it() -> None:
    livekit = {"type": "setup", "model_name": "default", "output_format": "pcm", "voice_id": "v"}
    pipecat = livekit | {"close_ws_on_eos": False, "client_req_id": "u-1", "json_config": '{"padding_bonus": -1.5}'}
    (a,) = G.parse(json.dumps(livekit))
    (b,) = G.parse(json.dumps(pipecat))
    assert isinstance(a, Setup) and isinstance(b, Setup)
    assert (a.voice, a.audio_format, a.close_on_end, a.req_id) == ("v", "pcm_48000", True, None)
    assert (b.close_on_end, b.req_id, b.spec.padding_bonus) == (False, "u-1", -1.5)


def test_every_gradium_format_is_one_of_ours() -> None:
    assert all(gradium.audio_format(name) in formats() for name in gradium.KNOWN_FORMATS)


def test_gradium_messages_are_joined_with_one_space_and_flush_tags_become_barriers() -> None:
    say = lambda text: G.parse(json.dumps({"type": "text", "text": text}))  # noqa: E731
    assert say("hello") == (Say(None, "hello "),)
    assert say("<flush>") == (FlushAsk(None, 0),)
    assert say("hello <flush> you") == (Say(None, "hello "), FlushAsk(None, 0), Say(None, "you "))
    assert say("") == ()


def test_gradium_values_out_of_bounds_are_refused_by_name() -> None:
    for config, name in [('{"temp": 2}', "temp"), ('{"cfg_coef": 0}', "cfg_coef"), ("[1]", "json_config")]:
        with pytest.raises(WireError, match=name):
            G.parse(json.dumps({"type": "setup", "json_config": config}))


def test_gradium_replies_as_the_clients_read_them() -> None:
    ready = json.loads(G.render(Ready("r", 1, "q", 48_000, "audio/pcm", "anna")) or "")
    assert ready["type"] == "ready" and ready["sample_rate"] == 48_000 and ready["frame_size"] == 3_840
    audio = json.loads(G.render(Audio("r", 1, b"\x01\x02", 0.0, 0.08)) or "")
    assert base64.b64decode(audio["audio"]) == b"\x01\x02" and audio["client_req_id"] == "r" and audio["stop_s"] == 0.08
    word = json.loads(G.render(Word(None, 1, "héllo", 0.1, 0.2)) or "")
    assert word["text"] == "héllo" and "client_req_id" not in word
    error = json.loads(G.render(Failed("r", "at_capacity", "full", 1.5)) or "")
    assert error == {"type": "error", "message": "full", "code": 1008, "reason": "at_capacity", "retry_after_s": 1.5,
                     "client_req_id": "r"}
    assert json.loads(G.render(Done(None, 1, 2.0)) or "") == {"type": "end_of_stream"}
    assert G.render(FlushedOut(None, 1)) is None and G.render(PausedOut(None)) is None


def test_each_cause_has_its_own_close_code_family() -> None:
    assert close_code("malformed") == 1002 and close_code("voice_unknown") == 1003 and close_code("internal") == 1011
    assert {close_code(c) for c in ("at_capacity", "key_rate", "unauthorized", "slow_reader", "idle")} == {1008}


def test_native_passes_llm_tokens_on_unchanged() -> None:
    assert N.parse('{"type":"text","id":"a","text":"wor"}') == (Say("a", "wor"),)
    assert N.parse('{"type":"flush","id":"a","mark":3}') == (FlushAsk("a", 3),)


def test_native_audio_is_binary_with_the_stream_number() -> None:
    assert N.render(Audio("a", 258, b"xyz", 0, 1)) == b"\x00\x00\x01\x02xyz"
    assert json.loads(N.render(Pong("t"))) == {"type": "pong", "token": "t"}


def test_openai_body_as_the_package_sends_it() -> None:
    ask = openai.parse_speech({"model": "tts-1", "voice": "alloy", "input": "hi", "speed": 2.0})
    assert ask.setup.audio_format == "mp3" and not ask.sse and ask.setup.spec.padding_bonus == -2.0
    ask = openai.parse_speech({"input": "hi", "voice": {"id": "x"}, "stream_format": "sse", "response_format": "pcm"})
    assert ask.sse and ask.setup.voice == "x"


def test_openai_names_map_to_ours_always_alike_and_never_hide_ours() -> None:
    names = openai.aliases(("anna", "nova"))
    assert set(names) == set(openai.VOICES) - {"nova"} and set(names.values()) == {"anna", "nova"}
    assert openai.aliases(()) == {}


def test_openai_input_is_bounded() -> None:
    with pytest.raises(WireError, match="4096"):
        openai.parse_speech({"input": "x" * 5000})


@pytest.mark.parametrize("value", [["TimeEn", "fr"], "TimeEn, fr"])
def test_rewrite_rules_are_names_in_order(value: object) -> None:
    assert spec_of({"rewrite_rules": value}).text_rules == ("TimeEn", "fr")
    assert spec_of({"rewrite_rules": []}).text_rules == ()
    assert spec_of({}).text_rules is None


@pytest.mark.parametrize("value", [5, ["TimeEn", 5], "TimeXx", ["en"] * 101])
def test_a_wrong_rewrite_rule_is_refused_with_a_reason(value: object) -> None:
    with pytest.raises(WireError, match="rewrite"):
        spec_of({"rewrite_rules": value})

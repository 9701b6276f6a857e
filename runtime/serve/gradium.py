"""The Gradium text-to-speech WebSocket, spelled as the public clients read and write it. Pure.

Two things differ from a plain reading: the server joins successive text messages with one space, so a message never
ends in the middle of a word; and an error message always goes out before a close, because the public client takes a
bare close for a short but complete result.
"""

from __future__ import annotations

import json
import re

import pybase64

from runtime.serve.wire import (
    TEXT_CHARS_MAX,
    Audio,
    Done,
    EndAsk,
    Failed,
    FlushAsk,
    Inbound,
    Outbound,
    Pong,
    Ready,
    Say,
    Setup,
    WireError,
    Word,
    close_code,
    get_flag,
    get_text,
    read_frame,
    required_text,
    spec_of,
    to_json,
)

FLUSH = re.compile(r"\s*<flush\s*/?>\s*")

# Gradium's names where they differ from ours: its bare names mean 48 kHz.
FORMATS = {"wav": "wav_48000", "pcm": "pcm_48000"}
KNOWN_FORMATS = frozenset(
    ["wav", "pcm", "opus", "ulaw_8000", "mulaw_8000", "alaw_8000"]
    + [f"pcm_{rate}" for rate in (8000, 16000, 22050, 24000, 44100, 48000)]
)


def audio_format(name: str) -> str:
    """Our name of the format. Raises WireError, which lists theirs."""
    if name not in KNOWN_FORMATS:
        raise WireError("invalid", f"unknown output_format {name!r}; there are: {', '.join(sorted(KNOWN_FORMATS))}")
    return FORMATS.get(name, name)


def setup_of(obj: dict[str, object], req_id: str | None) -> Setup:
    """A Setup from a setup message or from a REST body, which have the same fields."""
    voice = get_text(obj, "voice_id") or get_text(obj, "voice")
    return Setup(
        req_id,
        voice,
        audio_format(get_text(obj, "output_format", "wav")),
        spec_of(_config(obj.get("json_config"))),
        get_text(obj, "pronunciation_id") or None,
        get_flag(obj, "close_ws_on_eos", True),
    )


def _config(value: object) -> dict[str, object]:
    """json_config is an object or a string that holds one; empty means none."""
    if value is None or value == "":
        return {}
    try:
        config = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as why:
        raise WireError("invalid", f"json_config is not JSON: {why}") from None
    if not isinstance(config, dict):
        raise WireError("invalid", "json_config must hold an object")
    return config


def split_flushes(text: str, req_id: str | None) -> tuple[Inbound, ...]:
    """The text around its <flush> tags, each tag a flush barrier. Every piece ends its last word."""
    parts = FLUSH.split(text)
    out: list[Inbound] = []
    for n, part in enumerate(parts):
        if n:
            out.append(FlushAsk(req_id, 0))
        if part:
            out.append(Say(req_id, part + " "))
    return tuple(out)


def _read(kind: str, obj: dict[str, object], req_id: str | None) -> tuple[Inbound, ...] | None:
    match kind:
        case "setup":
            return (setup_of(obj, req_id),)
        case "text":
            return split_flushes(required_text(obj, "text", chars_max=TEXT_CHARS_MAX, piece=True), req_id)
        case "end_of_stream":
            return (EndAsk(req_id),)
    return None


class GradiumWire:
    name = "gradium"

    def parse(self, frame: str | bytes) -> tuple[Inbound, ...]:
        """`cancel` and `ping` are ours: Gradium has neither. A cancel is answered by end_of_stream with `cancelled`."""
        return read_frame(frame, "client_req_id", _read)

    def render(self, out: Outbound) -> str | None:
        match out:
            case Audio():
                return _audio(out)
            case Word():
                return _word(out)
            case Ready():
                fields: dict[str, object] = {
                    "type": "ready",
                    "request_id": out.request_id,
                    "model_name": "default",
                    "sample_rate": out.sample_rate,
                    "frame_size": out.sample_rate * 8 // 100,
                    "voice_id": out.voice,
                }
            case Done():
                fields = {"type": "end_of_stream"}
                if out.cancelled:
                    fields["cancelled"] = True
            case Failed():
                fields = {"type": "error", "message": out.message, "code": close_code(out.code), "reason": out.code}
                if out.retry_after_s is not None:
                    fields["retry_after_s"] = out.retry_after_s
            case Pong(token=token):
                return to_json({"type": "pong", "token": token})
            case _:
                return None
        if out.req_id is not None:
            fields["client_req_id"] = out.req_id
        return to_json(fields)


def _audio(out: Audio) -> str:
    """Written by hand: the general way takes twice as long, for every piece of every stream's sound."""
    sound = pybase64.b64encode_as_string(out.data)
    return f'{{"type": "audio", "audio": "{sound}", {_span(out)}'


def _word(out: Word) -> str:
    """By hand as well: words are as many as pieces of sound."""
    return f'{{"type": "text", "text": {to_json(out.text)}, {_span(out)}'


def _span(out: Audio | Word) -> str:
    named = "" if out.req_id is None else f', "client_req_id": {to_json(out.req_id)}'
    return f'"start_s": {out.start_s:.4f}, "stop_s": {out.stop_s:.4f}, "stream_id": 0{named}}}'

"""Our own WebSocket protocol: JSON messages, audio as binary frames. Pure. Documented in asyncapi.yaml.

Text pieces are joined as they come, so an LLM's tokens can be passed on unchanged. A binary frame is four bytes, the
stream's number on this socket (big endian), and then audio: no base64, and several streams share a socket.
"""

from __future__ import annotations

import struct

from runtime.admission import Priority
from runtime.serve.wire import (
    TEXT_CHARS_MAX,
    Audio,
    Done,
    EndAsk,
    Failed,
    FlushAsk,
    FlushedOut,
    Inbound,
    Outbound,
    PausedOut,
    Pong,
    Ready,
    Say,
    Setup,
    WireError,
    Word,
    get_int,
    get_number,
    get_text,
    read_frame,
    required_text,
    spec_of,
    to_json,
)

PRIORITIES = {"batch": Priority.BATCH, "normal": Priority.NORMAL, "high": Priority.HIGH}


def setup_of(obj: dict[str, object], req_id: str | None) -> Setup:
    """A Setup from a start message or from a POST body, which have the same fields."""
    rank = get_text(obj, "priority")
    if rank and rank not in PRIORITIES:
        raise WireError("invalid", f"unknown priority {rank!r}; there are: {', '.join(PRIORITIES)}", param="priority")
    return Setup(
        req_id,
        get_text(obj, "voice"),
        get_text(obj, "format", "pcm_24000"),
        spec_of(obj, speed=get_number(obj, "speed", 0.25, 4), cfg="cfg" if "cfg" in obj else "cfg_coef"),
        get_text(obj, "pronunciation") or None,
        close_on_end=False,
        priority=PRIORITIES.get(rank),
    )


def _read(kind: str, obj: dict[str, object], req_id: str | None) -> tuple[Inbound, ...] | None:
    match kind:
        case "start":
            return (setup_of(obj, req_id),)
        case "text":
            return (Say(req_id, required_text(obj, "text", chars_max=TEXT_CHARS_MAX, piece=True)),)
        case "flush":
            return (FlushAsk(req_id, get_int(obj, "mark", 0, 2**53) or 0),)
        case "end":
            return (EndAsk(req_id),)
    return None


class NativeWire:
    name = "native"

    def parse(self, frame: str | bytes) -> tuple[Inbound, ...]:
        return read_frame(frame, "id", _read)

    def render(self, out: Outbound) -> str | bytes:
        match out:
            case Audio():
                return struct.pack(">I", out.stream) + out.data
            case Ready():
                fields: dict[str, object] = {
                    "type": "started",
                    "id": out.req_id,
                    "stream": out.stream,
                    "request_id": out.request_id,
                    "sample_rate": out.sample_rate,
                    "content_type": out.content_type,
                    "voice": out.voice,
                }
            case Word():
                return _word(out)
            case PausedOut():
                fields = {"type": "paused", "id": out.req_id}
            case FlushedOut():
                fields = {"type": "flushed", "id": out.req_id, "mark": out.mark}
            case Done():
                seconds = round(out.audio_s, 4)
                fields = {"type": "done", "id": out.req_id, "audio_s": seconds, "cancelled": out.cancelled}
            case Failed():
                fields = {"type": "error", "id": out.req_id, "code": out.code, "message": out.message}
                if out.retry_after_s is not None:
                    fields["retry_after_s"] = out.retry_after_s
            case Pong(token=token):
                return to_json({"type": "pong", "token": token})
        return to_json({k: v for k, v in fields.items() if v is not None})


def _word(out: Word) -> str:
    """By hand: words are as many as pieces of sound, and the general way takes several times as long."""
    named = "" if out.req_id is None else f'"id": {to_json(out.req_id)}, '
    span = f'"start_s": {out.start_s:.4f}, "stop_s": {out.stop_s:.4f}'
    return f'{{"type": "word", {named}"text": {to_json(out.text)}, {span}}}'

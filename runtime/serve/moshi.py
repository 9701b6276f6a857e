"""moshi-server's text-to-speech WebSocket, spelled as its clients (unmute) read and write it. Pure.

One socket is one stream; the set-up is in the URL. Text frames are text; binary frames are MessagePack, or a single
zero byte for the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import ormsgpack

from runtime.serve.wire import (
    TEXT_CHARS_MAX,
    Audio,
    Done,
    EndAsk,
    Failed,
    Inbound,
    Outbound,
    Ready,
    Say,
    Setup,
    WireError,
    Word,
    required_text,
    spec_of,
)

# Their names: the codec, and whether messages or bare audio go out.
FORMATS = {
    "PcmMessagePack": ("pcm_f32", True),
    "OggOpusMessagePack": ("opus", True),
    "OggOpus": ("opus", False),
    "Pcm": ("pcm_f32", False),
}


def setup_of(query: Mapping[str, str]) -> tuple[Setup, MoshiWire]:
    name = query.get("format", "OggOpus")
    if name not in FORMATS:
        raise WireError("invalid", f"unknown format {name!r}; there are: {', '.join(FORMATS)}")
    audio_format, packed = FORMATS[name]
    knobs: dict[str, object] = {}
    for name in ("cfg_alpha", "temp", "seed"):
        if name in query:
            try:
                knobs[name] = int(query[name]) if name == "seed" else float(query[name])
            except ValueError:
                raise WireError("invalid", f"{name} must be a number") from None
    spec = spec_of(knobs, cfg="cfg_alpha")
    return Setup(None, query.get("voice", ""), audio_format, spec), MoshiWire(audio_format, packed)


class MoshiWire:
    name = "moshi"

    def __init__(self, audio_format: str = "pcm_f32", packed: bool = True) -> None:
        self._float, self._packed = audio_format == "pcm_f32", packed

    def parse(self, frame: str | bytes) -> tuple[Inbound, ...]:
        if isinstance(frame, str):
            if len(frame) > TEXT_CHARS_MAX:
                raise WireError("too_large", f"text is longer than {TEXT_CHARS_MAX} characters")
            return (Say(None, frame + " "),) if frame.strip() else ()
        if frame == b"\0":
            return (EndAsk(None),)
        try:
            obj = ormsgpack.unpackb(frame)
        except ValueError as why:
            raise WireError("malformed", f"not MessagePack: {type(why).__name__}") from None
        if not isinstance(obj, dict):
            raise WireError("malformed", "a message is a map")
        match obj.get("type"):
            case "Text":
                text = required_text(obj, "text", chars_max=TEXT_CHARS_MAX, piece=True)
                return (Say(None, text + " "),) if text.strip() else ()
            case "Eos":
                return (EndAsk(None),)
            case "Voice":
                raise WireError("invalid", "voice embeddings are not taken here; name a voice in the URL")
        raise WireError("malformed", f"unknown message type {str(obj.get('type'))[:40]!r}")

    def render(self, out: Outbound) -> bytes | None:
        if not self._packed:
            # Bare audio has no way to say anything else; an error is seen in the close code.
            return out.data if isinstance(out, Audio) else None
        match out:
            case Ready():
                return _pack({"type": "Ready"})
            case Audio() if self._float:
                return _pack({"type": "Audio", "pcm": np.frombuffer(out.data, "<f4")})
            case Audio():
                return _pack({"type": "OggOpus", "data": out.data})
            case Word():
                return _pack({"type": "Text", "text": out.text, "start_s": out.start_s, "stop_s": out.stop_s})
            case Failed():
                # Their word for it, which clients look for.
                message = "no free channels" if out.code == "at_capacity" else out.message
                return _pack({"type": "Error", "message": message})
            case Done():
                return None
        return None


def _pack(fields: dict[str, object]) -> bytes:
    return ormsgpack.packb(fields, option=ormsgpack.OPT_SERIALIZE_NUMPY)

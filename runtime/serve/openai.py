"""OpenAI's /v1/audio/speech, spelled as the `openai` package reads and writes it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pybase64

from runtime.serve.wire import Setup, WireError, get_number, get_text, required_text, spec_of

INPUT_CHARS_MAX = 4_096
FORMATS = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "wav", "pcm": "pcm"}
# Clients such as pipecat allow no other names; each is given one of ours, always the same one.
VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeechAsk:
    setup: Setup
    text: str
    sse: bool


def parse_speech(obj: dict[str, object]) -> SpeechAsk:
    """The request of a JSON body. Raises WireError. `model` and `instructions` are accepted and have no effect."""
    text = required_text(obj, "input", chars_max=INPUT_CHARS_MAX, piece=True)
    for name in ("model", "instructions"):
        get_text(obj, name, chars_max=INPUT_CHARS_MAX)
    voice = obj.get("voice", "alloy")
    if isinstance(voice, dict):
        voice = voice.get("id")
    if not isinstance(voice, str):
        raise WireError("invalid", "voice must be a name, or an object with an id", param="voice")
    name = get_text(obj, "response_format", "mp3")
    if name not in FORMATS:
        there = ", ".join(FORMATS)
        raise WireError("invalid", f"unknown response_format {name!r}; there are: {there}", param="response_format")
    stream = get_text(obj, "stream_format", "audio")
    if stream not in ("audio", "sse"):
        raise WireError("invalid", f"unknown stream_format {stream!r}; there are: audio, sse", param="stream_format")
    spec = spec_of({k: obj[k] for k in ("seed", "temp") if k in obj}, speed=get_number(obj, "speed", 0.25, 4))
    return SpeechAsk(Setup(None, voice, FORMATS[name], spec), text, stream == "sse")


def aliases(voices: Sequence[str]) -> Mapping[str, str]:
    """OpenAI's voice names spread over the given ones; a name that we have ourselves means ours."""
    if not voices:
        return {}
    return {name: voices[n % len(voices)] for n, name in enumerate(VOICES) if name not in voices}


def sse_delta(audio: bytes) -> bytes:
    """By hand: the general way looks at every letter of the sound."""
    return b'data: {"type": "speech.audio.delta", "audio": "%b"}\n\n' % pybase64.b64encode(audio)


def sse_done(input_chars: int, audio_s: float) -> bytes:
    """The last event. Tokens are the nearest thing we have: four characters, or one 80 ms frame, each."""
    spoken, heard = -(-input_chars // 4), round(audio_s * 12.5)
    usage = {"input_tokens": spoken, "output_tokens": heard, "total_tokens": spoken + heard}
    return b"data: " + json.dumps({"type": "speech.audio.done", "usage": usage}).encode() + b"\n\n"


def sse_error(code: str, message: str) -> bytes:
    return b"data: " + json.dumps({"type": "error", **error_body(code, message)}).encode() + b"\n\n"


# HTTP status by our word, for this protocol and our own.
STATUS: Mapping[str, int] = {
    "malformed": 400,
    "invalid": 400,
    "voice_unknown": 400,
    "too_large": 413,
    "unauthorized": 401,
    "not_found": 404,
    "wrong_method": 405,
    "unsupported": 501,
    "key_streams": 429,
    "key_rate": 429,
    "fair_share": 429,
    "at_capacity": 503,
    "draining": 503,
    "warming": 503,
    "storage": 507,
}


def status_of(code: str) -> int:
    return STATUS.get(code, 500)


def error_body(code: str, message: str, param: str | None = None) -> dict[str, object]:
    """The error as the package shows it: type by who must act, code the word, param the field."""
    kind = "invalid_request_error" if status_of(code) < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}

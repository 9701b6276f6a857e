"""What clients and the server say to one another, whatever the protocol; each protocol is a Wire that spells it.

Pure: frames in, values out, and back. No sockets, no clock. A client's mistake is a WireError with a word for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runtime.admission import Priority
from runtime.errors import NameUnknown
from runtime.port import StreamSpec
from runtime.serve.pieces import is_whole
from runtime.text_rules import chosen_rules

# Bounds on what one message may make the server hold; far above what any client sends.
TEXT_CHARS_MAX = 65_536
NAME_CHARS_MAX = 256
# A value as JSON. One encoder for all: `json.dumps` with a wish of its own builds one for every message.
to_json = json.JSONEncoder(ensure_ascii=False).encode
RULE_NAMES_MAX = 100


class WireError(Exception):
    """The client said something that cannot be done.

    `code` is one word: malformed (the frame itself), invalid (a value), voice_unknown, unknown_stream, too_large,
    too_many_streams, or one of the server's own refusals. `param`: the field that is wrong, where it is one.
    """

    def __init__(self, code: str, message: str, req_id: str | None = None, param: str | None = None) -> None:
        self.code, self.req_id, self.param = code, req_id, param
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Setup:
    """Open a stream. `voice` is as the client wrote it ("": the default); `spec.voices` is filled in later."""

    req_id: str | None
    voice: str
    audio_format: str
    spec: StreamSpec
    pronunciation_id: str | None = None
    close_on_end: bool = True
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Say:
    req_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class FlushAsk:
    req_id: str | None
    mark: int


@dataclass(frozen=True, slots=True)
class EndAsk:
    req_id: str | None


@dataclass(frozen=True, slots=True)
class CancelAsk:
    req_id: str | None


@dataclass(frozen=True, slots=True)
class Ping:
    token: str


Inbound = Setup | Say | FlushAsk | EndAsk | CancelAsk | Ping


@dataclass(frozen=True, slots=True)
class Ready:
    req_id: str | None
    stream: int  # number of the stream on this socket, from 1
    request_id: str
    sample_rate: int
    content_type: str
    voice: str


class Audio(NamedTuple):
    """A tuple, as Word is: there are several a second of sound, and a frozen dataclass takes five times as long."""

    req_id: str | None
    stream: int
    data: bytes
    start_s: float
    stop_s: float


class Word(NamedTuple):
    req_id: str | None
    stream: int
    text: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class PausedOut:
    req_id: str | None


@dataclass(frozen=True, slots=True)
class FlushedOut:
    req_id: str | None
    mark: int


@dataclass(frozen=True, slots=True)
class Done:
    req_id: str | None
    stream: int
    audio_s: float
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Something ended for a reason the client must see. `req_id` None and `fatal`: the socket closes after it."""

    req_id: str | None
    code: str
    message: str
    retry_after_s: float | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Pong:
    token: str


Outbound = Ready | Audio | Word | PausedOut | FlushedOut | Done | Failed | Pong


def read_frame(
    frame: str | bytes, id_name: str, read: Callable[[str, dict[str, object], str | None], tuple[Inbound, ...] | None]
) -> tuple[Inbound, ...]:
    """What a JSON frame asks for. `read` gets its type, the object and its id, and gives None for an unknown type.

    Raises WireError with the id, so that the failure is told to the stream it belongs to.
    """
    obj = json_object(frame)
    req_id = get_text(obj, id_name) or None
    kind = get_text(obj, "type")
    try:
        if kind == "cancel":
            return (CancelAsk(req_id),)
        if kind == "ping":
            return (Ping(get_text(obj, "token")),)
        found = read(kind, obj, req_id)
    except WireError as why:
        why.req_id = req_id
        raise
    if found is None:
        raise WireError("malformed", f"unknown message type {kind!r}", req_id)
    return found


class Wire(Protocol):
    """One protocol's spelling; one instance per socket."""

    name: str

    def parse(self, frame: str | bytes) -> tuple[Inbound, ...]:
        """What the frame asks for, in order. Raises WireError."""

    def render(self, out: Outbound) -> str | bytes | None:
        """The frame that says it; None where the protocol has no word for it."""


# Close codes of RFC 6455 by our word. 1002 and 1003 mean to clients: never try the same again.
CLOSE_CODES: Mapping[str, int] = {
    "malformed": 1002,
    "unknown_stream": 1002,
    "invalid": 1003,
    "id_in_use": 1003,
    "voice_unknown": 1003,
    "too_large": 1009,
    "draining": 1012,
    "internal": 1011,
}


def close_code(code: str) -> int:
    """The close code that goes with a refusal; 1008 (policy) for limits, capacity, authentication and idleness."""
    return CLOSE_CODES.get(code, 1008)


def json_object(frame: str | bytes) -> dict[str, object]:
    """The object that the frame holds. Raises WireError for anything else."""
    try:
        value = json.loads(frame)
    except (ValueError, RecursionError) as why:
        raise WireError("malformed", f"not JSON: {why}") from None
    if not isinstance(value, dict):
        raise WireError("malformed", f"a message is a JSON object, not {type(value).__name__}")
    return value


def get_text(
    obj: Mapping[str, object], name: str, default: str = "", *, chars_max: int = NAME_CHARS_MAX, piece: bool = False
) -> str:
    """piece: of a longer text, so that a character may be cut in two; see `pieces`."""
    value = obj.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise WireError("invalid", f"{name} must be a string", param=name)
    if len(value) > chars_max:
        raise WireError("too_large", f"{name} is longer than {chars_max} characters", param=name)
    if not piece and not is_whole(value):
        raise WireError("invalid", f"{name} holds half of a character, {value[:40]!a}", param=name)
    return value


def required_text(
    obj: Mapping[str, object], name: str, *, chars_max: int = NAME_CHARS_MAX, piece: bool = False
) -> str:
    """As get_text, for a field that must be there; it may be empty."""
    if name not in obj:
        raise WireError("invalid", f"{name} is missing", param=name)
    if obj[name] is None:
        raise WireError("invalid", f"{name} must be a string, not null", param=name)
    return get_text(obj, name, chars_max=chars_max, piece=piece)


def get_number(obj: Mapping[str, object], name: str, low: float, high: float) -> float | None:
    value = obj.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError("invalid", f"{name} must be a number", param=name)
    # Compared before anything is made of it: JSON knows no largest number, and some readers of it know NaN.
    if not low <= value <= high:
        stands = f"{name} must be between {low:g} and {high:g}, not {str(value)[:20]}"
        raise WireError("invalid", stands, param=name)
    return float(value)


def get_int(obj: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    value = obj.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireError("invalid", f"{name} must be a whole number", param=name)
    if not low <= value <= high:
        raise WireError("invalid", f"{name} must be between {low} and {high}, not {value}", param=name)
    return value


def get_flag(obj: Mapping[str, object], name: str, default: bool) -> bool:
    value = obj.get(name, default)
    if not isinstance(value, bool):
        raise WireError("invalid", f"{name} must be true or false", param=name)
    return value


def spec_of(obj: Mapping[str, object], *, speed: float | None = None, cfg: str = "cfg_coef") -> StreamSpec:
    """A StreamSpec of the knobs that all protocols share; `voices` stays empty. Unknown keys are ignored.

    `cfg` is what the protocol calls the strength of guidance.

    `speed` (0.25 to 4, 1 is normal) becomes a padding bonus, which is what the model has: 2 units per halving.
    """
    if obj.get("max_padding_per_token") is not None:
        raise WireError("invalid", "max_padding_per_token is not known here; max_padding bounds the pause after a word")
    bonus = get_number(obj, "padding_bonus", -4, 4)
    if bonus is None:
        bonus = max(-4.0, min(4.0, -2.0 * math.log2(speed))) if speed else 0.0
    return StreamSpec(
        seed=get_int(obj, "seed", 0, 2**63 - 1) or 0,
        temp=get_number(obj, "temp", 0, 1.4),
        cfg=get_number(obj, cfg, 1, 4),
        padding_bonus=bonus,
        max_padding=get_int(obj, "max_padding", 1, 1_000),
        padding_between=_between(obj),
        text_rules=_text_rules(obj),
    )


def _text_rules(obj: Mapping[str, object]) -> tuple[str, ...] | None:
    """`rewrite_rules`: names or languages, as a list or in one string with commas; absent: the server's own."""
    value = obj.get("rewrite_rules")
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or len(names) > RULE_NAMES_MAX or not all(isinstance(n, str) for n in names):
        raise WireError("invalid", f"rewrite_rules must be at most {RULE_NAMES_MAX} names")
    rules = tuple(name.strip() for name in names if name.strip())
    try:
        chosen_rules(rules)
    except NameUnknown as why:
        raise WireError("invalid", str(why)) from None
    return rules


def _between(obj: Mapping[str, object]) -> int:
    value = get_int(obj, "padding_between", 0, 100)
    return 1 if value is None else value

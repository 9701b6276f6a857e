"""Owns the settings: name, unit, bound, default, words. Flags come first, then `TTS_*`, a YAML file, the defaults.

The only module that reads the environment. Values are frozen dataclasses, built once at the edge; an unknown setting
is an error in all three places, since a misspelt one would otherwise be a default nobody chose. No torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from runtime.errors import Usage

PREFIX = "TTS_"
NOT_SETTINGS = frozenset({"TTS_CONFIG"})
WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
SIZE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a person may set: how it is written and within which bounds."""

    name: str
    about: str
    unit: str
    kind: type
    default: object
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    pattern: str
    secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()

    def written(self, value: object) -> str:
        """A value as a person would write it: whole powers of two as sizes, lists with commas, nothing as nothing."""
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, bool):
            return str(value).lower()
        if self.unit == "bytes" and isinstance(value, int | float):
            for suffix in ("GiB", "MiB", "KiB"):
                if value >= SIZE_UNITS[suffix] and value % SIZE_UNITS[suffix] == 0:
                    return f"{value / SIZE_UNITS[suffix]:g}{suffix}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def parse(self, text: object, where: str) -> object:
        """The value, within its bounds; Usage names the place it was written in."""
        try:
            value = _convert(self.kind, text)
        except ValueError:
            what = {int: "a whole number", float: "a number", bool: "true or false"}.get(self.kind, "text")
            raise Usage(f"{where} is not {what}: {str(text)[:80]!r}", self.about) from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = float("-inf") if self.low is None else self.low
            high = float("inf") if self.high is None else self.high
            if not low <= value <= high:  # false for NaN too
                bounds = " to ".join(self.written(b) for b in (self.low, self.high) if b is not None)
                raise Usage(f"{where} is out of bounds: {text}", f"allowed: {bounds} {self.unit}".rstrip())
        if self.choices and value not in self.choices:
            raise Usage(f"{where} is unknown: {str(text)[:80]!r}", f"allowed: {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, str(value)):
            raise Usage(f"{where} is unknown: {str(text)[:80]!r}", self.about)
        return value


def _convert(kind: type, text: object) -> object:
    if kind is tuple:
        items = text.split(",") if isinstance(text, str) else text
        if not isinstance(items, list | tuple):
            raise ValueError
        return tuple(str(i).strip() for i in items if str(i).strip())
    if kind is bool:
        if str(text).lower() not in WORDS:
            raise ValueError
        return WORDS[str(text).lower()]
    if isinstance(text, bool | list | dict):
        raise ValueError
    for suffix, scale in SIZE_UNITS.items() if kind in (int, float) else ():
        if str(text).endswith(suffix):
            return kind(float(str(text)[: -len(suffix)]) * scale)
    return Path(str(text)).expanduser() if kind is Path else kind(text)


def setting(
    default: object,
    about: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    secret: bool = False,
) -> Any:
    """A dataclass field that is a setting. A secret comes from the environment or a file, never from a flag."""
    meta = {
        "about": about, "unit": unit, "low": low, "high": high, "choices": choices, "pattern": pattern,
        "secret": secret,
    }  # fmt: skip
    return field(default=cast(Any, default), metadata=meta)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model runs, and how."""

    model: Path = setting(Path("model"), "directory of the checkpoint", unit="path")  # noqa: RUF009 - a field
    device: str = setting("cpu", "where the model runs: cpu, cuda or cuda:N", pattern=r"cpu|cuda(:[0-9]{1,2})?")
    dtype: str = setting("float32", "what the model computes in", choices=("float32", "bfloat16", "int8"))
    threads: int = setting(1, "processor threads of one step; more than cores are slower", low=1, high=256)
    codebooks: int = setting(
        0, "codes spoken a frame, coarse first; fewer are quicker and duller; 0 means all", unit="codes", low=0, high=64
    )
    step: str = setting("eager", "how a step is run", choices=("eager", "compiled", "captured"))
    lanes: int = setting(8, "streams the model can hold at once; tts say takes one", unit="streams", low=1, high=256)
    lookahead: int = setting(
        2, "words that wait besides the next one before it is spoken; fewer start sooner, with a flatter melody",
        unit="words", low=0, high=2,
    )  # fmt: skip
    check_values: bool = setting(True, "at start, read every weight to find ones that are not finite")
    text_rules: tuple[str, ...] = setting(
        ("en",), "how written things are read out: en, fr, de, es, pt or rule names, first match wins; none"
    )


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """How a stream speaks where it does not say so itself."""

    voice: str = setting("", "a voice, a mix (anna:0.7+ben:0.3), speakers by turns (anna,ben); empty: the first one")
    seed: int = setting(0, "which of the possible readings is spoken", low=0, high=2**63 - 1)
    temp: float = setting(-1.0, "temperature of the sound; 0 takes the likeliest; -1 the model's own", low=-1, high=4)
    text_temp: float = setting(-1.0, "temperature of the rhythm; -1 means that of the sound", low=-1, high=4)
    cfg: float = setting(-1.0, "how strictly the voice is followed; -1 means the model's own", low=-1, high=10)
    padding_bonus: float = setting(0.0, "above 0 speaks slower, below faster", unit="logit", low=-20, high=20)


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How `tts serve` listens, whom it lets in, and when it gives up on somebody."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all", unit="address")
    port: int = setting(8089, "port to listen on; 0 takes a free one", unit="port", low=0, high=65535)
    keys: str = setting("", "YAML file of API keys, as hashes with limits; read again on SIGHUP", unit="path")
    keyless: bool = setting(False, "serve without API keys; only on a loopback address")
    metrics_open: bool = setting(False, "serve /metrics without an API key")
    load_max: float = setting(
        0.85, "part of the 80 ms frame that the steps of all streams may fill; the rest absorbs jitter",
        unit="of a frame", low=0.1, high=1.0,
    )  # fmt: skip
    streams_max: int = setting(
        0, "streams admitted at once; 0 means as many as were measured to fit", unit="streams", low=0, high=512
    )
    reserve: int = setting(0, "streams kept free for priorities above batch", unit="streams", low=0, high=512)
    trim_silence: bool = setting(True, "cut the silence before a stream's first sound, all but 20 ms")
    ahead_s: float = setting(
        4.0,
        "how far a WebSocket stream runs ahead of its listener (0.32 s more beside a newcomer); a barge-in wastes that",
        unit="seconds", low=0.2, high=600,
    )  # fmt: skip
    ahead_http_s: float = setting(
        30.0, "how far an HTTP stream may run ahead of real time", unit="seconds", low=0.2, high=3600
    )
    outbox_s: float = setting(
        5.0, "sound kept for a reader that does not take it; then its lane waits", unit="seconds", low=0.5, high=60
    )
    stall_s: float = setting(
        10.0, "age of untaken sound at which a slow reader is shed", unit="seconds", low=0.1, high=600
    )
    idle_s: float = setting(
        120.0, "how long a stream may wait for text before it is ended", unit="seconds", low=1, high=3600
    )
    session_s: float = setting(300.0, "longest life of a stream", unit="seconds", low=1, high=86400)
    drain_s: float = setting(
        300.0, "how long SIGTERM waits for streams to end; as long as the longest call", unit="seconds",
        low=0, high=86400,
    )  # fmt: skip
    heartbeat_s: float = setting(
        20.0, "time between pings on a WebSocket; half of it without a pong means the peer is gone",
        unit="seconds", low=0.1, high=600,
    )  # fmt: skip
    stuck_s: float = setting(
        30.0, "a step longer than this makes /livez fail", unit="seconds", low=1, high=3600
    )
    message_bytes_max: int = setting(
        262144, "largest WebSocket message or JSON body", unit="bytes", low=1024, high=1 << 26
    )
    text_chars_max: int = setting(
        100_000, "most text that one stream may send", unit="characters", low=100, high=10_000_000
    )
    sockets_max: int = setting(1024, "open WebSockets", unit="sockets", low=1, high=65536)
    socket_streams_max: int = setting(64, "streams on one WebSocket", unit="streams", low=1, high=1024)
    voice_aliases: tuple[str, ...] = setting(
        (), "names that clients use for our voices, comma-separated, as name=voice; * stands for any unknown name"
    )
    state: str = setting(
        "", "file that keeps made voices and pronunciations over restarts; empty keeps them in memory",
        unit="path",
    )  # fmt: skip


GROUPS: tuple[type, ...] = (ModelSettings, SpeechSettings, ServeSettings)


def settings_of(group: type) -> tuple[Setting, ...]:
    found = []
    for f in dataclasses.fields(group):
        m = f.metadata
        kind = tuple if isinstance(f.default, tuple) else Path if isinstance(f.default, Path) else type(f.default)
        bounds = m["low"], m["high"], m["choices"], m["pattern"]
        found.append(Setting(f.name, m["about"], m["unit"], kind, f.default, *bounds, m["secret"]))
    return tuple(found)


def all_settings() -> tuple[Setting, ...]:
    return tuple(s for group in GROUPS for s in settings_of(group))


def add_flags(parser: argparse.ArgumentParser, *groups: type) -> None:
    """One flag a setting. Values stay text here: `load` parses them all alike, whatever place they came from."""
    for group in groups:
        section = parser.add_argument_group(f"settings: {(group.__doc__ or '').strip().rstrip('.')}")
        for s in settings_of(group):
            if not s.secret:
                unit = f" [{s.unit}]" if s.unit else ""
                words = f"{s.about}{unit} ({s.env}; default: {s.written(s.default) or 'empty'})".replace("%", "%%")
                bare: dict[str, Any] = {"nargs": "?", "const": "true"} if s.kind is bool else {}
                section.add_argument(s.flag, dest=s.name, default=None, metavar=s.name.upper(), help=words, **bare)


def environment() -> Mapping[str, str]:
    return os.environ


def load(
    group: type[Group], flags: argparse.Namespace, env: Mapping[str, str], file: Mapping[str, object]
) -> Group:  # fmt: skip
    """The group's values: a flag beats the environment, which beats the file, which beats the default."""
    values: dict[str, object] = {}
    for s in settings_of(group):
        flag = getattr(flags, s.name, None)
        if flag is not None:
            values[s.name] = s.parse(flag, s.flag)
        elif env.get(s.env, "") != "":
            values[s.name] = s.parse(env[s.env], s.env)
        elif s.name in file:
            values[s.name] = s.parse(file[s.name], f"setting {s.name}")
    return group(**values)


def check_environment(env: Mapping[str, str]) -> None:
    """Raise Usage for a TTS_ variable that is no setting."""
    known = {s.env for s in all_settings()} | NOT_SETTINGS
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in known:
            raise Usage(f"unknown setting {name} in the environment", _nearest(name, known))


def read_file(flags: argparse.Namespace, env: Mapping[str, str]) -> Mapping[str, object]:
    """The YAML file named by --config or TTS_CONFIG, or nothing. Raises Usage for a file that cannot be meant."""
    name = getattr(flags, "config", None) or env.get("TTS_CONFIG", "")
    if not name:
        return {}
    try:
        value = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except OSError as why:
        raise Usage(f"cannot read the settings file {name}: {why.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        raise Usage(f"the settings file {name} is not YAML: {(str(why).splitlines() or ['?'])[0]}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Usage(f"the settings file {name} is not a list of `setting: value` lines")
    known = {s.name for s in all_settings()}
    for key in value:
        if key not in known:
            raise Usage(f"unknown setting {key!r} in {name}", _nearest(str(key), known))
    return cast(Mapping[str, object], value)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else "`tts serve --help` lists them"

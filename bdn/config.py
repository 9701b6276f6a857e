"""Owns the settings: name, unit, bound, default, words. Flags come first, then `BDN_*`, a YAML file, the defaults.

The only module that reads the environment. Values are frozen dataclasses, built once at the edge; an unknown
setting is an error in all three places, since a misspelt one would otherwise be a default nobody chose.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from bdn.errors import Invalid, Usage
from bdn.policy import Limits

_LIMITS = Limits()
_PREFIX = "BDN_"
# Set by us for others, or read before any group is built; a `bdn` that runs under `bdn run` must not trip over them.
_NOT_SETTINGS = frozenset({"BDN_CONFIG", "BDN_MODEL_DIR"})
_SIZE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


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
    also_env: tuple[str, ...]
    secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return _PREFIX + self.name.upper()

    def written(self, value: object) -> str:
        """A value as a person would write it: whole powers of two as sizes, lists with commas, nothing as nothing."""
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, bool):
            return str(value).lower()
        if self.unit == "bytes" and isinstance(value, int | float):
            for suffix in ("GiB", "MiB", "KiB"):
                if value >= _SIZE_UNITS[suffix] and value % _SIZE_UNITS[suffix] == 0:
                    return f"{value / _SIZE_UNITS[suffix]:g}{suffix}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def parse(self, text: object, where: str) -> object:
        """The value, within its bounds; Usage names the place it was written in."""
        try:
            value = _convert(self.kind, text)
        except ValueError:
            what = {int: "a whole number", float: "a number", bool: "true or false"}.get(self.kind, "text")
            raise Usage(f"{where} is not {what}: {str(text)[:80]!r}", hint=self.about) from None
        bounded = isinstance(value, int | float) and not isinstance(value, bool)
        low, high = self.low, self.high
        # Written so that NaN, which compares false with everything, is refused as well.
        inside = not bounded or ((low is None or value >= low) and (high is None or value <= high))  # type: ignore[operator]
        if not inside or value != value:
            bounds = " to ".join(self.written(b) for b in (self.low, self.high) if b is not None)
            raise Usage(f"{where} is out of bounds: {text}", hint=f"allowed: {bounds} {self.unit}".rstrip())
        if self.choices and value not in self.choices:
            raise Usage(f"{where} is unknown: {str(text)[:80]!r}", hint=f"allowed: {', '.join(self.choices)}")
        return value


def _convert(kind: type, text: object) -> object:
    if kind is tuple:
        items = text.split(",") if isinstance(text, str) else text
        if not isinstance(items, list | tuple):
            raise ValueError
        return tuple(str(i).strip() for i in items if str(i).strip())
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if str(text).lower() not in words:
            raise ValueError
        return words[str(text).lower()]
    if isinstance(text, bool | list | dict):
        raise ValueError
    for suffix, scale in _SIZE_UNITS.items() if kind in (int, float) else ():
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
    also_env: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that is a setting. A secret comes from the environment or a file, never from a flag."""
    meta = {"about": about, "unit": unit, "low": low, "high": high, "choices": choices}
    return field(default=cast(Any, default), metadata={**meta, "also_env": also_env, "secret": secret})


@dataclass(frozen=True, kw_only=True)
class OriginSettings:
    """Where our mirror is."""

    origin: str = setting("", "where mirrored models are: a directory, http(s)://… or s3://bucket/prefix", unit="URL")
    endpoint: str = setting("", "the S3 server behind an s3:// origin; empty means AWS", unit="URL")
    region: str = setting("", "region of the s3:// origin; empty means what the AWS configuration says")
    origin_token: str = setting("", "bearer token for an http(s):// origin; never given as a flag", secret=True)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How a command finds the agent of this node."""

    store: Path = setting(
        Path("~/.cache/bdn"), "directory of this node's models, on its fastest disk; one agent owns it", unit="path"
    )
    socket: str = setting("", "the agent's control socket; empty means agent.sock in the store", unit="path")
    agent_wait_s: float = setting(
        0.0, "how long to wait for the agent's socket to appear", unit="seconds", low=0, high=3600
    )

    @property
    def socket_path(self) -> Path:
        return Path(self.socket).expanduser() if self.socket else self.store.expanduser() / "agent.sock"


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """One node."""

    name: str = setting("", "this node's name in the hash, kept over restarts; empty means the host name")
    host: str = setting("127.0.0.1", "address on which peers are served; 0.0.0.0 for all", unit="address")
    port: int = setting(
        7411, "port of peers, /livez, /readyz and /metrics; 0 takes a free one", unit="port", low=0, high=65535
    )
    zone: str = setting("", "this node's zone")
    peers: tuple[str, ...] = setting((), "the other members, comma-separated, as name=host:port or name@zone=host:port")
    peers_dns: str = setting("", "host:port of a name whose addresses are the members, instead of a list")
    origin_use: str = setting(
        "prefer",
        "where a pull may read chunks: prefer peers, require the origin, or forbid it; tags, and manifests that no "
        "node has, it reads there in any case",
        choices=("prefer", "require", "forbid"),
    )  # fmt: skip
    stall_s: float = setting(
        _LIMITS.stall_s, "a source that sends nothing for so long, not even word that it waits, is left for the next",
        unit="seconds", low=0.1, high=600,
    )  # fmt: skip
    patience_s: float = setting(
        _LIMITS.patience_s,
        "how long one chunk may stay unserved before its pull fails",
        unit="seconds",
        low=1,
        high=86400,
    )
    origin_patience_s: float = setting(
        _LIMITS.origin_patience_s,
        "how long an origin that is down or throttling is retried",
        unit="seconds",
        low=0,
        high=86400,
    )
    origin_concurrency: int = setting(
        _LIMITS.origin_concurrency, "chunks in flight from the origin", unit="chunks", low=1, high=256
    )
    in_flight_chunks: int = setting(
        _LIMITS.in_flight_chunks, "chunks in flight from peers, of all pulls together", unit="chunks", low=1, high=1024
    )
    in_flight_bytes: int = setting(
        _LIMITS.in_flight_bytes, "bytes in flight of all pulls together", unit="bytes", low=1 << 20, high=64 << 30
    )
    uploads: int = setting(
        _LIMITS.uploads,
        "chunks sent to peers at once; beyond it they are told who else has them",
        unit="chunks",
        low=1,
        high=1024,
    )
    settle_s: float = setting(
        -1.0, "after its start a node reads the origin for nobody until its view of the members is this old; -1 "
        "chooses: 0 for a list and in strict mode, 35 for DNS", unit="seconds", low=-1, high=600,
    )  # fmt: skip
    strict_origin: bool = setting(
        False, "claim each chunk at the origin before reading it: one copy whoever sees whom; needs the right to write"
    )
    upload_bytes_per_s: float = setting(
        0.0, "upload cap over all peers; 0 for none", unit="bytes/second", low=0, high=1e12
    )
    congestion: str = setting("", "TCP congestion control towards peers, such as cubic; empty leaves the machine's")
    drain_s: float = setting(
        20.0, "on SIGTERM, how long transfers in flight may go on", unit="seconds", low=0, high=600
    )
    pulls_max: int = setting(
        16, "models pulled at the same time; further ones wait their turn", unit="models", low=1, high=1024
    )

    @property
    def node_name(self) -> str:
        return self.name or socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """A mirrored directory served over HTTP."""

    origin_host: str = setting("127.0.0.1", "address to serve on; 0.0.0.0 for all", unit="address")
    origin_port: int = setting(7480, "port to serve on; 0 takes a free one", unit="port", low=0, high=65535)
    origin_bytes_per_s: float = setting(
        0.0, "most bytes a second over all connections; 0 for no limit", unit="bytes/second", low=0, high=1e12
    )


@dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """Push time."""

    mirror_uploads: int = setting(8, "chunks stored at the origin at the same time", unit="chunks", low=1, high=256)
    mirror_window_bytes: int = setting(
        192 << 20, "most bytes between source and origin; disk is not used", unit="bytes", low=32 << 20, high=64 << 30
    )
    mirror_chunk_bytes: int = setting(
        8 << 20, "about how long a chunk is; a model cut otherwise shares no chunk with what is at the origin",
        unit="bytes", low=1 << 20, high=64 << 20,
    )  # fmt: skip
    source_endpoint: str = setting("", "the S3 server behind an s3:// source; empty means AWS", unit="URL")
    source_region: str = setting("", "region of an s3:// source; empty means what the AWS configuration says")
    hf_endpoint: str = setting(
        "https://huggingface.co", "the hub behind hf:// sources", unit="URL", also_env=("HF_ENDPOINT",)
    )
    hf_token: str = setting(
        "", "token for private and gated repositories; never given as a flag", also_env=("HF_TOKEN",), secret=True
    )


GROUPS: tuple[type, ...] = (OriginSettings, ClientSettings, AgentSettings, MirrorSettings, ServeSettings)
Group = TypeVar("Group")


def settings_of(group: type) -> tuple[Setting, ...]:
    found = []
    for f in dataclasses.fields(group):
        m = f.metadata
        kind = tuple if isinstance(f.default, tuple) else Path if isinstance(f.default, Path) else type(f.default)
        found.append(
            Setting(
                f.name, m["about"], m["unit"], kind, f.default, m["low"], m["high"], m["choices"], m["also_env"],
                m["secret"],
            )
        )  # fmt: skip
    return tuple(found)


def all_settings() -> tuple[Setting, ...]:
    return tuple(s for group in GROUPS for s in settings_of(group))


def add_flags(parser: argparse.ArgumentParser, *groups: type) -> None:
    """One flag a setting. Values stay text here: `load` parses them all alike, whatever place they came from."""
    for group in groups:
        title = (group.__doc__ or "").strip().rstrip(".")
        section = parser.add_argument_group(f"settings: {title}")
        for s in settings_of(group):
            if not s.secret:
                unit = f" [{s.unit}]" if s.unit else ""
                words = f"{s.about}{unit} ({s.env}; default: {s.written(s.default) or 'empty'})".replace("%", "%%")
                metavar = s.name.rsplit("_", 1)[-1].upper()
                bare: dict[str, Any] = {"nargs": "?", "const": "true"} if s.kind is bool else {}
                section.add_argument(s.flag, dest=s.name, default=None, metavar=metavar, help=words, **bare)


def environment() -> Mapping[str, str]:
    return os.environ


def load(
    group: type[Group],
    flags: argparse.Namespace,
    env: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
) -> Group:
    """The group's values: a flag beats the environment, which beats the file, which beats the default."""
    env = environment() if env is None else env
    values: dict[str, object] = {}
    for s in settings_of(group):
        flag = getattr(flags, s.name, None)
        if flag is not None:
            values[s.name] = s.parse(flag, s.flag)
            continue
        name = next((n for n in (s.env, *s.also_env) if env.get(n, "") != ""), None)
        if name is not None:
            values[s.name] = s.parse(env[name], name)
        elif file is not None and s.name in file:
            values[s.name] = s.parse(file[s.name], f"setting {s.name}")
        elif isinstance(s.default, Path):
            values[s.name] = s.default.expanduser()
    return group(**values)


def check_environment(env: Mapping[str, str]) -> None:
    """Raise Usage for a BDN_ variable that is no setting."""
    known = {s.env for s in all_settings()} | _NOT_SETTINGS
    for name in sorted(env):
        if name.startswith(_PREFIX) and name not in known:
            raise Usage(f"unknown setting {name} in the environment", hint=_nearest(name, known))


def read_file(flags: argparse.Namespace, env: Mapping[str, str] | None = None) -> Mapping[str, object]:
    """The YAML file named by --config or BDN_CONFIG, or nothing. Raises Usage for a file that cannot be meant."""
    env = environment() if env is None else env
    name = getattr(flags, "config", None) or env.get("BDN_CONFIG", "")
    if not name:
        return {}
    try:
        value = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except OSError as why:
        raise Usage(f"cannot read the settings file {name}: {why.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        line = str(why).splitlines()[0] if str(why) else "not YAML"
        raise Usage(f"the settings file {name} is not YAML: {line}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Usage(f"the settings file {name} is not a list of `setting: value` lines")
    known = {s.name for s in all_settings()}
    for key in value:
        if key not in known:
            raise Usage(f"unknown setting {key!r} in {name}", hint=_nearest(str(key), known))
    return cast(Mapping[str, object], value)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else "`bdn agent --help` lists them"


def need_origin(settings: OriginSettings) -> OriginSettings:
    if not settings.origin:
        raise Usage("no origin", hint="name it with --origin URL or BDN_ORIGIN")
    return settings


def check_socket(path: Path) -> Path:
    """Raise Invalid for a path the kernel would truncate or refuse (sun_path holds 108 bytes with its NUL)."""
    if len(os.fsencode(path)) > 107:
        raise Invalid(f"the control socket's path is longer than 107 bytes: {path}", hint="name a shorter --socket")
    return path

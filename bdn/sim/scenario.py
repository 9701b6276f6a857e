"""Owns what a scenario file says, parsed strictly: an unknown key, a wrong type or a bad bound is an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_type_hints

import yaml

from bdn.errors import Usage
from bdn.policy import Limits
from bdn.sim.bounds import CHUNKS_MAX, NAME, check, check_node, parsed
from bdn.sim.calls import Calls

T = TypeVar("T")
SIZES: Mapping[str, int] = {"": 1} | {
    unit: base**power
    for power, one in enumerate("KMGT", 1)
    for base, unit in ((1000, f"{one}B"), (1024, f"{one}iB"))
}
_DEATH = frozenset({"nodes", "first", "over_s", "silent"})
FAULTS: Mapping[str, frozenset[str]] = {
    "die": _DEATH,
    "restart": _DEATH | {"for_s"},
    "leave": _DEATH | {"for_s"},
    "flap": _DEATH | {"for_s"},
    "nic": frozenset({"nodes", "first", "over_s", "factor", "for_s"}),
    "disk": frozenset({"nodes", "first", "over_s", "factor", "for_s"}),
    "corrupt": frozenset({"nodes", "first", "over_s", "for_s"}),
    "origin": frozenset({"factor", "for_s"}),
    "origin-down": frozenset({"for_s"}),
}
"""What each kind heeds beside `at_s`."""


@dataclass(frozen=True)
class Model:
    """One model. Several are pulled side by side."""

    bytes: int = 4_000_000_000
    """Also as a size: 20GB, 15GiB."""
    chunk_mib: int = 8
    """1 to 64."""
    seed: str = "model"
    """Its name: what its chunks' digests are drawn from, and how the report calls it."""
    priority: int = 0
    """0 a container waits … 9 background."""
    nodes: tuple[int, ...] = ()
    """Which nodes pull it, by number from 0; empty: all of those that start."""


@dataclass(frozen=True)
class Nodes:
    """Links are full duplex; disk_gb_s is what one node's NVMe takes while it is read by uploads from cache."""

    count: int = 50
    """1 to 10000."""
    nic_gbit: float = 25.0
    """Each direction."""
    disk_gb_s: float = 2.5
    rtt_ms: float = 0.3
    zones: int = 1
    """Node i is in zone i modulo this."""
    zone_gbit: float = 0.0
    """The links between zones, each direction, in all; 0: not a limit."""


@dataclass(frozen=True)
class OriginSpec:
    """Object storage as its makers describe it: many connections of some 90 MB/s, tens of ms to the first byte."""

    gbit: float = 40.0
    """In all."""
    connection_mb_s: float = 90.0
    """At most, on one connection."""
    first_byte_ms: float = 30.0
    concurrency_max: int = 0
    """More requests at once than this are answered 503 with Retry-After 1 s; 0: no limit."""


@dataclass(frozen=True)
class Joins:
    """The first `present` nodes are known to all from the start; the others join one by one over `over_s`."""

    present: int = -1
    """-1: all."""
    over_s: float = 0.0
    """Each comes at an even chance from 0 to this."""
    lag_s: float = 1.0
    """Each node learns of each change after an even chance from 0 to this."""


@dataclass(frozen=True)
class Pulls:
    """Each node that pulls starts this long after it is present, by even chance."""

    over_s: float = 0.0
    """An even chance from 0 to this."""
    warm: int = 0
    """The first nodes hold the model already and do not pull it."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. nodes: counted from the last node backwards, or `first` onwards."""

    kind: str = "die"
    """`die`; `restart` and come back; `leave`: be told to go, serve on, and die; `flap`: die and come back again and
    again; a slow `nic` or `disk`; `corrupt`: send wrong bytes; a slow `origin`, or none: `origin-down`."""
    at_s: float = 0.0
    nodes: int = 1
    """How many it befalls."""
    first: int = -1
    """The first of them; -1: they are the last ones."""
    over_s: float = 0.0
    """Spreads the nodes' faults evenly over this long."""
    factor: float = 1.0
    """For nic, disk and origin: the new rate over the old one."""
    for_s: float = 0.0
    """How long it lasts; 0: for ever. A restart or a flap is away for 0.1 s at least, who leaves serves on for 1 s."""
    silent: bool = False
    """A death that closes no connection, as when a machine loses its power."""


@dataclass(frozen=True)
class Expect:
    """What the run is held to: the most that a figure may be. A run in which nobody finishes has failed in any case."""

    origin_copies_max: float | None = None
    ratio_to_bound_max: float | None = None
    busiest_upload_ratio_max: float | None = None
    cross_zone_copies_max: float | None = None
    median_s_max: float | None = None
    """Of what each node that finished took."""
    avoidable_origin_reads_max: float | None = None
    """Of chunks that another living node had, or was reading."""
    failed_max: int = 0
    """Pulls that may fail; none unless a scenario says so."""
    model_seconds_max: Mapping[str, float] = field(default_factory=dict)
    """By the model's `seed`: from its first start to its last completion."""


@dataclass(frozen=True)
class Scenario:
    """One rollout."""

    name: str
    """Of the run, and of its pictures' files."""
    about: str
    """What it shows."""
    models: tuple[Model, ...] = (Model(),)
    nodes: Nodes = Nodes()
    origin: OriginSpec = OriginSpec()
    joins: Joins = Joins()
    pulls: Pulls = Pulls()
    faults: tuple[Fault, ...] = ()
    limits: Limits = field(default_factory=Limits)
    strict: bool = False
    """Claims at the origin before each read of it, as with `--strict-origin`."""
    rivals: bool = True
    """Whether the other ways are run as well, where the command does not say."""
    time_s_max: float = 7200.0
    """Simulated seconds after which the run is given up: somebody waits for ever."""
    expect: Expect = Expect()
    calls: Mapping[str, Any] = field(default_factory=dict)
    """For the autoscaling scenario; see `calls.py`."""

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.kind not in FAULTS:
                raise Usage(f"unknown fault {fault.kind!r}", where=self.name, hint=f"one of {', '.join(FAULTS)}")
        if not 0 < self.nodes.count <= 10_000:
            raise Usage(f"nodes.count must be 1 to 10000, not {self.nodes.count}", where=self.name)
        if not self.models:
            raise Usage("models is empty: nothing would be pulled", where=self.name)
        if not 1 <= min(m.chunk_mib for m in self.models) <= max(m.chunk_mib for m in self.models) <= 64:
            raise Usage("chunk_mib must be 1 to 64", where=self.name)


class _Strict(yaml.SafeLoader):
    """The safe loader, but a key written twice is an error: one of the two was meant."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text: str, where: str) -> Scenario:
    """The scenario that a YAML text describes. Raises Usage, naming the key that is off."""
    try:
        value = yaml.load(text, _Strict)
    except (yaml.YAMLError, ValueError) as why:  # ValueError: a date that is none, a number of too many digits.
        raise Usage(f"not YAML: {str(why).splitlines()[0]}", where=where) from None
    except RecursionError:
        raise Usage("nested too deeply", where=where) from None
    if value is None:
        raise Usage("the file is empty", where=where, hint="benchmarks/scenarios/ holds some to start from")
    scenario = _build(Scenario, value, where)
    _check_together(scenario, where)
    return scenario


def _check_together(s: Scenario, where: str) -> None:
    """What is right or wrong only beside the rest of the file."""
    count = s.nodes.count
    if not NAME.fullmatch(s.name):
        raise Usage(f"name {s.name[:80]!r} must be letters, digits, dots, - and _", where=where)
    for at, model in enumerate(s.models):
        if model.bytes > CHUNKS_MAX * (model.chunk_mib << 20):
            raise Usage(f"more than {CHUNKS_MAX} chunks; use a larger chunk_mib", where=f"{where}: models[{at}]")
        for number in model.nodes:
            check_node(count, number, f"{where}: models[{at}]")
    if len({m.seed for m in s.models}) < len(s.models):
        raise Usage("two models of one seed are one model; give each its own", where=f"{where}: models")
    if s.joins.present > count or s.pulls.warm > count:
        raise Usage(f"joins.present and pulls.warm are at most nodes.count, {count}", where=where)
    for at, fault in enumerate(s.faults):
        here = f"{where}: faults[{at}]"
        if not fault.kind.startswith("origin"):
            check_node(count, max(fault.first, 0) + fault.nodes - 1, here)
        for f in dataclasses.fields(Fault):
            given = getattr(fault, f.name) != f.default and f.name not in ("kind", "at_s")
            if given and f.name not in FAULTS[fault.kind]:
                heeded = ", ".join(["at_s", *sorted(FAULTS[fault.kind])])
                raise Usage(f"{fault.kind} has no use for {f.name}", where=here, hint=f"it heeds {heeded}")
        if "factor" in FAULTS[fault.kind] and fault.factor == 1.0:
            raise Usage(f"{fault.kind} changes nothing without a factor other than 1", where=here)
    if s.nodes.zones > count:
        raise Usage(f"zones: {s.nodes.zones} of them for {count} nodes; some would be empty", where=f"{where}: nodes")
    if s.nodes.zones == 1 and (s.nodes.zone_gbit or s.expect.cross_zone_copies_max is not None):
        what = "zone_gbit" if s.nodes.zone_gbit else "expect: cross_zone_copies_max"
        raise Usage(f"{what} says nothing with one zone", where=where, hint="nodes: zones")
    seeds = {m.seed for m in s.models}
    for seed in s.expect.model_seconds_max:
        if seed not in seeds:
            raise Usage(f"no model has the seed {seed!r}", where=f"{where}: expect: model_seconds_max")
    if s.calls:
        parsed(lambda: Calls.parse(s.calls), f"{where}: calls")


def _build(kind: type[T], value: object, where: str) -> T:
    if not isinstance(value, dict):
        raise Usage(f"expected a mapping, got {type(value).__name__}", where=where)
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(map(str, value)) - set(fields))
    if unknown:
        raise Usage(f"unknown key {unknown[0]!r}", where=where, hint=f"one of {', '.join(sorted(fields))}")
    missing = [
        n for n, f in fields.items()
        if n not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    if missing:
        raise Usage(f"{missing[0]!r} is missing", where=where)
    found = {n: _value(hints[n], v, f"{where}: {n}") for n, v in value.items()}
    for name, one in found.items():
        check(kind.__name__, name, one, f"{where}: {name}")
    return kind(**found)


def _number(text: str) -> object:
    """A number that YAML 1.1 takes for words, as 1e9, or a size; anything else as it is."""
    head = text.rstrip("KMGTiB")
    scale = SIZES.get(text[len(head) :], 0)
    try:
        return (float(head) * scale if scale > 1 else float(text)) if scale else text
    except ValueError:
        return text


def _value(hint: Any, value: object, where: str) -> object:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)  # type: ignore[arg-type]
    if hint in (int, float) and isinstance(value, str):
        value = _number(value)
    if hint in (int, float, str, bool):
        good = isinstance(value, hint) or (hint is float and isinstance(value, int))
        if not good or (isinstance(value, bool) and hint is not bool):
            if hint is int and isinstance(value, float) and value.is_integer():
                return int(value)
            raise Usage(f"expected {hint.__name__}, got {value!r}", where=where)
        try:
            return float(value) if hint is float else value  # type: ignore[arg-type]
        except OverflowError:
            raise Usage("a number of more than 308 digits", where=where) from None
    if hint == float | None:
        return _value(float, value, where)
    if hint == Mapping[str, float]:
        if not isinstance(value, dict):
            raise Usage(f"expected a mapping, got {value!r}", where=where)
        return {str(k): _value(float, v, f"{where}: {k}") for k, v in value.items()}
    if hint == Mapping[str, Any] and not isinstance(value, dict):
        raise Usage(f"expected a mapping, got {value!r}", where=where)
    if getattr(hint, "__origin__", None) is tuple:
        if not isinstance(value, list):
            raise Usage(f"expected a list, got {value!r}", where=where)
        return tuple(_value(get_args(hint)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    return value

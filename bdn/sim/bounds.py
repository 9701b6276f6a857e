"""Owns what the numbers of a scenario file may be: outside of these a run divides by zero, never ends or fills memory.

Not what is sensible: a link of 1 Mbit/s is a fair question. Names are those of `scenario.py`, as Class.field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf

from bdn.errors import Usage

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # Pictures are files of that name.
CHUNKS_MAX = 1_000_000  # Of one model; each node keeps books on every one.
TINY = 1e-6  # A rate below it is none.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "Model.bytes": (1, 1e15),
    "Model.priority": (0, 9),
    "Nodes.nic_gbit": (TINY, 1e6),
    "Nodes.disk_gb_s": (TINY, 1e6),
    "Nodes.rtt_ms": (0, 1e5),
    "Nodes.zones": (1, 10_000),
    "Nodes.zone_gbit": (0, 1e6),
    "OriginSpec.gbit": (TINY, 1e6),
    "OriginSpec.connection_mb_s": (TINY, 1e6),
    "OriginSpec.first_byte_ms": (0, 1e6),
    "OriginSpec.concurrency_max": (0, 1e6),
    "Joins.present": (-1, 10_000),
    "Joins.over_s": (0, 1e6),
    "Joins.lag_s": (0, 1e6),
    "Pulls.over_s": (0, 1e6),
    "Pulls.warm": (0, 10_000),
    "Fault.at_s": (0, 1e6),
    "Fault.nodes": (1, 10_000),
    "Fault.first": (-1, 9_999),
    "Fault.over_s": (0, 1e6),
    "Fault.factor": (TINY, 1e6),
    "Fault.for_s": (0, 1e6),
    "Limits.settle_s": (0, 1e6),
    "Limits.origin_patience_s": (0, 1e6),
    "Limits.stall_s": (1e-3, 1e6),
    "Limits.patience_s": (1e-3, 1e6),
    "Scenario.time_s_max": (1e-3, 1e7),
}
KINDS: Mapping[str, tuple[float, float]] = {"Limits": (1, 1e12), "Expect": (0, 1e12)}
"""For the fields of a class that have no line of their own."""


def check(kind: str, field: str, value: object, where: str) -> None:
    """Raises Usage for a number outside of its bounds, and for NaN and infinity anywhere."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = BOUNDS.get(f"{kind}.{field}") or KINDS.get(kind, (-inf, inf))
    if not low <= value <= high or abs(value) == inf:
        shown = f"{value:g}" if abs(value) < 1e300 else "that"
        raise Usage(f"must be {low:g} to {high:g}, not {shown}" if high < inf else f"not {shown}", where=where)


def check_node(count: int, number: int, where: str) -> None:
    if not 0 <= number < count:
        raise Usage(f"there is no node {number}: they are 0 to {count - 1}", where=where)


def parsed(parse: Callable[[], object], where: str) -> None:
    """What a loose part of a file says can be read. Raises Usage where it cannot."""
    try:
        parse()
    except KeyError as why:
        raise Usage(f"{why.args[0]!r} is missing", where=where) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as why:
        raise Usage(f"not understood: {why}", where=where) from None

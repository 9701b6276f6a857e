"""Owns the words between nodes: five small JSON messages, parsed strictly, bitmaps as hex.

claim    a node to a model's coordinator: what it has, what it would read from the origin, who failed it
verdict  the answer: what it shall read, whom to ask for the rest, and who holds what
collect  a new coordinator to every node
report   the answer: what the node has, what it was told to read, and what it handed out if it coordinated before
blame    to who sent a chunk with wrong bytes: which chunk
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.holders import Bits, Report
from bdn.roster import NAME, Node

CHUNKS_MAX = 1 << 20  # Of one model: 8 TiB at 8 MiB. Bounds what a message can make us allocate.
NAMES_MAX = 1 << 14
HOPS_MAX = 16  # As for chunks (`http.peer`); a coordinator forwards far less often.
LOAD_MAX = 1 << 20
NUMBER_MAX = 1 << 53
_HOST = re.compile(r"[A-Za-z0-9._:%-]{0,255}")  # It goes into a request's head.


@dataclass(frozen=True)
class Claim:
    manifest: Digest
    size: int
    node: Node
    """Who claims, and where it can be reached: the coordinator may not have heard of it yet."""
    report: Report
    want: Bits
    failed: tuple[str, ...] = ()
    """Who could not be reached, or sent wrong bytes: not to be named again."""
    doubted: tuple[str, ...] = ()
    """Who was said to have a wanted chunk, or to be reading it, and denied it: to be asked."""
    hops: int = 0
    number: int = 0
    """Of this node's claims on this model, one after the other."""

    @property
    def sender(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Verdict:
    read: Bits
    ask: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    holders: Mapping[str, Report] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The addresses of those named, who may be members that the asker has not heard of yet."""


@dataclass(frozen=True)
class Collected:
    report: Report
    assigned: Mapping[str, Bits] = field(default_factory=dict)
    granted: Mapping[str, int] = field(default_factory=dict)
    """See `assignments.Table`."""


def encode_claim(claim: Claim) -> bytes:
    return _encode(
        {
            "doubted": list(claim.doubted), "failed": list(claim.failed), "hops": claim.hops,
            "manifest": claim.manifest.hex, "number": claim.number, "report": _report(claim.report),
            "sender": _node(claim.node), "size": claim.size, "want": claim.want.hex,
        }
    )  # fmt: skip


def parse_claim(body: bytes) -> Claim:
    try:
        o = _object(body)
        size = _size(o["size"])
        return Claim(
            Digest.from_hex(o["manifest"]), size, _parse_node(o["sender"]), _parse_report(o["report"], size),
            Bits.parse(size, o["want"]), _names(o["failed"]), _names(o["doubted"]), _count(o["hops"], HOPS_MAX),
            _count(o["number"], NUMBER_MAX),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("claim", why) from None


def encode_verdict(verdict: Verdict) -> bytes:
    return _encode(
        {
            "ask": {str(i): list(names) for i, names in verdict.ask.items()},
            "holders": {n: _report(r) for n, r in verdict.holders.items()},
            "nodes": [_node(n) for _, n in sorted(verdict.nodes.items())],
            "read": verdict.read.hex,
        }
    )


def parse_verdict(body: bytes, size: int) -> Verdict:
    try:
        o = _object(body)
        ask = {_count(int(i), size - 1): _names(names) for i, names in o["ask"].items()}
        holders = {_name(n): _parse_report(r, size) for n, r in o["holders"].items()}
        nodes = {n.name: n for n in map(_parse_node, o["nodes"])}
        return Verdict(Bits.parse(size, o["read"]), ask, holders, nodes)
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("verdict", why) from None


def encode_collect(manifest: Digest, size: int, sender: Node) -> bytes:
    """With the sender's address: whom it asks may not know of it as a member yet."""
    return _encode({"manifest": manifest.hex, "sender": _node(sender), "size": size})


def parse_collect(body: bytes) -> tuple[Digest, int, Node]:
    try:
        o = _object(body)
        return Digest.from_hex(o["manifest"]), _size(o["size"]), _parse_node(o["sender"])
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("collect", why) from None


def encode_collected(collected: Collected) -> bytes:
    return _encode(
        {
            "assigned": {n: b.hex for n, b in collected.assigned.items()},
            "granted": dict(collected.granted),
            "report": _report(collected.report),
        }
    )


def parse_collected(body: bytes, size: int) -> Collected:
    try:
        o = _object(body)
        assigned = {_name(n): Bits.parse(size, b) for n, b in o["assigned"].items()}
        granted = {_name(n): _count(number, NUMBER_MAX) for n, number in o["granted"].items()}
        return Collected(_parse_report(o["report"], size), assigned, granted)
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("report", why) from None


def encode_blame(chunk: Digest) -> bytes:
    return _encode({"chunk": chunk.hex})


def parse_blame(body: bytes) -> Digest:
    try:
        return Digest.from_hex(json.loads(body)["chunk"])
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("blame", why) from None


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _report(report: Report) -> list[object]:
    return [report.have.hex, report.reading.hex, report.load, report.heard]


def _parse_report(value: list[object], size: int) -> Report:
    have, reading, load, heard = value
    if not (isinstance(have, str) and isinstance(reading, str)):
        raise ValueError("a report is [have, reading, load, heard]")
    numbers = _count(load, LOAD_MAX), _count(heard, NUMBER_MAX)
    return Report(Bits.parse(size, have), Bits.parse(size, reading), *numbers)


def _node(node: Node) -> list[object]:
    return [node.name, node.host, node.port, node.zone]


def _parse_node(value: list[object]) -> Node:
    name, host, port, zone = value
    if not (isinstance(host, str) and _HOST.fullmatch(host) and isinstance(zone, str) and len(zone) <= 255):
        raise ValueError("a node is [name, host, port, zone]")
    return Node(_name(name), host, _count(port, 65535), zone)


def _object(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _size(value: object) -> int:
    size = _count(value, CHUNKS_MAX)
    if not size:
        raise ValueError("a model of no chunks")
    return size


def _count(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"a number from 0 to {most} is something else")
    return value


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > NAMES_MAX:
        raise ValueError("not a list of names")
    return tuple(_name(n) for n in value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError("that is no node's name")
    return value


def _invalid(what: str, why: Exception) -> Invalid:
    return Invalid(f"a peer sent a broken {what}: {why}", hint="its version may differ from this node's")

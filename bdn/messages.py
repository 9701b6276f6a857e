"""Owns the words between coordinators: four small JSON messages, parsed strictly, bitmaps as hex.

claim    a node to a model's coordinator: what it has, what it would read from the origin, who failed it
verdict  the answer: what it shall read, whom to ask for the rest, and who holds what
collect  a new coordinator to every node
report   the answer: what the node has, what it was told to read, and what it handed out if it coordinated before
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.holders import Bits, Report
from bdn.roster import Node

CHUNKS_MAX = 1 << 20  # Of one model: 8 TiB at 8 MiB. Bounds what a message can make us allocate.
NAMES_MAX = 1 << 14


@dataclass(frozen=True)
class Claim:
    manifest: Digest
    size: int
    sender: str
    report: Report
    want: Bits
    failed: tuple[str, ...] = ()
    """Who could not be reached, or sent wrong bytes: not to be named again."""
    doubted: tuple[str, ...] = ()
    """Who was said to have a wanted chunk, or to be reading it, and denied it: to be asked."""
    hops: int = 0


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


def encode_claim(claim: Claim) -> bytes:
    return _encode(
        {
            "doubted": list(claim.doubted), "failed": list(claim.failed), "hops": claim.hops,
            "manifest": claim.manifest.hex, "report": _report(claim.report), "sender": claim.sender,
            "size": claim.size, "want": claim.want.hex,
        }
    )  # fmt: skip


def parse_claim(body: bytes) -> Claim:
    try:
        o = json.loads(body)
        size = _size(o["size"])
        return Claim(
            Digest.from_hex(o["manifest"]), size, _name(o["sender"]), _parse_report(o["report"], size),
            Bits.parse(size, o["want"]), tuple(_name(n) for n in o["failed"][:NAMES_MAX]),
            tuple(_name(n) for n in o["doubted"][:NAMES_MAX]), int(o["hops"]),
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
        o = json.loads(body)
        ask = {int(i): tuple(_name(n) for n in names) for i, names in o["ask"].items()}
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
        o = json.loads(body)
        return Digest.from_hex(o["manifest"]), _size(o["size"]), _parse_node(o["sender"])
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("collect", why) from None


def encode_collected(collected: Collected) -> bytes:
    return _encode(
        {"assigned": {n: b.hex for n, b in collected.assigned.items()}, "report": _report(collected.report)}
    )


def parse_collected(body: bytes, size: int) -> Collected:
    try:
        o = json.loads(body)
        assigned = {_name(n): Bits.parse(size, b) for n, b in o["assigned"].items()}
        return Collected(_parse_report(o["report"], size), assigned)
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise _invalid("report", why) from None


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _report(report: Report) -> list[object]:
    return [report.have.hex, report.reading.hex, report.load]


def _parse_report(value: list[object], size: int) -> Report:
    have, reading, load = value
    if not (isinstance(have, str) and isinstance(reading, str) and isinstance(load, int)):
        raise ValueError("a report is [have, reading, load]")
    return Report(Bits.parse(size, have), Bits.parse(size, reading), load)


def _node(node: Node) -> list[object]:
    return [node.name, node.host, node.port, node.zone]


def _parse_node(value: list[object]) -> Node:
    name, host, port, zone = value
    if not (isinstance(host, str) and isinstance(port, int) and isinstance(zone, str)):
        raise ValueError("a node is [name, host, port, zone]")
    return Node(_name(name), host, port, zone)


def _size(value: object) -> int:
    if not isinstance(value, int) or not 0 < value <= CHUNKS_MAX:
        raise ValueError(f"a model of {value!r} chunks")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise ValueError("a node's name is 1 to 255 characters")
    return value


def _invalid(what: str, why: Exception) -> Invalid:
    return Invalid(f"a peer sent a broken {what}: {why}", hint="its version may differ from this node's")

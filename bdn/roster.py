"""Owns who is there and who owns what: rendezvous hashing over the ready members, the same on every node.

It does not find members (adapters of the Membership port do) and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bdn.digest import Digest

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One agent. `name` is its identity in the hash, so it must survive a restart with another address."""

    name: str
    host: str = field(compare=False, default="")
    port: int = field(compare=False, default=0)
    zone: str = field(compare=False, default="")
    ready: bool = field(compare=False, default=True)
    """False while terminating: still a source of what it holds, never an owner."""


@dataclass(frozen=True)
class Roster:
    """The members as one node sees them at `epoch`; a later view has a larger epoch on the same node."""

    nodes: tuple[Node, ...]
    epoch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes)))
        object.__setattr__(self, "_seeds", tuple(_seed(n.name) for n in self.nodes))

    def ranked(self, digest: Digest) -> tuple[Node, ...]:
        """Ready members, the owner of `digest` first, then who takes over, in order. Empty without members."""
        key = int.from_bytes(digest.raw[:8], "big")
        seeds: tuple[int, ...] = self._seeds  # type: ignore[attr-defined]
        scored = [(_mix(key ^ s), n) for s, n in zip(seeds, self.nodes, strict=True) if n.ready]
        scored.sort(key=lambda pair: (-pair[0], pair[1].name))
        return tuple(node for _, node in scored)

    def owner(self, digest: Digest) -> Node | None:
        ranked = self.ranked(digest)
        return ranked[0] if ranked else None

    def get(self, name: str) -> Node | None:
        return next((n for n in self.nodes if n.name == name), None)


def parse_nodes(specs: Iterable[str]) -> tuple[Node, ...]:
    """Nodes written as `name=host:port` or `name@zone=host:port`; ValueError names the one that is off."""
    nodes = []
    for spec in specs:
        who, _, address = spec.partition("=")
        name, _, zone = who.partition("@")
        host, _, port = address.rpartition(":")
        if not (name and host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"not a node: {spec!r} (expected name=host:port or name@zone=host:port)")
        nodes.append(Node(name, host.strip("[]"), int(port), zone))
    return tuple(nodes)


def _seed(name: str) -> int:
    return int.from_bytes(Digest.of(name.encode()).raw[:8], "big")


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)

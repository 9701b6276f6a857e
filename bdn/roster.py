"""Owns who is there and who owns what: rendezvous hashing over the ready members, the same on every node.

It does not find members (adapters of the Membership port do) and sends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from bdn.digest import Digest

_MASK = (1 << 64) - 1
# Members from DNS are named by their address, as in 10.0.0.7:7411 or [fd00::7]:7411. A name goes into request heads.
NAME = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,252}")
RANKINGS_MAX = 1 << 16  # Bounds a view's memory: 16,700 chunks of a 140 GB model three times over.


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
        nodes = tuple(sorted(self.nodes))
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "_by_name", {n.name: n for n in nodes})
        object.__setattr__(self, "_seeds", {n.name: _seed(n.name) for n in nodes})
        object.__setattr__(self, "_ranked", {})

    def ranked(self, digest: Digest, zone: str | None = None) -> tuple[Node, ...]:
        """Ready members, the owner of `digest` first, then who takes over, in order. Empty without members.

        zone: only the members of this zone; its first is the zone's owner. The order is worked out once per digest
        and view: a thousand members cost a millisecond.
        """
        memo: dict[tuple[Digest, str | None], tuple[Node, ...]] = self._ranked  # type: ignore[attr-defined]
        found = memo.get((digest, zone))
        if found is None:
            if len(memo) >= RANKINGS_MAX:
                memo.clear()
            members = (n for n in self.nodes if n.ready and (zone is None or n.zone == zone))
            scored = sorted((-self.score(n.name, digest), n.name, n) for n in members)
            found = memo[(digest, zone)] = tuple(node for _, _, node in scored)
        return found

    def score(self, name: str, digest: Digest) -> int:
        """How strongly a name claims a digest. It depends on nothing else: nodes with different views agree on it."""
        seeds: dict[str, int] = self._seeds  # type: ignore[attr-defined]
        seed = seeds[name] if name in seeds else _seed(name)
        return _mix(int.from_bytes(digest.raw[:8], "big") ^ seed)

    def owner(self, digest: Digest) -> Node | None:
        ranked = self.ranked(digest)
        return ranked[0] if ranked else None

    def get(self, name: str) -> Node | None:
        by_name: dict[str, Node] = self._by_name  # type: ignore[attr-defined]
        return by_name.get(name)


def parse_nodes(specs: Iterable[str]) -> tuple[Node, ...]:
    """Nodes written as `name=host:port` or `name@zone=host:port`; ValueError names the one that is off."""
    nodes: dict[str, Node] = {}
    for spec in specs:
        who, _, address = spec.partition("=")
        name, _, zone = who.partition("@")
        host, _, port = address.rpartition(":")
        good = NAME.fullmatch(name) and host and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536
        if not good or re.search(r"\s", host):
            raise ValueError(f"not a node: {spec!r} (expected name=host:port or name@zone=host:port)")
        if name in nodes:
            raise ValueError(f"two nodes are called {name!r}: each needs a name of its own")
        nodes[name] = Node(name, host.strip("[]"), int(port), zone)
    return tuple(nodes.values())


def _seed(name: str) -> int:
    return int.from_bytes(Digest.of(name.encode()).raw[:8], "big")


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)

"""Owns the account of one run: what was moved, from where, how long each phase took, as JSON and as a few lines.

Bytes are of chunks as links carried them, used or not. Copies are origin bytes over the bytes of one copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bdn.ledger import amplification

ORIGIN = "origin"
TIERS = ("nvme", "peer", "origin")


@dataclass(frozen=True)
class Span:
    """One phase of one node, in seconds after all nodes were asked."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class NodeAccount:
    """What one node did in one wave."""

    name: str
    bytes_by_tier: Mapping[str, int]
    bytes_by_source: Mapping[str, int]
    """Node name, or `origin`."""
    wasted_by_tier: Mapping[str, int]
    spans: tuple[Span, ...]
    state: str = "ready"
    """`ready`, or `killed`."""
    wav: str = ""

    def link_bytes(self, tier: str) -> int:
        return self.bytes_by_tier.get(tier, 0) + self.wasted_by_tier.get(tier, 0)

    def json(self) -> dict[str, object]:
        return {
            "name": self.name, "state": self.state, "bytes_by_tier": dict(self.bytes_by_tier),
            "bytes_by_source": dict(self.bytes_by_source), "wasted_by_tier": dict(self.wasted_by_tier),
            "timeline": [{"phase": s.name, "start_s": round(s.start_s, 3), "end_s": round(s.end_s, 3)}
                         for s in self.spans],
            "wav": self.wav,
        }  # fmt: skip


@dataclass(frozen=True)
class Wave:
    """All nodes that started together. origin_bytes is the origin's own count where it has one."""

    nodes: tuple[NodeAccount, ...]
    model_bytes: int
    origin_bytes: int
    seconds: float

    @property
    def origin_copies(self) -> float:
        return amplification(self.origin_bytes, self.model_bytes)

    @property
    def bytes_by_tier(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for node in self.nodes:
            for tier in TIERS:
                total[tier] += node.link_bytes(tier)
        total[ORIGIN] = self.origin_bytes
        return {tier: total[tier] for tier in TIERS}

    def json(self) -> dict[str, object]:
        return {
            "origin_copies": round(self.origin_copies, 4), "origin_bytes": self.origin_bytes,
            "bytes_by_tier": self.bytes_by_tier, "seconds": round(self.seconds, 3),
            "agents": [n.json() for n in self.nodes],
        }  # fmt: skip


@dataclass(frozen=True)
class Receipt:
    """One whole run."""

    model: Mapping[str, object]
    """ref, digest, bytes, files, chunks, about."""
    origin: str
    mirror: Mapping[str, object]
    cold: Wave
    warm: Wave | None
    phases_s: Mapping[str, float]
    first_audio_s: float | None
    wav: str
    report_html: str
    report_json: str
    machine: Mapping[str, object]
    notes: tuple[str, ...] = field(default=())

    def json(self) -> dict[str, object]:
        """The keys that scripts rely on are those of the first two lines; further ones may come."""
        return {
            "cold": self.cold.json(), "warm": self.warm.json() if self.warm else None,
            "agents": [n.json() for n in self.cold.nodes], "phases_s": rounded(self.phases_s),
            "first_audio_s": None if self.first_audio_s is None else round(self.first_audio_s, 3), "wav": self.wav,
            "report_html": self.report_html, "report_json": self.report_json, "model": dict(self.model),
            "origin": self.origin, "mirror": dict(self.mirror), "machine": dict(self.machine),
            "notes": list(self.notes),
        }  # fmt: skip


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {k: round(v, 3) for k, v in values.items()}


def edges(nodes: Iterable[NodeAccount]) -> list[tuple[str, str, int]]:
    """Who got how many bytes from whom: (source, node, bytes), nothing without bytes, in the nodes' order."""
    return [(source, n.name, size) for n in nodes for source, size in sorted(n.bytes_by_source.items())
            if size and source != n.name]  # fmt: skip

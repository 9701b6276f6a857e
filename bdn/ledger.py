"""Owns the account of every byte by tier: what the receipt prints and what the promises are checked against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bdn.errors import BdnError, Corrupt
from bdn.manifest import Chunk
from bdn.ports import Tier


@dataclass
class Ledger:
    """One node's account. Bytes count when a verified chunk is in place; wasted bytes count when they are dropped."""

    bytes_by_tier: Counter[Tier] = field(default_factory=Counter)
    bytes_by_source: Counter[str] = field(default_factory=Counter)
    wasted_by_tier: Counter[Tier] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    """How often a source did not serve, as `source: reason`."""
    corrupt_by_source: Counter[str] = field(default_factory=Counter)

    origin_reasons: Counter[str] = field(default_factory=Counter)
    """Why this node read from the origin, chunk by chunk: nothing falls back silently."""
    documents_by_tier: Counter[Tier] = field(default_factory=Counter)
    """Manifests' documents that this node had to ask for; their bytes are in no other figure here."""
    sent_bytes: int = 0
    """What this node uploaded to others, whether they could use it or not."""

    def got(self, chunk: Chunk, tier: Tier, source: str) -> None:
        self.bytes_by_tier[tier] += chunk.size
        self.bytes_by_source[source] += chunk.size

    def wasted(self, tier: Tier, size: int) -> None:
        """Bytes that a link carried and nobody could use: they count against the origin's copies all the same."""
        self.wasted_by_tier[tier] += size

    def miss(self, source: str, why: BdnError) -> None:
        self.misses[f"{source}: {type(why).__name__}"] += 1
        if isinstance(why, Corrupt):
            self.corrupt_by_source[source] += 1

    def read_from(self, tier: Tier) -> int:
        """Every byte that the tier's link carried, used or not."""
        return self.bytes_by_tier[tier] + self.wasted_by_tier[tier]


def amplification(origin_bytes: int, model_bytes: int) -> float:
    """Copies of the model that the origin sent: 1.0 for a cold cluster, 0.0 for a warm one."""
    return origin_bytes / model_bytes if model_bytes else 0.0

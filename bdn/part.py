"""Owns what one node has of one model, what it was told to read of it, and what it knows of the others' chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.holders import Bits, Holders


@dataclass
class Part:
    """This node's part in one model."""

    manifest: Digest
    size: int
    have: Bits
    owned: Callable[[int], Iterator[int]]
    """The chunks after a given one that this node lacks and would read as the owner, in its present view."""
    on_grant: Callable[[int], None]
    """Called for each chunk that this node has just been told to read."""
    granted: Bits
    holders: Holders
    ask: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Verdicts for chunks that nobody here has asked for yet."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    claims: int = 0
    """The number of the last claim."""
    heard: int = 0
    """The number of the last one that was answered, or given up."""

    def got(self, i: int) -> None:
        self.have.add(i)
        self.granted.discard(i)

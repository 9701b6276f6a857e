"""Owns who holds which chunks of a model, as compact bitmaps, and the choice between several holders.

What a bitmap says was true when its node last spoke; a node that lacks the chunk after all says so at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_MASK = (1 << 64) - 1
_PLACES = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))
RELIEF_DRAWN = 2
HOLDERS_SENT = 64  # In one message: far more than a node can pull from at once, 4 KB for a 4 GB model.


class Bits:
    """A set of chunk numbers, one bit each, growing as needed up to `size`."""

    __slots__ = ("_bytes", "size")

    def __init__(self, size: int, raw: bytes = b"") -> None:
        self.size = size
        self._bytes = bytearray(raw[: (size + 7) // 8].ljust((size + 7) // 8, b"\0"))
        if size & 7:
            self._bytes[-1] &= (1 << (size & 7)) - 1  # Another node's word may name chunks that the model has not.

    def __contains__(self, i: int) -> bool:
        return 0 <= i < self.size and bool(self._bytes[i >> 3] >> (i & 7) & 1)

    def add(self, i: int) -> None:
        self._bytes[i >> 3] |= 1 << (i & 7)

    def discard(self, i: int) -> None:
        self._bytes[i >> 3] &= ~(1 << (i & 7))

    def __iter__(self) -> Iterator[int]:
        """In order. An empty byte costs next to nothing: sets of a few are walked for every few chunks of a model."""
        return (at << 3 | bit for at, byte in enumerate(self._bytes) if byte for bit in _PLACES[byte])

    def __bool__(self) -> bool:
        return any(self._bytes)

    @property
    def hex(self) -> str:
        return self._bytes.rstrip(b"\0").hex()

    @staticmethod
    def parse(size: int, text: str) -> Bits:
        """Raises ValueError for anything but hex digits of at most `size` bits."""
        raw = bytes.fromhex(text)
        if len(raw) > (size + 7) // 8:
            raise ValueError("a bitmap is longer than the model")
        return Bits(size, raw)


@dataclass
class Report:
    """What one node last said: what it has, what it is reading from the origin, how busy its uploads are.

    heard: the number of its last claim that was answered, or given up.
    """

    have: Bits
    reading: Bits
    load: int = 0
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Burdens:
    """How much of a model each member owns, so that an owner of much is not asked for all of it."""

    owned: Mapping[str, int] = field(default_factory=dict)
    chunks: int = 0

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.owned)

    def share(self, name: str) -> float:
        """The part of the model that the node owns."""
        return self.owned.get(name, 0) / self.chunks if self.chunks else 0.0

    def of(self, name: str) -> float:
        """What the node owns over what each would own if all owned the same; 1.0 for one not counted."""
        return self.share(name) * len(self.owned) if name in self.owned else 1.0


@dataclass
class Holders:
    """What this node knows of the others' chunks of one model."""

    size: int
    reports: dict[str, Report] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)

    def learn(self, name: str, report: Report) -> None:
        if name not in self.reports:
            self._names.append(name)
        self.reports[name] = report

    def forget(self, name: str) -> None:
        if self.reports.pop(name, None) is not None:
            self._names.remove(name)

    def keep(self, there: frozenset[str]) -> None:
        """Forget everyone else."""
        self.reports = {n: report for n, report in self.reports.items() if n in there}
        self._names = [n for n in self._names if n in there]

    def of(self, i: int) -> list[str]:
        """Everyone said to have chunk i, in order of name."""
        return sorted(name for name, report in self.reports.items() if i in report.have)

    def lacks(self, name: str, i: int) -> bool:
        """Whether the node has said that it does not have chunk i; False where it has said nothing."""
        report = self.reports.get(name)
        return report is not None and i not in report.have

    def choose(
        self, i: int, salt: int, usable: Callable[[str], bool], asking: Mapping[str, int]
    ) -> str | None:
        """A holder of chunk i for this node, or None: of the first two in an order drawn by `salt`, the less busy.

        asking: how many chunks this node is asking each of for, which is newer than what they reported.
        Two choices instead of one make the busiest node's load grow with log log n (Mitzenmacher 2001). The salt is
        a hash of this node and the chunk, so it needs no chance and differs from node to node.
        """
        first: str | None = None
        for name in _drawn(self._names, salt):
            if i in self.reports[name].have and usable(name):
                if first is None:
                    first = name
                else:
                    one, other = self._busy(first, asking), self._busy(name, asking)
                    return name if other < one else first
        return first

    def relieve(self, i: int, salt: int, usable: Callable[[str], bool], burdens: Burdens) -> str | None:
        """A holder of chunk i that owns less than the mean, drawn by how much less; None when neither of two drawn
        has it yet: giving their part to those who have it already would overload them in turn."""
        drawn = 0
        for k, name in enumerate(_drawn(burdens.names, salt)):
            if 1.0 - burdens.of(name) > ((salt ^ k) * 0x9E3779B97F4A7C15 & _MASK) / (_MASK + 1):
                report = self.reports.get(name)
                if report is not None and i in report.have and usable(name):
                    return name
                drawn += 1
                if drawn == RELIEF_DRAWN:
                    return None
        return None

    def _busy(self, name: str, asking: Mapping[str, int]) -> tuple[int, int]:
        return asking.get(name, 0), self.reports[name].load

    def sample(self, score: Callable[[str], int]) -> Mapping[str, Report]:
        """At most `HOLDERS_SENT` reports, a different draw for each asker."""
        if len(self.reports) <= HOLDERS_SENT:
            return self.reports
        drawn = sorted(self.reports, key=lambda n: (score(n), n))[:HOLDERS_SENT]
        return {name: self.reports[name] for name in drawn}


@dataclass(frozen=True, slots=True)
class KnownChunk:
    """What the map says of one chunk, for one fetch."""

    holders: Holders
    number: int
    salt: int
    asking: Mapping[str, int]
    burdens: Burdens = field(default_factory=Burdens)

    def spares(self, name: str) -> bool:
        """Whether this asker is one of those that leave an owner of many chunks to the others.

        An owner of k times the mean gives each of its chunks to 1/k of the askers; for the rest see `relief`.
        """
        burden = self.burdens.of(name)
        return burden > 1.0 and 1.0 - 1.0 / burden > (self.salt & _MASK) / (_MASK + 1)

    def relief(self, usable: Callable[[str], bool]) -> str | None:
        """For an asker that spares the owner; see `Holders.relieve`."""
        return self.holders.relieve(self.number, self.salt, usable, self.burdens)

    def lacks(self, name: str) -> bool:
        return self.holders.lacks(name, self.number)

    def choose(self, usable: Callable[[str], bool]) -> str | None:
        return self.holders.choose(self.number, self.salt, usable, self.asking)


def _drawn(names: Sequence[str], salt: int) -> Iterator[str]:
    """Every name once, in an order drawn by the salt.

    Each salt has a step of its own: going on to the next name would give one who stands after many that lack a chunk
    the share of them all.
    """
    count = len(names)
    step = 1 + (salt >> 32) % max(1, count - 1)
    while math.gcd(step, count) > 1:
        step += 1
    return (names[(salt + k * step) % count] for k in range(count))

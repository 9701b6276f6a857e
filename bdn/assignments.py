"""Owns one model's assignments, as its coordinator knows them, and the verdict on a claim. No messages, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from bdn.holders import Bits, Holders, Report
from bdn.messages import Claim, Verdict

NAMED = 3  # Holders named for one chunk.


@dataclass
class Table:
    """One model's assignments, as its coordinator knows them."""

    size: int
    holders: Holders
    assigned: dict[int, str] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)
    """By name, the number of its last claim that was granted something: who has not heard of that yet is not asked
    why it does not read. Verdicts take seconds where a machine is busy."""
    checks: dict[str, tuple[float, asyncio.Future[None]]] = field(default_factory=dict)
    """When a node that somebody complained of was last looked at, and the look itself."""
    asked: dict[str, float] = field(default_factory=dict)
    """When each was asked last."""
    known: set[str] = field(default_factory=set)
    """Whose reports are in it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def drop(self, name: str) -> None:
        """A node is gone. What it had or was reading, others may have got from it since they last spoke: everyone is
        to be heard again before any of it is read again."""
        had = name in self.holders.reports or name in self.assigned.values()
        self.holders.forget(name)
        self.known.discard(name)
        self.granted.pop(name, None)
        if had:
            self.known.clear()
            self.assigned = {i: n for i, n in self.assigned.items() if n != name}

    @property
    def named(self) -> list[str]:
        """Everyone who holds or reads something, by name."""
        return sorted({*self.assigned.values(), *self.holders.reports})

    def of(self, name: str) -> list[int]:
        return [i for i, n in self.assigned.items() if n == name]

    def learn(self, name: str, report: Report) -> None:
        """What a node says of itself is the truth about it: an assignment that it does not know of is void, unless the
        word of it may still be on its way."""
        self.holders.learn(name, report)
        if report.heard >= self.granted.get(name, 0):
            for i in self.of(name):
                if i not in report.have and i not in report.reading:
                    del self.assigned[i]
        for i in report.reading:
            self.assigned.setdefault(i, name)


def judge(table: Table, claim: Claim, present: Callable[[str], bool]) -> Verdict:
    """What the sender shall read and whom it shall ask for the rest. Pure but for what `table` remembers.

    Who failed the sender is never named to it again: if nobody else has the chunk, one more read is the price.
    """
    read, ask = Bits(table.size), {}
    for i in claim.want:
        if i in claim.report.have:
            continue
        having = [n for n in table.holders.of(i) if n != claim.sender and n not in claim.failed and present(n)]
        reader = table.assigned.get(i)
        if having:
            at = i % len(having)
            ask[i] = tuple((having[at:] + having[:at])[:NAMED])
        elif reader is not None and reader != claim.sender and reader not in claim.failed and present(reader):
            ask[i] = (reader,)
        else:
            table.assigned[i] = claim.sender
            read.add(i)
    return Verdict(read, ask)

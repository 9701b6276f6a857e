"""Owns what this node has learned about the others: who is down, who sent wrong bytes, who has nothing of a model.

It never decides whom to ask; `sources` does, with the time as an argument.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bdn.digest import Digest
from bdn.errors import BdnError, ChunkCorrupt, ChunkMissing, Corrupt, Down, ShortRead
from bdn.policy import backoff_s

DOWN_S, DOWN_S_MAX = 1.0, 30.0  # Doubles with each failure in a row, so that a flapping node is asked ever less.
ABSENT_S = 1.0  # A node that is not pulling this model may start to at any moment.
BLAME_S = 60.0  # Long enough that a bad disk or link costs little, short enough to forgive a single flip.
BAD_CHUNKS_MAX = 3  # One may be a flipped bit on its disk, and the rest of what it has is as good as before.


@dataclass
class Standing:
    """One node's opinion of the others."""

    _down: dict[str, float] = field(default_factory=dict)
    _bad: dict[str, dict[Digest, float]] = field(default_factory=dict)
    _absent: dict[tuple[str, Digest], float] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)
    blamed: Counter[str] = field(default_factory=Counter)
    """Wrong bytes by sender: a metric, and the name that a person has to look at."""

    def avoided(self, name: str, manifest: Digest, now: float) -> bool:
        """Whether to leave it alone whatever chunk of the model is wanted."""
        return self.down(name, now) or self._barred(name, now) or self._absent.get((name, manifest), now) > now

    def down(self, name: str, now: float) -> bool:
        """Whether it cannot be reached. Wrong chunks do not count: what it says of who reads what is none of them."""
        return self._down.get(name, now) > now

    def distrusted(self, chunk: Digest, now: float) -> list[str]:
        """Whose bytes of the chunk would not be taken: who sent wrong ones of it, or of several others."""
        return [n for n, bad in self._bad.items() if bad.get(chunk, now) > now or self._barred(n, now)]

    def _barred(self, name: str, now: float) -> bool:
        return sum(until > now for until in self._bad.get(name, {}).values()) >= BAD_CHUNKS_MAX

    def failing(self, name: str) -> bool:
        """Whether it could not be reached the last time."""
        return name in self._failures

    def answered(self, name: str) -> None:
        """It is there: earlier failures no longer count. Blame stays until its time is over."""
        self._failures.pop(name, None)
        self._down.pop(name, None)

    def failed(self, name: str, manifest: Digest, why: BdnError, now: float) -> None:
        if isinstance(why, ChunkCorrupt | ShortRead):
            self.blamed[name] += 1
            kept = {chunk: until for chunk, until in self._bad.get(name, {}).items() if until > now}
            self._bad[name] = {**kept, why.digest: now + BLAME_S}
        elif isinstance(why, Down | Corrupt):  # Who answers no question of the protocol is as good as down.
            if not self.down(name, now):  # Of all who wait for it when it goes silent, one tells; the others repeat it.
                self._failures[name] += 1
                self._down[name] = now + backoff_s(DOWN_S, DOWN_S_MAX, self._failures[name])
        elif isinstance(why, ChunkMissing):
            self._absent[(name, manifest)] = now + ABSENT_S

    def present(self, name: str, manifest: Digest) -> None:
        """It takes part in this model after all."""
        self._absent.pop((name, manifest), None)

    def forget(self, there: frozenset[str]) -> None:
        """Keep only what is known of those: this bounds the memory by the members."""
        self._down = {n: until for n, until in self._down.items() if n in there}
        self._bad = {n: bad for n, bad in self._bad.items() if n in there}
        self._absent = {key: until for key, until in self._absent.items() if key[0] in there}
        self._failures = Counter({n: count for n, count in self._failures.items() if n in there})
        self.blamed = Counter({n: count for n, count in self.blamed.items() if n in there})

"""Owns the decision where to get a chunk from next. Pure: no I/O, no clock, no chance; `resolver` carries it out.

The order is: a node that is known to hold the chunk; the owner and who comes after it, down to this node; and only
when this node is itself the first that is left, the origin, after asking the next ranks whether they hold it.

Why nobody waits in a circle: a node's score for a chunk depends on its name alone, so it is the same in every view.
A node waits without limit only on nodes of a higher score. Every other ask is *settled*: it is answered only by a
node that has the bytes or is receiving them, which waits for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt, Down, Missing
from bdn.manifest import Chunk
from bdn.policy import Limits, OriginUse, pause_s
from bdn.roster import Node, Roster
from bdn.standing import Standing

PROBED_RANKS = 3  # m joins put the former owner at rank <= m + 1; asking three finds it in all but a join storm.
CORRUPT_ORIGIN_TRIES = 2  # A flipped bit on the way is worth one more read; a bad object is not.
ORIGIN_BACKOFF_S, ORIGIN_BACKOFF_S_MAX = 0.2, 10.0
REST_S = 5.0  # How long one that was slow with a chunk is not asked for it again, as long as others may have it.
LOOK_S = 0.5  # How long a fetch that waits stays deaf to news of holders; they come about so often.
DENIALS_MAX = 8  # With the pauses between them, 5 s: word that a chunk is gone takes a coordinator about 1 s.


@dataclass(frozen=True, slots=True)
class AskPeer:
    """settled: ask only for what it has or is receiving; it must not wait for others on our behalf."""

    node: Node
    settled: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Before the origin: ask these whether they have it or are fetching it."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ReadOrigin:
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Everyone who could serve is busy: come back at `until`, or sooner, since others may have the chunk by then. Never
    a reason to read the origin."""

    until: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    why: str


class Known(Protocol):
    """What the holder map says of one chunk."""

    def lacks(self, name: str) -> bool: ...

    def spares(self, name: str) -> bool: ...

    def choose(self, usable: Callable[[str], bool]) -> str | None: ...

    def relief(self, usable: Callable[[str], bool]) -> str | None: ...


_Usable = Callable[[Node], bool]
Step = AskPeer | Probe | ReadOrigin | Pause | GiveUp


@dataclass
class Tried:
    """What one fetch has learned so far."""

    manifest: Digest
    left: dict[str, BdnError] = field(default_factory=dict)
    """Who failed at this chunk, and how; not asked again by this fetch."""
    hints: list[str] = field(default_factory=list)
    """Who is said to hold the chunk or to be receiving it, best first."""
    busy: dict[str, float] = field(default_factory=dict)
    """Who is at its upload cap, and until when to leave it alone."""
    resting: dict[str, float] = field(default_factory=dict)
    """Who was left because it was slow, and until when others are preferred to it."""
    doubted: list[str] = field(default_factory=list)
    """Who was said to hold the chunk and denied it."""
    strangers: dict[str, Node] = field(default_factory=dict)
    """Who was named by a coordinator and is not a member in this node's view yet."""
    denied: Counter[str] = field(default_factory=Counter)
    """How often each said that it does not have the chunk."""
    unknown: dict[str, float] = field(default_factory=dict)
    """Who was named by a coordinator, and nobody says where it is; since when."""
    retried: set[str] = field(default_factory=set)
    """Who could not be reached, and was asked again on a coordinator's word."""
    rulings: int = 0
    """How often a coordinator sent this fetch to somebody."""
    granted: bool = False
    """The coordinator told this node to read the origin."""
    probed: bool = False
    origin_after: float = 0.0
    """The origin asked for a pause until then."""
    origin_error: BdnError | None = None
    """Set when the origin will not be asked again by this fetch."""
    claims_seen: int = 0
    """How often another node's claim at the origin sent this fetch to that node."""
    origin_tries: int = 0
    origin_failed_at: float | None = None
    """When it failed for the first time: its patience counts from there, not from the waits for peers before."""

    def may_retry(self, name: str) -> bool:
        """Whether one that failed may be asked again on a coordinator's word: not a liar, nor one down twice, nor one
        that is said to have the chunk for ever and never has it."""
        why = self.left[name]
        if isinstance(why, Missing):
            return self.denied[name] < DENIALS_MAX
        return isinstance(why, Down) and name not in self.retried

    def deny(self, name: str) -> bool:
        """It says that it lacks the chunk after all. Whether that is often enough not to ask it any more."""
        self.denied[name] += 1
        return self.denied[name] >= DENIALS_MAX

    @property
    def failed(self) -> list[str]:
        """Who is not to be named to this fetch again."""
        return [n for n in self.left if not self.may_retry(n)]

    def retry(self, name: str) -> bool:
        """Forget why it failed, if it may be asked again."""
        if name not in self.left or not self.may_retry(name):
            return False
        if isinstance(self.left.pop(name), Down):
            self.retried.add(name)
        return True

    def leave_for(self, better: str, slow: str, now: float) -> None:
        """Ask that one next, even if it did not have the chunk before; the slow one only where nobody else is left."""
        self.retry(better)
        self.hints.insert(0, better)
        self.resting[slow] = now + REST_S

    def free(self, name: str, now: float) -> bool:
        """Whether it may be asked now, as far as it said itself and was not slow."""
        return max(self.busy.get(name, now), self.resting.get(name, now)) <= now

    def ghosts(self, before: float) -> list[str]:
        """Who was named first before then, and cannot be found: it came and went before anybody heard of it."""
        return [n for n, since in self.unknown.items() if since < before]

    def hint(self, names: tuple[str, ...]) -> None:
        self.hints.extend(n for n in names if n not in self.hints)

    def origin_failed(self, why: BdnError, now: float, limits: Limits, *, final: bool = False) -> None:
        """Set when to try the origin again, or that this fetch will not (final: there is none to try)."""
        self.probed = False  # Someone else may have had more luck meanwhile.
        # And who could not be reached may be back: its standing says when to ask it, and the origin's patience ends it.
        self.left = {n: failed for n, failed in self.left.items() if not isinstance(failed, Down)}
        self.retried.clear()
        self.origin_tries += 1
        if self.origin_failed_at is None:
            self.origin_failed_at = now
        corrupt = isinstance(why, Corrupt) and self.origin_tries >= CORRUPT_ORIGIN_TRIES
        late = now - self.origin_failed_at > limits.origin_patience_s
        if final or corrupt or late or isinstance(why, Missing):
            self.origin_error = why
        self.origin_after = now + origin_pause_s(why, self.origin_tries, limits)


def origin_pause_s(why: BdnError, tries: int, limits: Limits) -> float:
    """How long to leave the origin alone after it failed that many times."""
    return pause_s(why, ORIGIN_BACKOFF_S, ORIGIN_BACKOFF_S_MAX, tries, asked_s_max=limits.origin_patience_s)


def next_source(
    chunk: Chunk,
    me: str,
    roster: Roster,
    tried: Tried,
    standing: Standing,
    use: OriginUse,
    now: float,
    known: Known | None = None,
) -> Step:
    """What to do next for one chunk. Never returns ReadOrigin while a node before this one may still serve.

    known: what the holder map says of this chunk. Owners come first even so: the askers' rounds keep them evenly
    busy (see `delivery.order`), where choosing among all holders leaves some idle; it is for what an owner lacks.
    """
    if use is OriginUse.REQUIRE:
        return _origin(tried, "policy: origin required", now)
    if tried.granted and use is not OriginUse.FORBID:
        return _origin(tried, "owner" if _owns(chunk, me, roster) else "coordinator's word", now)

    distrusted = standing.distrusted(chunk.digest, now)

    def usable(node: Node) -> bool:
        barred = node.name in tried.left or node.name in distrusted
        return node.name != me and not barred and not standing.avoided(node.name, tried.manifest, now)

    wait, slow = float("inf"), None
    above = first_above(chunk, me, roster, usable)
    hinted = [n for name in tried.hints if (n := roster.get(name) or tried.strangers.get(name)) and usable(n)]
    for node in sorted(hinted, key=lambda n: not _near(n, me, roster)):
        if _beyond(node, above, me, roster):
            break
        if tried.free(node.name, now):
            return AskPeer(node, settled=not _higher(node, chunk, me, roster))
        if tried.busy.get(node.name, now) > now:
            wait = min(wait, tried.busy[node.name])
        else:
            slow = slow or node
    if known is not None:
        asked = (*tried.doubted, *tried.busy, *tried.resting)
        holder = _holder(known, above, me, roster, lambda n: n.name not in asked and usable(n))
        if holder is not None:
            return AskPeer(holder, settled=not _higher(holder, chunk, me, roster))
    if above is not None:
        if tried.free(above.name, now):
            return AskPeer(above, settled=False)
        if tried.busy.get(above.name, now) > now:
            wait = min(wait, tried.busy[above.name])
        else:
            slow = slow or above
    if wait < float("inf"):
        return Pause(wait)
    if slow is not None:  # Nobody else is left, and to wait for nobody would be slower still.
        return AskPeer(slow, settled=not _higher(slow, chunk, me, roster))
    if not tried.probed:
        return Probe(_neighbours(chunk, me, roster, tried, usable))
    if use is OriginUse.FORBID:
        return GiveUp("no peer has it and the policy forbids the origin (--origin-use)")
    return _origin(tried, "owner" if _owns(chunk, me, roster) else "every node before this one failed", now)


def in_place_of(
    slow: str, chunk: Chunk, me: str, roster: Roster, tried: Tried, standing: Standing, now: float, known: Known
) -> str | None:
    """Another node that has the chunk, by the holder map, and whom `next_source` would ask after `Tried.leave_for`.

    What denied the chunk to this fetch may be the one: the owner, asked before it took part in the model, is the first
    that everyone hears of as a holder.
    """
    distrusted = standing.distrusted(chunk.digest, now)

    def there(node: Node) -> bool:
        barred = node.name in (me, *distrusted) or standing.avoided(node.name, tried.manifest, now)
        why = tried.left.get(node.name)
        return not barred and (why is None or (isinstance(why, Missing) and tried.may_retry(node.name)))

    above = first_above(chunk, me, roster, lambda n: n.name not in tried.left and there(n))

    def usable(name: str) -> bool:
        node = roster.get(name)
        if node is None or name == slow or name in tried.doubted or not tried.free(name, now):
            return False
        return there(node) and not _beyond(node, above, me, roster)

    return known.choose(usable)


def first_above(chunk: Chunk, me: str, roster: Roster, usable: _Usable) -> Node | None:
    """Whom this node asks: its zone's owner first, then the owner among all; None when it is itself first in rank.

    Two levels keep a chunk from crossing between zones more than once: only a zone's own owner asks beyond it.
    """
    mine = roster.get(me)
    if mine is not None and mine.zone:
        near = _first(roster.ranked(chunk.digest, mine.zone), me, usable)
        if near is not None:
            return near
    return _first(roster.ranked(chunk.digest), me, usable)


def _neighbours(chunk: Chunk, me: str, roster: Roster, tried: Tried, usable: _Usable) -> tuple[Node, ...]:
    """Who may hold what this node is about to read from the origin.

    The next ranks, one of which owned the chunk before this node joined; the ranks before, which a moment ago were
    not pulling this model; and members about to leave, which serve but own nothing.
    """
    ranked = roster.ranked(chunk.digest)
    at = next((i for i, n in enumerate(ranked) if n.name == me), len(ranked))
    after = [n for n in ranked[at + 1 :] if usable(n)][:PROBED_RANKS]
    before = [n for n in ranked[:at] if n.name not in tried.left and n.name not in tried.hints][:PROBED_RANKS]
    leaving = [n for n in roster.nodes if not n.ready and usable(n)][:PROBED_RANKS]
    return tuple(before + after + leaving)


def _first(ranked: tuple[Node, ...], me: str, usable: _Usable) -> Node | None:
    for node in ranked:
        if node.name == me:
            return None
        if usable(node):
            return node
    return None


def _higher(node: Node, chunk: Chunk, me: str, roster: Roster) -> bool:
    return node.ready and roster.score(node.name, chunk.digest) > roster.score(me, chunk.digest)


def _beyond(node: Node, above: Node | None, me: str, roster: Roster) -> bool:
    """Whether it is in another zone while the one above is in this: that one fetches the chunk for the whole zone, and
    an owner that is busy names holders anywhere."""
    return above is not None and _near(above, me, roster) and not _near(node, me, roster)


def _near(node: Node, me: str, roster: Roster) -> bool:
    mine = roster.get(me)
    return mine is None or node.zone == mine.zone


def _holder(known: Known, above: Node | None, me: str, roster: Roster, usable: _Usable) -> Node | None:
    """Whom to ask in the owner's place, by the holder map: one nearby, or any where nobody nearby is above."""

    def near(name: str) -> bool:
        node = roster.get(name)
        return node is not None and _near(node, me, roster) and usable(node)

    def any_(name: str) -> bool:
        node = roster.get(name)
        return node is not None and usable(node)

    name = None
    if above is None or known.lacks(above.name):
        name = known.choose(near)
        if name is None and (above is None or not _near(above, me, roster)):
            name = known.choose(any_)
    elif known.spares(above.name):
        name = known.relief(near)
    return None if name is None else roster.get(name)


def asked_for(chunk: Chunk, me: str, roster: Roster) -> bool:
    """Whether other nodes will come to this one for the chunk: to its owner among all, or in its zone."""
    mine = roster.get(me)
    zone = mine.zone if mine is not None and mine.zone else None
    ranked = roster.ranked(chunk.digest, zone)
    return len(roster.nodes) > 1 and bool(ranked) and ranked[0].name == me


def _owns(chunk: Chunk, me: str, roster: Roster) -> bool:
    owner = roster.owner(chunk.digest)
    return owner is None or owner.name == me


def _origin(tried: Tried, reason: str, now: float) -> Step:
    if tried.origin_error is not None:
        return GiveUp(str(tried.origin_error))
    return ReadOrigin(reason) if tried.origin_after <= now else Pause(tried.origin_after)

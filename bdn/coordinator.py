"""Owns who may read which chunk from the origin: one coordinator per model, itself the owner of the manifest's digest.

It hands out and remembers assignments in memory. When it dies, its successor asks every node what it has and what it
was told to read, and goes on exactly; when views differ, the older of two coordinators sends its claims on to the one
of the higher score. When none can be reached, nodes fall back on the rule in `sources`, and a chunk may be read twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bdn.acquaintances import Acquaintances
from bdn.assignments import Table, judge
from bdn.digest import Digest
from bdn.errors import BdnError, Busy, Missing
from bdn.holders import Bits, Holders, Report
from bdn.messages import (
    Claim,
    Collected,
    Verdict,
    encode_claim,
    encode_collect,
    encode_collected,
    encode_verdict,
    parse_claim,
    parse_collect,
    parse_collected,
    parse_verdict,
)  # fmt: skip
from bdn.part import Part
from bdn.policy import Limits
from bdn.ports import Clock, Membership, Peers
from bdn.roster import Node, Roster
from bdn.standing import Standing

COLLECT_AT_ONCE = 64  # Questions in flight while a new coordinator learns what there is.
CHECKED_S = 1.0  # A node that several complain about is asked once a second at most.
AGAIN_S = 0.25  # Far more than an answer takes, for one that did not answer before.
FORWARDS_MAX = 2
ROUNDING_S = 1e-6
TRIED_MAX = 3  # Successors tried before a node falls back on the rule.
HOLDERS_NAMED = 8  # To a node that asks who has a model's manifest.
MODELS_MAX = 1 << 10  # Coordinated here, or known to be coordinated elsewhere.


@dataclass(frozen=True, slots=True)
class Ruling:
    """read: from the origin, now. Otherwise whom to ask."""

    read: bool
    ask: tuple[str, ...] = ()


class Coordinator:
    """One node's side of it all: it claims, answers what it has, and coordinates the models that fall to it."""

    def __init__(
        self,
        me: str,
        peers: Peers,
        membership: Membership,
        clock: Clock,
        standing: Standing,
        limits: Limits,
        load: Callable[[], int],
    ) -> None:
        self._me, self._peers, self._membership, self._clock = me, peers, membership, clock
        self._standing, self._limits, self._load = standing, limits, load
        self._settled_at = clock.now() + limits.settle_s if limits.settle_s > 0 else 0.0
        self._parts: dict[Digest, Part] = {}
        self._tables: dict[tuple[Digest, int], asyncio.Task[Table]] = {}
        """By manifest and number of chunks: who has the number wrong spoils nobody's table but its own."""
        self._above: dict[Digest, Node] = {}
        """Coordinators of a higher score that made themselves known; this node may not see them as members yet."""
        self.others = Acquaintances(membership)

    @property
    def _roster(self) -> Roster:
        return self._membership.roster

    @property
    def _node(self) -> Node:
        """This node as others can reach it; without an address where its own view does not have it yet."""
        return self._roster.get(self._me) or Node(self._me)

    def join(self, part: Part) -> None:
        # Numbers that grow over restarts as well, and faster than anyone claims.
        part.claims = part.heard = int(self._clock.now() * 1000)
        self._parts[part.manifest] = part

    def leave(self, manifest: Digest) -> None:
        self._parts.pop(manifest, None)

    def close(self) -> None:
        for key, task in self._tables.items():
            if (table := self._table(key)) is not None:
                for _, look in table.checks.values():
                    look.cancel()
            task.cancel()

    # -- the claiming side --

    async def rule(
        self, part: Part, i: int, failed: Sequence[str], doubted: Sequence[str] = (), *, anew: bool = False
    ) -> Ruling | None:
        """May this node read chunk i from the origin? None: no coordinator could be reached.

        anew: ask even if it was told so before; meanwhile a holder may have come.
        """
        async with part.lock:
            if i in part.granted and not anew:
                return Ruling(read=True)
            part.granted.discard(i)
            named = tuple(n for n in part.ask.pop(i, ()) if n not in failed and n not in doubted)
            if named:
                return Ruling(read=False, ask=named)
            want = Bits(part.size)
            want.add(i)
            owned = (k for k in part.owned(i) if k not in part.granted)
            # Who failed at this chunk may be the one to ask for the others: nobody is to be left out for those.
            for k in islice(owned, 0 if failed else max(0, self._limits.grants - 1)):
                want.add(k)
            verdict = await self._claim(part, want, tuple(failed), tuple(doubted))
            if verdict is None:
                return None
            part.ask.update(verdict.ask)
            return Ruling(read=i in verdict.read, ask=part.ask.pop(i, ()))

    async def sync(self, part: Part) -> None:
        """Say what this node has and learn who has what; nothing is claimed. Nobody answering is no failure."""
        async with part.lock:  # A report that overtook a verdict would void what the verdict grants.
            await self._claim(part, Bits(part.size), (), ())

    async def _claim(
        self, part: Part, want: Bits, failed: tuple[str, ...], doubted: tuple[str, ...]
    ) -> Verdict | None:
        part.claims = number = part.claims + 1
        report = self._own_report(part)
        claim = Claim(part.manifest, part.size, self._node, report, want, failed, doubted, number=number)
        try:
            verdict = await self._ask_coordinator(claim)
            if verdict is not None:
                for i in (i for i in verdict.read if i in claim.want):
                    part.granted.add(i)
                    part.on_grant(i)
                for name, said in verdict.holders.items():
                    if name != self._me:
                        part.holders.learn(name, said)
                self.others.named(verdict.nodes.values())
            return verdict
        finally:
            part.heard = number

    async def _ask_coordinator(self, claim: Claim) -> Verdict | None:
        """The coordinator's word, waited for while those who would coordinate settle. None: none can be reached.

        Raises Busy for a claim passed on by another node: it is the sender that waits.
        """
        give_up_at = self._clock.now() + self._limits.patience_s
        while True:
            try:
                return await self._try_candidates(claim)
            except Busy as why:
                if claim.sender != self._me:
                    raise
                if self._clock.now() + why.retry_after_s > give_up_at:
                    return None
                await self._clock.sleep(why.retry_after_s)

    async def _try_candidates(self, claim: Claim) -> Verdict | None:
        """Raises Busy when one of those asked has yet to settle: falling back on the rule now would read twice."""
        tried, soonest = 0, self._unsettled_s()
        for node in self._candidates(claim.manifest):
            if node.name == self._me:
                if self._settled():
                    return await self._coordinate(claim)
                continue
            if tried == TRIED_MAX or claim.hops > FORWARDS_MAX:
                break
            tried += 1
            try:
                body = await self._peers.tell(node, "claim", encode_claim(claim), stall_s=self._limits.stall_s)
                self._standing.answered(node.name)
                return parse_verdict(body, claim.size)
            except Busy as why:
                self._standing.answered(node.name)
                self._not_above(node, claim.manifest)  # It has started again, and knows nothing of what it handed out.
                soonest = min(soonest, why.retry_after_s) if soonest else why.retry_after_s
            except BdnError as why:
                self._standing.failed(node.name, claim.manifest, why, self._clock.now())
                self._not_above(node, claim.manifest)
        if soonest:
            raise Busy(self._me, retry_after_s=soonest)
        return None

    def _not_above(self, node: Node, manifest: Digest) -> None:
        if self._above.get(manifest) == node:
            del self._above[manifest]

    def _unsettled_s(self) -> float:
        """How long until this node is settled; 0.0 when it is."""
        return 0.0 if self._settled() else max(ROUNDING_S, self._settled_at - self._clock.now())

    def _settled(self) -> bool:
        """Whether this node's view is old enough that it knows of everyone who may coordinate beside it."""
        return self._limits.settle_s <= 0 or self._settled_at <= self._clock.now() + ROUNDING_S

    def _candidates(self, manifest: Digest) -> list[Node]:
        """Who coordinates: the first in rank, or one of a higher score that this node has heard of, then the next."""
        now = self._clock.now()
        ranked = [n for n in self._roster.ranked(manifest) if not self._standing.down(n.name, now)]
        heard = self._above.get(manifest)
        if heard is not None and self._standing.down(heard.name, now):
            heard = None
        if heard is not None and (not ranked or self._higher(heard.name, ranked[0].name, manifest)):
            ranked.insert(0, heard)
        return ranked

    def _higher(self, one: str, other: str, manifest: Digest) -> bool:
        return self._roster.score(one, manifest) > self._roster.score(other, manifest)

    def _own_report(self, part: Part) -> Report:
        return Report(part.have, part.granted, self._load(), part.heard)

    # -- the answering side --

    def holders(self, manifest: Digest, asker: str) -> tuple[str, ...]:
        """Who has or reads something of a model that this node coordinates: a few, drawn for each asker."""
        score = lambda name: (self._roster.score(name + asker, manifest), name)  # noqa: E731
        tables = [table for key in self._tables if key[0] == manifest and (table := self._table(key)) is not None]
        named = {n for table in tables for n, report in table.holders.reports.items() if report.have}
        named.update(n for table in tables for n in table.assigned.values())
        return tuple(sorted((n for n in named if n != asker and self._present(n)), key=score)[:HOLDERS_NAMED])

    def _table(self, key: tuple[Digest, int]) -> Table | None:
        """The one that this node has, once everyone was heard."""
        task = self._tables.get(key)
        return task.result() if task and task.done() and not task.cancelled() and task.exception() is None else None

    async def told(self, topic: str, body: bytes) -> bytes:
        """The answer to another node's message. Raises Missing for an unknown topic, Invalid for a broken one."""
        if topic == "claim":
            claim = parse_claim(body)
            self._standing.answered(claim.sender)
            self.others.heard(claim.node)
            verdict = await self._ask_coordinator(replace(claim, hops=claim.hops + 1))
            if verdict is None:
                raise Missing(f"{self._me} reaches no coordinator", where=self._me)
            return encode_verdict(verdict)
        if topic == "collect":
            return encode_collected(self._collected(*parse_collect(body)))
        raise Missing(f"{self._me} knows no topic {topic!r}", where=self._me)

    def _collected(self, manifest: Digest, size: int, sender: Node) -> Collected:
        heard = self._above.get(manifest)
        mine = heard.name if heard is not None else self._me
        if sender.name != self._me and (heard is None or self._higher(sender.name, mine, manifest)):
            self._above[manifest] = sender
            if len(self._above) > MODELS_MAX:
                del self._above[next(iter(self._above))]
        part = self._parts.get(manifest)
        mine_too = part is not None and part.size == size
        report = self._own_report(part) if part is not None and mine_too else Report(Bits(size), Bits(size))
        assigned: dict[str, Bits] = {}
        granted: dict[str, int] = {}
        if (table := self._table((manifest, size))) is not None:
            granted = dict(table.granted)
            for i, name in table.assigned.items():
                assigned.setdefault(name, Bits(size)).add(i)
        if self._higher(sender.name, self._me, manifest):
            # The new one decides from here on; should it die, all is collected anew.
            self._tables.pop((manifest, size), None)
        return Collected(report, assigned, granted)

    async def _coordinate(self, claim: Claim) -> Verdict | None:
        key = claim.manifest, claim.size
        task = self._tables.pop(key, None) or asyncio.ensure_future(self._collect(*key))
        self._tables[key] = task  # The newest last. Who is forgotten here is collected anew, and goes on exactly.
        for old in list(islice(self._tables, max(0, len(self._tables) - MODELS_MAX))):
            del self._tables[old]
        table = await asyncio.shield(task)
        await self._check(table, claim)
        async with table.lock:
            for name in [n for n in table.named if n != claim.sender and not self._present(n)]:
                table.drop(name)
            await self._ask_all(table, claim.manifest, claim.sender)
        if self._superseded(claim, task):
            return await self._ask_coordinator(claim)
        # From here to the verdict nothing is awaited: no other coordinator can hear of this node in between.
        table.learn(claim.sender, claim.report)
        verdict = judge(table, claim, self._present)
        if verdict.read:
            table.granted[claim.sender] = max(claim.number, table.granted.get(claim.sender, 0))
        score = lambda name: self._roster.score(name + claim.sender, claim.manifest)  # noqa: E731
        holders = {n: r for n, r in table.holders.sample(score).items() if n != claim.sender and r.have}
        named = {n for names in verdict.ask.values() for n in names} | set(holders)
        nodes = {n: found for n in sorted(named) if (found := self.others.find(n)) is not None}
        return Verdict(verdict.read, verdict.ask, holders, nodes)

    def _present(self, name: str) -> bool:
        return not self.others.gone(name) and not self._standing.down(name, self._clock.now())

    def _superseded(self, claim: Claim, task: asyncio.Task[Table]) -> bool:
        """Whether a coordinator of a higher score has begun since: it has asked this node what it handed out."""
        heard = self._above.get(claim.manifest)
        higher = heard is not None and self._higher(heard.name, self._me, claim.manifest)
        there = heard is not None and not self._standing.down(heard.name, self._clock.now())
        return self._tables.get((claim.manifest, claim.size)) is not task or (higher and there)

    async def _collect(self, manifest: Digest, size: int) -> Table:
        """A table from what every member says; a member that does not answer counts as having nothing."""
        table = Table(size, Holders(size))
        await self._ask_all(table, manifest, "")
        part = self._parts.get(manifest)
        if part is not None and part.size == size:
            table.learn(self._me, self._own_report(part))
        return table

    async def _ask_all(self, table: Table, manifest: Digest, but: str) -> None:
        """Hear every member that the table does not know yet: a new one may have read something already."""
        now = self._clock.now()
        unknown = [
            n for n in self._roster.nodes
            if n.name not in (self._me, but) and n.name not in table.known
            and not (self._standing.down(n.name, now) and table.asked.get(n.name, -CHECKED_S) > now - CHECKED_S)
        ]  # fmt: skip
        table.asked.update((n.name, now) for n in unknown)
        if not unknown:
            return
        table.known.update(n.name for n in unknown)
        others = iter(unknown)

        async def ask_some() -> None:
            for node in others:
                await self._ask_one(table, manifest, node)

        await asyncio.gather(*(ask_some() for _ in range(min(len(unknown), COLLECT_AT_ONCE))))

    async def _ask_one(self, table: Table, manifest: Digest, node: Node) -> None:
        # All claims wait for this answer: one who was silent before gets a moment only to say that it is back.
        stall_s = min(self._limits.stall_s, AGAIN_S) if self._standing.failing(node.name) else self._limits.stall_s
        question = encode_collect(manifest, table.size, self._node)
        try:
            body = await self._peers.tell(node, "collect", question, stall_s=stall_s)
            collected = parse_collected(body, table.size)
        except BdnError as why:
            self._standing.failed(node.name, manifest, why, self._clock.now())
            table.drop(node.name)
            return
        self._standing.answered(node.name)
        for name, bits in collected.assigned.items():
            for i in bits:
                table.assigned.setdefault(i, name)
        for name, number in collected.granted.items():
            table.granted[name] = max(number, table.granted.get(name, 0))
        table.learn(node.name, collected.report)

    async def _check(self, table: Table, claim: Claim) -> None:
        """Look at those the sender complains of before deciding: is it the node that is gone, or the way to it?

        Several who complain of one node share one look.
        """
        now, looks = self._clock.now(), []
        table.checks = {n: c for n, c in table.checks.items() if c[0] > now - CHECKED_S or not c[1].done()}
        for name in (*claim.failed, *claim.doubted):
            if name not in table.checks:
                table.checks[name] = now, asyncio.ensure_future(self._look_at(table, claim.manifest, name))
            looks.append(table.checks[name][1])
        if looks:
            await asyncio.wait(looks)

    async def _look_at(self, table: Table, manifest: Digest, name: str) -> None:
        node = self.others.find(name)
        if node is None:
            table.drop(name)
        elif name != self._me:
            await self._ask_one(table, manifest, node)

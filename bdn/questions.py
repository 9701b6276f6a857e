"""Owns what a node asks before it reads the origin: its coordinator, the next ranks, and in strict mode for a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bdn.coordinator import Coordinator, Ruling
from bdn.errors import Busy, Down
from bdn.flights import Flight
from bdn.ledger import Ledger
from bdn.origin_reads import Leave
from bdn.policy import Limits, OriginUse, backoff_s
from bdn.ports import Ask, Clock, Holding, Peers
from bdn.roster import Node, Roster
from bdn.sources import Probe, Tried
from bdn.standing import Standing
from bdn.strict import Strict

GRANT_S = 0.1  # A coordinator's word that is older is asked for again before the read, which costs far more.
GHOST_S = 5.0  # Far more than news of a member takes by a watch; `settle_s` on top where it takes longer.
RULING_PAUSE_S, RULING_PAUSE_S_MAX = 0.05, 2.0  # Between asking a coordinator again about one chunk.


class Questions:
    """One node's. coordinator: None where the rule alone is to decide; strict: None unless reads are claimed."""

    def __init__(
        self,
        me: str,
        peers: Peers,
        roster: Callable[[], Roster],
        clock: Clock,
        standing: Standing,
        ledger: Ledger,
        limits: Limits,
        coordinator: Coordinator | None,
        strict: Strict | None,
    ) -> None:
        self._me, self._peers, self._roster, self._clock = me, peers, roster, clock
        self._standing, self._ledger, self._limits = standing, ledger, limits
        self._coordinator, self._strict = coordinator, strict

    def leave(self, flight: Flight, tried: Tried) -> Leave:
        asked_at = self._clock.now()

        async def word(name: str) -> Holding | None:
            node = self._roster().get(name) or tried.strangers.get(name)
            return None if node is None else await self._ask_holding(flight, node)

        async def leave() -> None:
            """Last questions before a read. A grant that waited for its turn may be old: holders come back."""
            if self._coordinator is not None and tried.granted and self._clock.now() - asked_at > GRANT_S:
                ruling = await self._coordinator.rule(
                    flight.swarm.part, flight.number, self._failed(flight, tried), anew=True
                )
                if ruling is not None and not ruling.read:
                    await self._obey(flight, ruling, tried)
                    raise Busy(ruling.ask[0] if ruling.ask else "its coordinator")
            if self._strict is not None:
                await self._strict.take(flight.chunk.digest, tried, word)

        return leave

    async def before_origin(self, flight: Flight, step: Probe, tried: Tried) -> None:
        """Before the origin: the coordinator's word, or else what the next ranks say; hints go into `tried`."""
        tried.probed = True
        if self._coordinator is not None and flight.swarm.use is not OriginUse.FORBID:
            failed = self._failed(flight, tried)
            doubted = [n for n in tried.left if n not in failed] + tried.doubted
            ruling = await self._coordinator.rule(flight.swarm.part, flight.number, failed, doubted)
            if ruling is not None:
                await self._obey(flight, ruling, tried)
                return
        words = await asyncio.gather(*(self._ask_holding(flight, node) for node in step.nodes))
        for wanted in (Holding.HAVE, Holding.FETCHING):
            tried.hint(tuple(n.name for n, w in zip(step.nodes, words, strict=True) if w is wanted))

    def _failed(self, flight: Flight, tried: Tried) -> list[str]:
        """Whom the coordinator is not to name for this chunk: nothing would come of it but being sent there again."""
        now = self._clock.now()
        ghosts = tried.ghosts(now - GHOST_S - self._limits.settle_s)
        return list(dict.fromkeys([*tried.failed, *ghosts, *self._standing.distrusted(flight.chunk.digest, now)]))

    async def _obey(self, flight: Flight, ruling: Ruling, tried: Tried) -> None:
        """A grant is in `part.granted` already. Being sent to the same node again is a reason to wait, ever longer.

        Who denied the chunk a moment ago, because it did not take part yet, may be the very one that reads it now; and
        who could not be reached may be back: the coordinator has looked.
        """
        if ruling.read:
            return
        tried.probed = False
        tried.hint(ruling.ask)
        for name in ruling.ask:
            if self._roster().get(name) is None and name not in tried.strangers:
                tried.unknown.setdefault(name, self._clock.now())
            self._standing.present(name, flight.swarm.manifest)
            if tried.retry(name):
                self._standing.answered(name)
        if tried.rulings:
            await self._clock.sleep(backoff_s(RULING_PAUSE_S, RULING_PAUSE_S_MAX, tried.rulings))
        tried.rulings += 1

    async def _ask_holding(self, flight: Flight, node: Node) -> Holding | None:
        """What the node says of the chunk; None when it cannot be reached."""
        ask = Ask(flight.swarm.manifest, self._me, flight.hops, flight.priority)
        try:
            words = await self._peers.probe(node, [flight.chunk.digest], ask, stall_s=self._limits.stall_s)
        except Down as why:
            self._ledger.miss(node.name, why)
            self._standing.failed(node.name, flight.swarm.manifest, why, self._clock.now())
            return None
        return words[0]

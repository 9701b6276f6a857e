"""Owns one chunk's way from its sources into its sink: step after step until one has sent the right bytes, and what
follows when one fails.

It decides nothing about where (see `sources`), keeps no flight and commits nothing: `resolver` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from bdn.blame import Blame
from bdn.digest import Digest
from bdn.errors import BdnError, Busy, Corrupt, Down, Missing, SourceDown
from bdn.flights import Flight, Outcome, check
from bdn.hedge import Inflow
from bdn.holders import KnownChunk
from bdn.ledger import Ledger
from bdn.origin_reads import OriginReads
from bdn.policy import Limits
from bdn.ports import Ask, Clock, Peers, Sink, Tier
from bdn.questions import Questions
from bdn.roster import Roster
from bdn.sources import LOOK_S, AskPeer, GiveUp, Pause, Probe, ReadOrigin, Tried, next_source
from bdn.standing import Standing
from bdn.uploads import BUSY_S, BUSY_S_MAX

HOPS_MAX = 3  # Forwards of one request: more than two views deep means that the views are useless.


class Fetcher:
    """One node's, for all of its chunks. inflow: hears how long each chunk took that came from a peer."""

    def __init__(
        self,
        me: str,
        peers: Peers,
        origin: OriginReads,
        roster: Callable[[], Roster],
        clock: Clock,
        standing: Standing,
        ledger: Ledger,
        limits: Limits,
        questions: Questions,
        blame: Blame,
        inflow: Inflow,
    ) -> None:
        self._me, self._peers, self._origin, self._roster, self._clock = me, peers, origin, roster, clock
        self._standing, self._ledger, self._limits = standing, ledger, limits
        self._questions, self._blame, self._inflow = questions, blame, inflow
        self._salt = salt_of(me)
        self._asking: Counter[str] = Counter()
        """Chunks that this node is asking each of the others for."""

    def known(self, flight: Flight) -> KnownChunk:
        """What the others are said to have of this chunk."""
        salt = self._salt ^ int.from_bytes(flight.chunk.digest.raw[8:16], "big")
        return KnownChunk(flight.swarm.part.holders, flight.number, salt, self._asking, flight.swarm.burdens)

    async def fetch(self, flight: Flight, sink: Sink) -> Outcome:
        """Step after step until one source has sent the right bytes into the sink."""
        part, tried = flight.swarm.part, flight.tried
        started, known = self._clock.now(), self.known(flight)
        last: BdnError | None = None
        while True:
            now = self._clock.now()
            tried.granted = flight.number in part.granted
            view, use = self._roster(), flight.swarm.use
            step = next_source(flight.chunk, self._me, view, tried, self._standing, use, now, known)
            if isinstance(step, GiveUp) or now - started > self._limits.patience_s:
                why = step.why if isinstance(step, GiveUp) else f"nobody served it for {self._limits.patience_s:g} s"
                whole = f"chunk {flight.chunk.digest.short}: {why}"
                if last is not None and tried.origin_error is None:
                    last.hint = last.hint or why
                raise tried.origin_error or last or SourceDown("the cluster", whole)
            if isinstance(step, Pause):
                await self._clock.sleep(min(LOOK_S, step.until - now))
            elif isinstance(step, Probe):
                await self._questions.before_origin(flight, step, tried)
            elif isinstance(step, ReadOrigin):
                last = await self._from_origin(flight, sink, tried, step.reason)
                if last is None:
                    return Outcome(Tier.ORIGIN, "origin", reason=step.reason)
            else:
                last = await self._from_peer(flight, sink, tried, step)
                if last is None:
                    return Outcome(Tier.PEER, step.node.name)

    async def _from_peer(self, flight: Flight, sink: Sink, tried: Tried, step: AskPeer) -> BdnError | None:
        """None: the sink holds the right bytes. Otherwise why not, with `tried` and the standing brought up to date."""
        node, flight.tier = step.node, Tier.PEER
        ask = Ask(flight.swarm.manifest, self._me, HOPS_MAX if step.settled else flight.hops, flight.priority)
        self._asking[node.name] += 1
        flight.asked, flight.asked_at = node.name, self._clock.now()
        try:
            await self._peers.fetch_into(node, flight.chunk, ask, sink, stall_s=self._limits.stall_s)
            check(flight.chunk, sink, node.name)
        except Busy as why:
            self._drop(flight, sink, node.name, why)
            tried.busy[node.name] = self._clock.now() + min(max(why.retry_after_s, BUSY_S), BUSY_S_MAX)
            at = self._salt % max(1, len(why.holders))  # All who are sent on would else go to the same one first.
            tried.hint(why.holders[at:] + why.holders[:at])
            return why
        except (Missing, Down, Corrupt) as why:
            self._drop(flight, sink, node.name, why)
            tried.probed = False
            if isinstance(why, Missing) and not tried.deny(node.name) and step.settled:
                # It was said to hold the chunk; as owner it may still be asked.
                if node.name in tried.hints:
                    tried.hints.remove(node.name)
                if node.name not in tried.doubted:
                    tried.doubted.append(node.name)
                return why
            if isinstance(why, Corrupt):
                self._blame.tell(node, flight.chunk.digest, why)
            tried.left[node.name] = why
            self._standing.failed(node.name, flight.swarm.manifest, why, self._clock.now())
            return why
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not flight.called_off or task is None or task.uncancel():
                raise
            if flight.better is not None:
                tried.leave_for(flight.better, node.name, self._clock.now())
            flight.start_over(self._ledger, sink)
            return Busy(node.name)
        finally:
            flight.asked, flight.called_off, flight.better = None, False, None
            self._asking[node.name] -= 1
        self._inflow.took(self._clock.now() - flight.asked_at, flight.chunk.size)
        self._standing.answered(node.name)
        return None

    async def _from_origin(self, flight: Flight, sink: Sink, tried: Tried, reason: str) -> BdnError | None:
        flight.reading_origin, flight.tier = True, Tier.ORIGIN
        try:
            leave = self._questions.leave(flight, tried)
            await self._origin.read(flight.swarm.manifest, flight.chunk, sink, priority=flight.priority, leave=leave)
            check(flight.chunk, sink, "origin")
        except Busy as why:  # Another node has it, or has claimed it.
            flight.reading_origin = False
            flight.swarm.part.granted.discard(flight.number)
            flight.disappoint()
            return why
        except (Missing, Down, Corrupt) as why:
            flight.reading_origin = False
            flight.swarm.part.granted.discard(flight.number)  # Before it tries again, it asks who may have it by then.
            self._drop(flight, sink, "origin", why)
            tried.origin_failed(why, self._clock.now(), self._limits, final=not self._origin.there)
            return why
        finally:
            flight.reading_origin = False
        self._ledger.origin_reasons[reason] += 1
        return None

    def _drop(self, flight: Flight, sink: Sink, source: str, why: BdnError) -> None:
        """The source failed: account for what it sent, tell those who counted on it, start again at byte 0."""
        self._ledger.miss(source, why)
        flight.start_over(self._ledger, sink)


def salt_of(me: str) -> int:
    """64 bits that differ from node to node, and need no chance."""
    return int.from_bytes(Digest.of(me.encode()).raw[:8], "big")

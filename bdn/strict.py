"""Owns strict mode: before a node reads a chunk from the origin it writes a claim there, which only one can.

It makes one copy exact where views differ and coordinators do not see one another. The price is one small write for
each chunk read, and waiting: what a node that vanished had claimed is read again only once its claim is `LEASE_S` old.
Whoever reads has just written: a claim that another replaced meanwhile is lost, even to the one who wrote it first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto

from bdn.digest import Digest
from bdn.errors import Busy, Corrupt
from bdn.policy import backoff_s
from bdn.ports import Claimed, Claims, Clock, Holding
from bdn.sources import DENIALS_MAX, Tried
from bdn.standing import Standing

LEASE_S = 15.0  # A chunk of 64 MiB at 4.5 MB/s; a slower reader loses its claim only to one who cannot reach it.
LOOK_AGAIN_S = 2.0  # While a lease runs out, the holder may come back any moment.
TAKES_MAX = 8  # Takers of one chunk that were faster, one after the other; then it waits like everyone else.
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0  # Between being sent to a claim's holder again and again.


class Move(Enum):
    ASK = auto()
    REPLACE = auto()
    WAIT = auto()


def after_claim(claim: Claimed, word: Holding | None, *, spoilt: bool) -> Move:
    """What another node's claim allows. Pure.

    word: what the holder says itself; None when it cannot be reached. spoilt: it sent this node wrong bytes, or denied
    again and again what it says it has.
    """
    if spoilt or word is Holding.LACKS:
        return Move.REPLACE  # On its own word it neither has the chunk nor is about to.
    if word is not None:
        return Move.ASK
    return Move.REPLACE if claim.age_s > LEASE_S else Move.WAIT


class Strict:
    """One node's claims. ask: another node's word on a chunk, None when it cannot be reached."""

    def __init__(self, me: str, claims: Claims, clock: Clock, standing: Standing) -> None:
        self._me, self._claims, self._clock, self._standing = me, claims, clock, standing

    async def take(self, chunk: Digest, tried: Tried, ask: Callable[[str], Awaitable[Holding | None]]) -> None:
        """Returns when this node may read, now. Otherwise raises Busy, and `tried` says what next."""
        claim = await self._claims.take(chunk, self._me)
        for _ in range(TAKES_MAX):
            if claim.fresh:
                return
            if claim.holder == self._me:  # Of an earlier try: written again, so that who has seen the old one loses.
                claim = await self._claims.take(chunk, self._me, replace=claim)
                continue
            now = self._clock.now()
            failed = isinstance(tried.left.get(claim.holder), Corrupt) or tried.denied[claim.holder] >= DENIALS_MAX
            blamed = claim.holder in self._standing.distrusted(chunk, now)
            move = after_claim(claim, await ask(claim.holder), spoilt=failed or blamed)
            if move is Move.REPLACE:
                claim = await self._claims.take(chunk, self._me, replace=claim)
                continue
            if move is Move.ASK:
                tried.left.pop(claim.holder, None)
                tried.hint((claim.holder,))
                tried.claims_seen += 1
                pause = backoff_s(PAUSE_S, PAUSE_S_MAX, tried.claims_seen)
            else:
                pause = min(LOOK_AGAIN_S, max(PAUSE_S, LEASE_S - claim.age_s))
            break
        else:
            pause = LOOK_AGAIN_S
        tried.origin_after, tried.probed = self._clock.now() + pause, False
        raise Busy(claim.holder, retry_after_s=pause)

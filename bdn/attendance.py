"""Owns whether the other members answer just now, for whoever looks at this node's status.

Nothing else follows from it: whom to ask for chunks is decided by what happens when they are asked (`standing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bdn.digest import Digest
from bdn.errors import BdnError
from bdn.ports import Ask, Clock, Peers
from bdn.roster import Node

LOOK_S = 1.0  # One that says nothing for so long is of no use to a pull that starts now.
LOOK_EVERY_S = 5.0  # Status may be asked for many times a second.
AT_ONCE = 64
_NO_MODEL = Digest(bytes(32))


class Attendance:
    """One node's, of the others."""

    def __init__(self, me: str, peers: Peers, clock: Clock) -> None:
        self._me, self._peers, self._clock = me, peers, clock
        self._reached: dict[str, bool] = {}
        self._looked_at: float | None = None

    def reached(self, name: str) -> bool | None:
        """Whether it answered the last time; None: not looked at yet. This node always reaches itself."""
        return True if name == self._me else self._reached.get(name)

    async def look(self, members: Sequence[Node]) -> None:
        """Returns within `LOOK_S`, whoever answers."""
        now = self._clock.now()
        if self._looked_at is not None and now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        found: dict[str, bool] = {}
        todo = iter([m for m in members if m.name != self._me])

        async def some() -> None:
            for node in todo:
                found[node.name] = False
                ask = Ask(_NO_MODEL, self._me)
                try:
                    await self._peers.probe(node, (), ask, stall_s=LOOK_S)
                except BdnError:
                    continue
                found[node.name] = True

        try:
            async with asyncio.timeout(LOOK_S):
                await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        except TimeoutError:
            pass
        self._reached = found

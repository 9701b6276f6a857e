"""Owns the newest view of the members and its epoch, and wakes whoever follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from bdn.roster import Node, Roster


class Views:
    """The Membership port for adapters: they call `replace`, everyone else reads."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._roster = Roster(tuple(nodes), epoch=1)
        self._changed = asyncio.Event()

    @property
    def roster(self) -> Roster:
        return self._roster

    def replace(self, nodes: Iterable[Node]) -> bool:
        """Take a new set of members. False, and no new epoch, when nothing differs in any field."""
        roster = Roster(tuple(nodes), self._roster.epoch + 1)
        if _facts(roster) == _facts(self._roster):
            return False
        self._roster = roster
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def changes(self) -> AsyncIterator[Roster]:
        """Every later view, or only the newest for a reader that is slower than the changes."""
        seen = self._roster.epoch
        while True:
            while self._roster.epoch == seen:
                await self._changed.wait()
            seen = self._roster.epoch
            yield self._roster


def _facts(roster: Roster) -> list[tuple[str, str, int, str, bool]]:
    return [(n.name, n.host, n.port, n.zone, n.ready) for n in roster.nodes]

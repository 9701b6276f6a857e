"""Owns whom this node knows of beside the members in its view: who was one, and who spoke or was named before its news.

News of a member takes its time, and a node may come, claim and go before anybody else has heard of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from bdn.ports import Membership
from bdn.roster import Node

SEEN_MAX = 1 << 14  # Names of members past and present; who is older than that counts as one not heard of yet.
STRANGERS_MAX = 1 << 10


class Acquaintances:
    """One node's."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.strangers: dict[str, Node] = {}
        """Who is not a member in this view yet, with an address."""
        self._seen: dict[str, None] = {}
        self._seen_epoch = -1

    def find(self, name: str) -> Node | None:
        return self._membership.roster.get(name) or self.strangers.get(name)

    def heard(self, node: Node) -> None:
        """It speaks, so it is there, even where the news that it left is newer here than that it came back."""
        if self._membership.roster.get(node.name) is None:
            self._seen.pop(node.name, None)
            self.named([node])

    def named(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.host and self._membership.roster.get(node.name) is None:
                self.strangers.pop(node.name, None)
                self.strangers[node.name] = node
        for name in list(islice(self.strangers, max(0, len(self.strangers) - STRANGERS_MAX))):
            del self.strangers[name]

    def forget_members(self) -> None:
        """Those that are members by now are no strangers."""
        for name in [n for n in self.strangers if self._membership.roster.get(n) is not None]:
            del self.strangers[name]

    def gone(self, name: str) -> bool:
        """It was a member and is none any more; who never was may be one not heard of yet."""
        roster = self._membership.roster
        if roster.epoch != self._seen_epoch:
            self._seen_epoch = roster.epoch
            for node in roster.nodes:
                self._seen[node.name] = self._seen.pop(node.name, None)  # The newest last.
            for old in list(islice(self._seen, max(0, len(self._seen) - SEEN_MAX))):
                del self._seen[old]
        return name in self._seen and roster.get(name) is None

"""Members from a list in the settings: they are all taken to be ready, and failures show when they are asked."""

from __future__ import annotations

from collections.abc import Iterable

from bdn.membership.views import Views
from bdn.roster import parse_nodes


def static_members(specs: Iterable[str]) -> Views:
    """The members written as `name=host:port` or `name@zone=host:port`. Raises ValueError, naming the one that is off.

    `replace` on the result takes a new list, so a settings file may be read again.
    """
    return Views(parse_nodes(specs))

"""Members from the addresses of one name, such as a headless Service: the fallback where nothing better is there.

A cluster's DNS caches for up to 30 s and knows neither zones nor who is about to leave. A member's name is its
address, so a node that restarts with another address is another member.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from bdn.membership.views import Views
from bdn.ports import Clock
from bdn.roster import Node

EVERY_S = 5.0  # Well under the usual 30 s of caching, and one query per node and period at most.
NEWS_S = 30.0 + EVERY_S  # How late a member may be heard of: the cache, and the time to the next lookup.
LOOKUP_S_MAX = 4.0  # A lookup that hangs must not stop the next one.

Lookup = Callable[[str, int], Awaitable[list[str]]]
_log = logging.getLogger(__name__)


async def system_lookup(host: str, port: int) -> list[str]:
    """Every address of a name, of both families. Raises OSError when the name does not resolve."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


async def follow_dns(
    views: Views, host: str, port: int, clock: Clock, *, lookup: Lookup = system_lookup, every_s: float = EVERY_S
) -> None:
    """Look the name up again and again, until cancelled. A failed lookup keeps the last view: DNS going away is no
    reason to think that every peer has."""
    while True:
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                addresses = await lookup(host, port)
        except (OSError, TimeoutError) as why:
            _log.warning("cannot resolve %s (%s); keeping %d members", host, why, len(views.roster.nodes))
        else:
            views.replace(Node(f"{_bracket(a)}:{port}", a, port) for a in addresses)
        await clock.sleep(every_s)


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address

"""Owns what a pull may use: whether the origin may be read, and every limit on waiting, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bdn.errors import BdnError


class OriginUse(StrEnum):
    """May the start of a container read the origin? Whatever is chosen, the receipt says why it was read."""

    PREFER = "prefer"  # as owner, or when everyone before this node failed: the normal rule
    REQUIRE = "require"  # only the origin, no peers: to audit it, or where peers are not trusted
    FORBID = "forbid"  # never: a start fails rather than read it


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound on one node's fetching and serving."""

    stall_s: float = 15.0
    """A source that neither sends a byte nor says that it waits is left after this long."""
    patience_s: float = 900.0
    """How long one chunk may stay busy or unanswered before its pull fails; never a reason to read the origin."""
    origin_patience_s: float = 60.0
    """How long an origin that is down or throttling is retried."""
    origin_concurrency: int = 8
    """The most chunks in flight from the origin; how many there are is `throttle`'s to decide."""
    in_flight_chunks: int = 8
    """Of all pulls together, from peers: enough to fill a link, few enough that each ends soon and is passed on."""
    in_flight_bytes: int = 512 << 20
    """As above: bounds sinks and buffers, not speed, at 8 to 64 MiB a chunk."""
    uploads: int = 8
    """Chunks sent at once; beyond it askers are sent to other holders, so that fan-out is a tree and not a star."""
    upload_queue: int = 64
    """Askers that wait for an upload slot; beyond it they are told to come back."""
    settle_s: float = 0.0
    """After its start a node coordinates nobody, and reads the origin for nobody, until its view is this old: as long
    as news of a member may take. 0 for a fixed list; about 1 s for a watch, 30 s for DNS."""
    grants: int = 16
    """Chunks that a node is told to read at once: what two coordinators that do not see one another may both give."""
    flights: int = 4096
    """Chunks being fetched at once for all pulls and all askers; beyond it askers are told to come back."""


def backoff_s(first_s: float, most_s: float, failures: int) -> float:
    """How long to wait after that many failures in a row: twice as long each time, up to the most.

    A node may be down for months, and 2.0 ** 1024 is an error.
    """
    return min(most_s, first_s * 2.0 ** min(max(0, failures - 1), 64))


def pause_s(why: BdnError, first_s: float, most_s: float, failures: int, *, asked_s_max: float) -> float:
    """How long to leave a source alone after that many failures in a row: as long as it asks for with the last one, or
    as `backoff_s` says where it asks for nothing. Less than the first pause is taken at its word once: who is down and
    answers `retry-after: 0` would be asked thousands of times."""
    asked_s: float | None = getattr(why, "retry_after_s", None)
    if asked_s is None or (asked_s < first_s and failures > 1):
        return backoff_s(first_s, most_s, failures)
    return min(asked_s, asked_s_max)

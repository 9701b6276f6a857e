"""Owns what a pull may use: whether the origin may be read, and every limit on waiting, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """Chunks in flight from the origin: enough to fill a link at 100 MB/s a connection."""
    in_flight_chunks: int = 16
    in_flight_bytes: int = 512 << 20
    """Of all pulls together: bounds sinks and buffers, not speed, at 8 to 32 MiB a chunk."""
    uploads: int = 8
    """Chunks sent at once; beyond it askers are sent to other holders, so that fan-out is a tree and not a star."""
    upload_queue: int = 64
    """Askers that wait for an upload slot; beyond it they are told to come back."""
    flights: int = 4096
    """Chunks being fetched at once for all pulls and all askers; beyond it askers are told to come back."""

"""Who may start a stream now, and when to try again if not. Pure: `now` is an argument, nothing waits, no I/O.

Capacity is measured, never guessed: the number of streams whose steps, and those of the newcomers that so many
streams of the usual length bring along, fill at most `load_max` of an 80 ms frame. A call beyond it is refused at once
with a retry hint, so that the calls already admitted never get slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from runtime.step_cost import StepCost

# How long a stream is taken to live before any has ended; how much each then changes that; and the least one counts,
# since whoever hangs up at once has taken no steps.
STREAM_S, STREAM_PART, STREAM_S_MIN = 30.0, 0.04, 1.0
JOINING_MAX = 0.4


class Priority(IntEnum):
    """Higher is served first and may use the lanes that lower ones must leave free."""

    BATCH = 0
    NORMAL = 1
    HIGH = 2


def capacity(cost: StepCost, *, frame_s: float, load_max: float, lanes: int, joining_s: float = 0.0) -> int:
    """Streams that fit: the largest N with cost(N) + N * joining_s <= load_max * frame_s, from 1 to the lanes.

    `joining_s`: what a stream's joining takes of each frame of its life. With calls of 7 s one of 90 streams joins in
    every frame, and they took all of a device that serves 90 long ones at 85 %. Newcomers who would together take more
    than JOINING_MAX of the time share their steps.
    """
    if cost.lane_s <= 0.0:
        return lanes
    room_s = load_max * frame_s - cost.fixed_s
    apart, together = room_s / (cost.lane_s + joining_s), (room_s - JOINING_MAX * frame_s) / cost.lane_s
    return max(1, min(lanes, int(max(apart, together) + 1e-9)))


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one API key may do. 0 means: no limit of its own."""

    name: str
    streams_max: int = 0
    starts_per_minute: int = 0
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a stream may not start. `code` is one word for machines; each has its own, so none hides another."""

    code: str  # at_capacity | fair_share | key_streams | key_rate | draining | warming
    message: str
    retry_after_s: float


@dataclass(slots=True)
class _KeyUse:
    streams: int = 0
    tokens: float = 0.0  # of the token bucket; filled on first use
    filled_at: float | None = None


@dataclass(slots=True)
class Admission:
    """The counts behind the decision; owned by the event loop. Every `Ticket` taken must be given back once.

    `reserve` streams are kept free for priorities above BATCH. When no more than `reserve` are left, a key that
    already holds its equal share of the capacity is refused although there is room: fair share among keys.
    """

    capacity: int
    reserve: int = 0
    active: int = 0
    draining: bool = False
    warm: bool = False
    stream_s: float = STREAM_S  # running mean of how long a stream that spoke held its lane
    _keys: dict[str, _KeyUse] = field(default_factory=dict)

    def ask(self, key: KeyLimits, now: float, priority: Priority | None = None) -> Refusal | None:
        """None: admitted, and counted until `release`. The priority may only be lowered below the key's own."""
        use = self._keys.setdefault(key.name, _KeyUse())
        rank = min(key.priority, priority) if priority is not None else key.priority
        refusal = self._refusal(key, use, rank, now)
        if refusal is None:
            self.active += 1
            use.streams += 1
            if key.starts_per_minute:
                use.tokens -= 1.0
        return refusal

    def release(self, key: KeyLimits, held_s: float, *, spoke: bool = True) -> None:
        use = self._keys[key.name]
        assert use.streams > 0 and self.active > 0, "a stream was released twice"
        use.streams -= 1
        self.active -= 1
        if spoke:
            self.stream_s += STREAM_PART * (max(STREAM_S_MIN, held_s) - self.stream_s)

    def streams_of(self, key: KeyLimits) -> int:
        use = self._keys.get(key.name)
        return use.streams if use else 0

    @property
    def retry_after_s(self) -> float:
        """With streams ending at random, the next lane is free after about mean duration / active."""
        return round(min(30.0, max(0.25, self.stream_s / max(1, self.active))), 2)

    def _refusal(self, key: KeyLimits, use: _KeyUse, rank: Priority, now: float) -> Refusal | None:
        if self.draining:
            return Refusal("draining", "the server is shutting down; connect again to reach another one", 1.0)
        if not self.warm:
            return Refusal("warming", "the server is still warming up", 2.0)
        if key.streams_max and use.streams >= key.streams_max:
            return Refusal(
                "key_streams", f"this key already has its {key.streams_max} concurrent streams", self.retry_after_s
            )
        wait = _bucket_wait(key, use, now)
        if wait > 0:
            many = f"this key may start {key.starts_per_minute} streams a minute, all at once or spread"
            return Refusal("key_rate", many, round(wait, 2))
        free = self.capacity - self.active
        kept = self.reserve if rank is Priority.BATCH else 0
        if free <= kept:
            return Refusal(
                "at_capacity", f"at capacity: {self.active} of {self.capacity} streams in use", self.retry_after_s
            )
        keys_in_use = sum(1 for u in self._keys.values() if u.streams) + (1 if not use.streams else 0)
        share = max(1, self.capacity // keys_in_use)
        if keys_in_use > 1 and free <= self.reserve and use.streams >= share and rank < Priority.HIGH:
            return Refusal(
                "fair_share",
                f"the last lanes are kept for other keys; this one holds {use.streams}",
                self.retry_after_s,
            )
        return None


def _bucket_wait(key: KeyLimits, use: _KeyUse, now: float) -> float:
    """Seconds until this key may start another stream. The bucket holds a minute's starts: all may come at once."""
    if not key.starts_per_minute:
        return 0.0
    rate = key.starts_per_minute / 60.0
    depth = float(key.starts_per_minute)
    if use.filled_at is None:
        use.tokens = depth
    else:
        use.tokens = min(depth, use.tokens + (now - use.filled_at) * rate)
    use.filled_at = now
    return 0.0 if use.tokens >= 1.0 else (1.0 - use.tokens) / rate

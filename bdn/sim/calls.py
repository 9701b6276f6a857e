"""Owns the callers: arrivals, replicas that take calls, an autoscaler, and how long anyone waits to be spoken to.

A discrete-event queue. A replica's start is the sum of its phases; the weights' phase is what the delivery simulation
of the same scenario measured, for the replicas that start together. Phases, shapes and policies are in the scenario.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TICKS_MAX = 1_000_000
RATE_MAX = 1e4  # Every call is an event.


@dataclass(frozen=True)
class Calls:
    """shape: (second, calls per second) points, straight lines between them; a published trace's outline."""

    shape: tuple[tuple[float, float], ...]
    hold_s: float
    streams: int
    """Calls that one replica takes at once."""
    target: float
    """The autoscaler keeps active calls at this part of the streams."""
    tick_s: float
    replicas_max: int
    phases_s: Mapping[str, float]
    """Everything between the decision to scale and the first call taken, but for the weights."""
    schedule: tuple[tuple[float, int], ...] = ()
    """(second, replicas): at least so many from then on, decided ahead of the calls."""

    def __post_init__(self) -> None:
        times = [t for t, _ in self.shape]
        ordered = len(times) > 1 and times == sorted(set(times)) and times[0] >= 0
        if not ordered or not 0 < times[-1] <= TICKS_MAX * self.tick_s:
            raise ValueError(f"shape needs two points or more, in order of time, and at most {TICKS_MAX} ticks")
        if not all(0 <= r <= RATE_MAX for _, r in self.shape) or not any(r for _, r in self.shape):
            raise ValueError(f"calls per second must be 0 to {RATE_MAX:g}, and not always 0")
        if not (0 < self.hold_s < math.inf and self.streams > 0 and 0 < self.target <= 1 and self.replicas_max > 0):
            raise ValueError("hold_s, streams, target (at most 1) and replicas_max must be above 0")

    @staticmethod
    def parse(value: Mapping[str, object]) -> Calls:
        shape = tuple((float(t), float(r)) for t, r in value["shape"])  # type: ignore[attr-defined]
        schedule = tuple((float(t), int(n)) for t, n in value.get("schedule", ()))  # type: ignore[attr-defined]
        phases = {str(k): float(v) for k, v in value["phases_s"].items()}  # type: ignore[attr-defined]
        return Calls(
            shape, float(value["hold_s"]), int(value["streams"]), float(value["target"]),  # type: ignore[arg-type, call-overload]
            float(value["tick_s"]), int(value["replicas_max"]), phases, schedule,  # type: ignore[arg-type, call-overload]
        )  # fmt: skip

    def rate(self, t: float) -> float:
        for (t0, r0), (t1, r1) in zip(self.shape, self.shape[1:], strict=False):
            if t0 <= t < t1:
                return r0 + (r1 - r0) * (t - t0) / (t1 - t0)
        return self.shape[-1][1]


@dataclass(frozen=True)
class Waits:
    """What callers lived through."""

    callers: int
    waited_over_1s: int
    p50_s: float
    p99_s: float
    longest_s: float
    most_waiting: int
    replica_hours: float
    waiting: tuple[tuple[float, int], ...]
    """(second, callers waiting), at each tick."""

    @property
    def json(self) -> dict[str, object]:
        return {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "waiting"}


ARRIVE, END, TICK, READY = range(4)


class _Hall:
    """The state of one run: who is talking, who waits, what is up and what is coming."""

    def __init__(self, calls: Calls, weights_s: Sequence[float], scheduled: bool, seed: int) -> None:
        self.calls, self._weights_s, self._scheduled = calls, weights_s, scheduled
        self._chance = random.Random(f"{seed}/calls")
        self.events: list[tuple[float, int, int]] = []
        self._seq = 0
        self.active = 0
        self.queue: list[float] = []
        self.head = 0
        self.ready = max(1, math.ceil(calls.rate(0.0) * calls.hold_s / (calls.streams * calls.target)))
        self.coming = 0
        self.waits: list[float] = []
        self.busy_s = 0.0
        self.picture: list[tuple[float, int]] = []

    def push(self, at: float, kind: int) -> None:
        self._seq += 1
        heapq.heappush(self.events, (at, self._seq, kind))

    def fill(self, horizon: float) -> None:
        """Arrivals by thinning a Poisson stream (Lewis, Shedler 1979), ticks, and the calls that are on already."""
        top, t = max(r for _, r in self.calls.shape), 0.0
        while (t := t + self._chance.expovariate(top)) < horizon:
            if self._chance.random() < self.calls.rate(t) / top:
                self.push(t, ARRIVE)
        for k in range(int(horizon / self.calls.tick_s)):
            self.push(k * self.calls.tick_s, TICK)
        self.active = min(self.ready * self.calls.streams, int(self.calls.rate(0.0) * self.calls.hold_s))
        for _ in range(self.active):
            self.push(self._chance.expovariate(1 / self.calls.hold_s), END)

    @property
    def waiting(self) -> int:
        return len(self.queue) - self.head

    def serve(self, now: float) -> None:
        while self.waiting and self.active < self.ready * self.calls.streams:
            self.waits.append(now - self.queue[self.head])
            self.head += 1
            self.active += 1
            self.push(now + self._chance.expovariate(1 / self.calls.hold_s), END)

    def scale(self, now: float) -> None:
        c = self.calls
        want = math.ceil((self.active + self.waiting) / (c.streams * c.target))
        if self._scheduled:
            want = max([want, *(n for at, n in c.schedule if at <= now)])
        new = max(0, min(c.replicas_max, want) - self.ready - self.coming)
        for k in range(new):
            weights = self._weights_s[min(k, len(self._weights_s) - 1)]
            self.push(now + sum(c.phases_s.values()) + weights, READY)
        self.coming += new
        self.picture.append((now, self.waiting))


def run_calls(calls: Calls, weights_s: Sequence[float], *, scheduled: bool, seed: int) -> Waits:
    """weights_s: seconds for the weights of the 1st, 2nd, … of the replicas that start together."""
    horizon = calls.shape[-1][0]
    hall = _Hall(calls, weights_s, scheduled, seed)
    hall.fill(horizon)
    last, most = 0.0, 0
    while hall.events:
        now, _, kind = heapq.heappop(hall.events)
        if now > horizon:
            break
        hall.busy_s += (now - last) * (hall.ready + hall.coming)
        last = now
        if kind == ARRIVE:
            hall.queue.append(now)
        elif kind == END:
            hall.active -= 1
        elif kind == READY:
            hall.coming, hall.ready = hall.coming - 1, hall.ready + 1
        else:
            hall.scale(now)
        hall.serve(now)
        most = max(most, hall.waiting)
    waits = sorted(hall.waits + [horizon - t for t in hall.queue[hall.head :]])
    return Waits(
        callers=len(waits), waited_over_1s=sum(w > 1 for w in waits),
        p50_s=round(waits[len(waits) // 2], 3), p99_s=round(waits[int(len(waits) * 0.99)], 3),
        longest_s=round(waits[-1], 3), most_waiting=most, replica_hours=round(hall.busy_s / 3600, 3),
        waiting=tuple(hall.picture),
    )  # fmt: skip

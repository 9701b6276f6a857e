"""Which lanes step next. Pure: the playout position of every stream, its text state and `now` in, one plan out.

The rule, in order:
1. A stream that plays must not run dry. Whatever else is done now has to leave time for that.
2. Streams that have no sound yet (or whose text ran dry and came back) come next: their lead runs as cheap lead
   steps, then whole steps until they sound. This is what makes the first sound early while others play.
3. When everybody has more than a frame in hand, streams run ahead, the least ahead first, up to `ahead_max_s`: the
   hand they gain is what lets a newcomer have the device to itself. The bound keeps a barge-in from wasting more.

Run-ahead batches are the smallest that carry the load: a newcomer joins at the next step, so short steps are short
waits. Where a step costs the same for any number of lanes (a GPU), that is nearly all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from runtime.admission import StepCost


class Next(Enum):
    """What a lane's next step would be; a lane that cannot step has no view here."""

    LEAD = "lead"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane that could step. `dry_at` is when its listener runs out of sound; None while nothing is playing."""

    lane: int
    next: Next
    dry_at: float | None
    waiting_since: float  # arrival, or the return of text: orders those without sound
    ahead_max_s: float
    priority: int = 1


@dataclass(frozen=True, slots=True)
class Costs:
    full: StepCost
    lead: StepCost
    frame_s: float = 0.08


@dataclass(frozen=True, slots=True)
class Plan:
    """Step these lanes now; or, with none, wait until `wake_at` (inf: until something happens)."""

    lanes: tuple[int, ...]
    lead: bool = False
    wake_at: float = math.inf


def plan(views: list[LaneView], costs: Costs, now: float) -> Plan:
    """The next step. Deterministic: ties go to the lower lane.

    What keeps rule 1: a step is only taken if after it there is still time for one step of everybody before the first
    is dry. Such a step takes at most `load_max` of a frame and gives everybody a frame, so it can be repeated for ever.
    """
    playing = sorted((v for v in views if v.dry_at is not None), key=lambda v: (_dry(v), -v.priority, v.lane))
    waiting = sorted((v for v in views if v.dry_at is None), key=lambda v: (-v.priority, v.waiting_since, v.lane))
    if waiting:
        # A lead step takes only lanes in lead; the first in line decides.
        group = [v for v in waiting if v.next is waiting[0].next]
        lead = waiting[0].next is Next.LEAD
        ends = now + (costs.lead if lead else costs.full).of(len(group))
        if not playing or ends + costs.full.of(len(playing) + len(group)) <= _dry(playing[0]):
            return Plan(tuple(v.lane for v in group), lead)
    # The tolerance makes a wait for exactly this moment end in a step, not in another wait.
    hungry = [v for v in playing if waiting or _dry(v) - now <= v.ahead_max_s + 1e-6]
    if hungry:
        return Plan(tuple(v.lane for v in hungry[: _batch(hungry, len(playing), costs, now)]))
    return Plan((), wake_at=max(now, min((_dry(v) - v.ahead_max_s for v in playing), default=math.inf)))


def _dry(view: LaneView) -> float:
    return math.inf if view.dry_at is None else view.dry_at


def _batch(hungry: list[LaneView], playing: int, costs: Costs, now: float) -> int:
    """How many of the hungriest to step: the fewest that carry the load and leave time for a step of everybody.

    If no number does, everybody: somebody may be late whatever is done, and the largest step catches up soonest.
    """
    everybody = costs.full.of(playing)
    least = min(_enough(playing, costs), len(hungry))
    sizes: list[int] = [*range(least, len(hungry)), *range(1, least)]
    for size in sizes:
        ends = now + costs.full.of(size)
        first, after = _dry(hungry[0]), _dry(hungry[size])
        if ends <= first and ends + everybody <= min(after, first + costs.frame_s):
            return size
    return len(hungry)


def _enough(playing: int, costs: Costs) -> int:
    """Lanes a step that carry the load: b serve all N in a frame when N / b * (fixed + b * lane) <= 0.9 frame."""
    full = costs.full
    if full.fixed_s <= 0:
        return 1
    spare = 0.9 * costs.frame_s - playing * full.lane_s
    return max(1, min(playing, math.ceil(playing * full.fixed_s / spare))) if spare > 0 else max(1, playing)

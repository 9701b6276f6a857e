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

# A stream with less than this in hand is stepped together with the others like it when newcomers press.
SMALL_HAND_FRAMES = 4


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

    def slower(self, times: float) -> Costs:
        """The same with every step taking so many times longer."""
        if times == 1.0:
            return self
        full, lead = self.full, self.lead
        return Costs(
            StepCost(full.fixed_s * times, full.lane_s * times), StepCost(lead.fixed_s * times, lead.lane_s * times),
            self.frame_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """Step these lanes now; or, with none, wait until `wake_at` (inf: until something happens)."""

    lanes: tuple[int, ...]
    lead: bool = False
    wake_at: float = math.inf


def plan(views: list[LaneView], costs: Costs, now: float) -> Plan:
    """The next step. Deterministic: ties go to the lower lane.

    What keeps rule 1: a step is only taken if after it, or after one more of those next to run dry, there is still time
    for a step of everybody before the first is dry. That step takes at most `load_max` of a frame and gives everybody a
    frame, so it can be repeated for ever. "Or after one more": a stream that has just begun has one frame in hand, and
    serving it alone is cheap; asking for a step of everybody at once would lock newcomers out for a second.
    """
    playing = sorted((v for v in views if v.dry_at is not None), key=lambda v: (_dry(v), -v.priority, v.lane))
    waiting = sorted((v for v in views if v.dry_at is None), key=lambda v: (-v.priority, v.waiting_since, v.lane))
    if waiting:
        # A lead step takes only lanes in lead; the first in line decides.
        group = [v for v in waiting if v.next is waiting[0].next]
        lead = waiting[0].next is Next.LEAD
        if not lead and _cheap_in_company(costs):
            group = waiting
        if not playing or _leaves_time(playing, group, lead, costs, now):
            return Plan(tuple(v.lane for v in group), lead)
    # The tolerance makes a wait for exactly this moment end in a step, not in another wait.
    hungry = [v for v in playing if waiting or _dry(v) - now <= v.ahead_max_s + 1e-6]
    if hungry:
        chosen = hungry[: _batch(hungry, len(playing), bool(waiting), costs, now)]
        if waiting and _cheap_in_company(costs) and _ride(chosen, waiting, playing, costs, now):
            chosen += waiting
        return Plan(tuple(v.lane for v in chosen))
    return Plan((), wake_at=max(now, min((_dry(v) - v.ahead_max_s for v in playing), default=math.inf)))


def _cheap_in_company(costs: Costs) -> bool:
    """Whether one more lane in a whole step costs less than a lead step of its own: so it is where lanes are cheap."""
    return costs.full.lane_s < costs.lead.of(1)


def _leaves_time(playing: list[LaneView], group: list[LaneView], lead: bool, costs: Costs, now: float) -> bool:
    """Whether the players are safe after a step of this group, which may sound from then on."""
    ends = now + (costs.lead if lead else costs.full).of(len(group))
    dries = [_dry(v) for v in playing]
    if not lead:
        dries = sorted(dries + [ends + costs.frame_s] * len(group))
    return _safe_size(dries, len(playing) + len(group), 1, costs, ends) is not None


def _ride(chosen: list[LaneView], waiting: list[LaneView], playing: list[LaneView], costs: Costs, now: float) -> bool:
    """Whether those who wait for sound can be in the same step, and all are safe after it."""
    ends = now + costs.full.of(len(chosen) + len(waiting))
    dries = [_dry(v) for v in playing]
    if ends > dries[0]:
        return False
    after = sorted([d + costs.frame_s for d in dries[: len(chosen)]] + dries[len(chosen) :])
    after = sorted(after + [ends + costs.frame_s] * len(waiting))
    return _safe_size(after, len(after), 1, costs, ends) is not None


def _dry(view: LaneView) -> float:
    return math.inf if view.dry_at is None else view.dry_at


def _batch(hungry: list[LaneView], playing: int, pressed: bool, costs: Costs, now: float) -> int:
    """How many of the hungriest to step: the fewest that carry the load and are safe, or else the fewest that are safe.

    `pressed`: newcomers wait. Then all with a small hand go together, which costs least, so that the device is free
    for the newcomers. If no number is safe, everybody: somebody may be late, and the largest step catches up soonest.
    """
    dries = [_dry(v) for v in hungry]
    least = min(_enough(playing, costs), len(hungry))
    if pressed:
        least = max(1, sum(1 for d in dries if d - now < SMALL_HAND_FRAMES * costs.frame_s))
    size = _safe_size(dries, playing, least, costs, now) or _safe_size(dries, playing, 1, costs, now)
    return size or len(hungry)


def _safe_size(dries: list[float], everybody: int, least: int, costs: Costs, now: float) -> int | None:
    """The smallest step from `least` lanes on that is in time and leaves time for a step of everybody after it.

    dries: when each lane is dry, in order; the step takes the first ones.
    """
    first, then = dries[0], costs.full.of(everybody)
    for size in range(least, len(dries) + 1):
        ends = now + costs.full.of(size)
        if ends > first:
            return None
        next_dry = dries[size] if size < len(dries) else math.inf
        if size == everybody or ends + then <= min(next_dry, first + costs.frame_s):
            return size
    return None


def _enough(playing: int, costs: Costs) -> int:
    """Lanes a step that carry the load: b serve all N in a frame when N / b * (fixed + b * lane) <= 0.9 frame."""
    full = costs.full
    if full.fixed_s <= 0:
        return 1
    spare = 0.9 * costs.frame_s - playing * full.lane_s
    return max(1, min(playing, math.ceil(playing * full.fixed_s / spare))) if spare > 0 else max(1, playing)

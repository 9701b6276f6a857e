"""Which lanes step next. Pure: the playout position of every stream, its text state and `now` in, one plan out.

The rule, in order:
1. A stream that plays must not run dry. Whatever else is done now has to leave time for that.
2. Streams that have no sound yet (or whose text ran dry and came back) come next: their lead runs as cheap lead
   steps, then whole steps until they sound. While few come, each has the device to itself as soon as it may. When many
   do (`Influx`), that would make the second wait for the first: leads and whole steps then take turns,
   `LEADS_IN_A_ROW` to one, and newcomers past their lead ride in the players' whole steps. Every wait is then made of
   the same turns, whoever else is there. Simulated with 7 calls a second for 57 lanes, the middle half of the waits is
   20 % of their median instead of 90 %, and the longest 1.5 medians instead of 3.
3. When everybody has more than a frame in hand, streams run ahead, the least ahead first, up to `ahead_max_s`: the
   hand they gain is what lets a newcomer have the device to itself. The bound keeps a barge-in from wasting more.

Run-ahead steps carry `_company` lanes, which makes a newcomer's wait for the step that is running shortest; while the
hands allow, they wait for that company. Where a step costs the same for any number of lanes (a GPU), it is all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from runtime.admission import StepCost

# Lead steps between two whole ones while somebody waits for a whole one: of 16 or so, so that no wait has many turns.
LEADS_IN_A_ROW = 4
# Newcomers come often when they would fill more than this part of the time, each served alone.
OFTEN, INFLUX_S = 0.15, 10.0


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

    @property
    def turn_s(self) -> float:
        """A newcomer's turn of lead steps, which every frame has room for."""
        return LEADS_IN_A_ROW * self.lead.of(1)

    def first_sound_s(self, delay_steps: int, first_frame_step: int) -> float:
        """The least time to the first sound of a stream alone."""
        return delay_steps * self.lead.of(1) + (first_frame_step + 1 - delay_steps) * self.full.of(1)

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


@dataclass(slots=True)
class Influx:
    """How many newcomers a second there have been, those of the last INFLUX_S seconds counting most."""

    _rate: float = 0.0
    _at: float = 0.0

    def note(self, now: float) -> None:
        self._rate, self._at = self.rate(now) + 1.0 / INFLUX_S, now

    def rate(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / INFLUX_S)


def plan(views: list[LaneView], costs: Costs, now: float, *, often: bool = False, leads: int = 0) -> Plan:
    """The next step. Deterministic: ties go to the lower lane.

    often: newcomers come so often that they share turns. leads: lead steps made since the last whole one.

    What keeps rule 1: a step is only taken if after it, or after one more of those next to run dry, there is still time
    for a step of everybody before the first is dry. That step takes at most `load_max` of a frame and gives everybody a
    frame, so it can be repeated for ever. "Or after one more": a stream that has just begun has one frame in hand, and
    serving it alone is cheap; asking for a step of everybody at once would lock newcomers out for a second.
    """
    playing = sorted((v for v in views if v.dry_at is not None), key=lambda v: (_dry(v), -v.priority, v.lane))
    waiting = sorted((v for v in views if v.dry_at is None), key=lambda v: (-v.priority, v.waiting_since, v.lane))
    # Company costs newcomers little, but not nothing: a higher priority is not made to share.
    waiting = [v for v in waiting if v.priority == waiting[0].priority]
    leading = [v for v in waiting if v.next is Next.LEAD]
    ready = [v for v in waiting if v.next is Next.FULL]
    # The tolerance makes a wait for exactly this moment end in a step, not in another wait.
    hungry = [v for v in playing if _dry(v) - now <= v.ahead_max_s + 1e-6]
    company = _company(len(playing), costs)
    worth = hungry if len(hungry) >= company or any(_dry(v) - now <= v.ahead_max_s / 2 for v in hungry[:1]) else []
    leads_turn = leads < LEADS_IN_A_ROW or not (ready or worth) if often else waiting[:1] == leading[:1]
    if leading and leads_turn and _safe(playing, leading, True, costs, now):
        return Plan(tuple(v.lane for v in leading), lead=True)
    if ready and (not often or not hungry):
        group = waiting if _cheap_in_company(costs) else ready
        if _safe(playing, group, False, costs, now):
            return Plan(tuple(v.lane for v in group))
    if chosen := (hungry or playing) if waiting else worth:
        chosen = chosen[: _batch(chosen, len(playing), company, costs, now)]
        riders = waiting if _cheap_in_company(costs) else ready
        if riders and _ride(chosen, riders, playing, costs, now):
            chosen = chosen + riders
        return Plan(tuple(v.lane for v in chosen))
    return Plan((), wake_at=max(now, _next_worth(playing, company)))


def _next_worth(playing: list[LaneView], company: int) -> float:
    """When enough players may run ahead to make a step of `company`, or the first has used up half of its hand."""
    if not playing:
        return math.inf
    may = sorted(_dry(v) - v.ahead_max_s for v in playing)
    return min(may[company - 1], min(_dry(v) - v.ahead_max_s / 2 for v in playing))


def _company(playing: int, costs: Costs) -> int:
    """Lanes in a run-ahead step: those that make a newcomer's wait for it shortest, or more if the load needs more.

    b lanes a step keep the device busy for N / b * cost(b) of a frame, and who comes in then waits half a step:
    N / b * cost(b) ** 2 is least where b lanes cost as much as the step's fixed part.
    """
    full = costs.full
    if full.lane_s <= 0:
        return max(1, playing)
    return max(1, min(playing, max(_enough(playing, costs), math.ceil(full.fixed_s / full.lane_s))))


def _cheap_in_company(costs: Costs) -> bool:
    """Whether one more lane in a whole step costs less than a lead step of its own: so it is where lanes are cheap."""
    return costs.full.lane_s < costs.lead.of(1)


def _safe(playing: list[LaneView], group: list[LaneView], lead: bool, costs: Costs, now: float) -> bool:
    """Whether the players are safe after a step of this group, which may sound from then on."""
    if not playing:
        return True
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


def _batch(hungry: list[LaneView], playing: int, company: int, costs: Costs, now: float) -> int:
    """How many of the hungriest to step: the company if that is safe, or else the fewest that are safe.

    If no number is safe, everybody: somebody may be late, and the largest step catches up soonest.
    """
    dries = [_dry(v) for v in hungry]
    least = min(company, len(hungry))
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

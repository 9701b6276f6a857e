"""Which lanes step next. Pure: the playout position of every stream, its text state and `now` in, one plan out.

The rule, in order:
1. A stream that plays must not run dry. Whatever else is done now has to leave time for that.
2. Streams that have no sound yet (or whose text ran dry and came back) come next. Each has a moment at which it should
   sound: after its text, the least that this takes, and GRACE of it more, in which a step that was running can end. Who
   has the least slack until its moment says what is next: a lead step for all who lead, or a whole step for all past
   their lead. Slack that is left is spent in the whole steps, on players who ride along for a lane's cost each. So it
   makes little difference to a newcomer's wait what was running when it came, or who else did.
3. When nobody waits, streams run ahead, the least ahead first, up to `ahead_max_s`: the hand they gain is what lets a
   newcomer have the device to itself. The bound keeps a barge-in from wasting more; who rides along may be RIDE_S past
   it, so that there is nearly always somebody to spend slack on, or to fill a step with.

Run-ahead steps carry as many as that same time lets them (`Costs.company`), and wait until so many may run ahead,
unless somebody has little in hand, or much less than it may. A device that idles with every hand filled can begin with
a newcomer at once. Short steps instead, which kept it busy, cost half as much again and made newcomers wait for their
end nearly always.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from runtime.step_cost import StepCost

# A run-ahead step takes so much of a first sound's least time, and first sounds take so much more than the least.
GRACE = 0.5
# From this part of the lanes on, and up to all, a run-ahead step may take up to twice as long: it costs less a lane,
# and the few lanes that are left bound how many newcomers it can make wait.
CROWDED = 0.9
# However short that is, a lane's part of the step costs at most so many times what it would in a step of all who play:
# streams that fill `load_max` of the device in steps of everybody must fit in it in these.
COST_MAX = 1.2
# Whoever rides along with a newcomer may be so much further ahead: no frame costs less.
RIDE_S = 0.32
# Who has so much in hand waits for company; half of what it may have, where that is less.
HAND_S = 1.0
# Nobody waits for it who lacks more than this: streams that may run far ahead came no further than others beside them.
LACK_S = 3.0
# So much before its moment a step may come: a wait for exactly that moment ends in a step, not in another wait.
TOLERANCE_S = 1e-6


class Next(Enum):
    """What a lane's next step would be; a lane that cannot step has no view here."""

    LEAD = "lead"
    FULL = "full"


class LaneView(NamedTuple):
    """One lane that could step; `view_of` makes one. Views sort by who must be served first.

    A tuple: one is made for every stream and step, in a fifth of the time that a frozen dataclass takes.
    """

    dry_at: float  # when its listener runs out of sound; inf while nothing is playing
    rank: int  # its priority, negated
    lane: int
    next: Next
    waiting_since: float  # arrival, or the return of text: orders those without sound
    may_at: float  # when it may run ahead
    low_at: float  # when it has too little in hand to wait for company
    leads_left: int  # lead steps and whole steps until it sounds, where it does not
    fulls_left: int


def view_of(
    lane: int,
    kind: Next,
    dry_at: float,
    waiting_since: float,
    ahead_max_s: float,
    priority: int = 1,
    leads_left: int = 0,
    fulls_left: int = 1,
) -> LaneView:
    """The view of a lane that may have `ahead_max_s` in hand."""
    enough_s = max(min(HAND_S, ahead_max_s / 2), ahead_max_s - LACK_S)
    return LaneView(
        dry_at, -priority, lane, kind, waiting_since, dry_at - ahead_max_s, dry_at - enough_s, leads_left, fulls_left
    )


@dataclass(frozen=True, slots=True)
class Costs:
    full: StepCost
    lead: StepCost
    frame_s: float = 0.08

    def joining_s(self, delay_steps: int, first_frame_step: int, stream_s: float) -> float:
        """What a stream that lives so long takes of each frame to get to its first sound, beside its lane's steps."""
        alone_s = self.first_sound_s(delay_steps, first_frame_step)
        return (alone_s - self.full.lane_s) * self.frame_s / stream_s

    def first_sound_s(self, delay_steps: int, first_frame_step: int) -> float:
        """The least time to the first sound of a stream alone."""
        return delay_steps * self.lead.of(1) + (first_frame_step + 1 - delay_steps) * self.full.of(1)

    def company(self, playing: int, least_s: float, taken: float = 0.0) -> int:
        """Lanes in a run-ahead step: as many as take GRACE of a first sound's time, and as COST_MAX asks for.

        taken: the part of all lanes that somebody holds; see CROWDED.
        """
        if not playing or self.full.fixed_s <= 0.0:
            return min(1, playing)
        each_s = COST_MAX * self.full.of(playing) / playing
        cheap = math.ceil(self.full.fixed_s / (each_s - self.full.lane_s) - 1e-9)
        longer = 1.0 + max(0.0, taken - CROWDED) / (1.0 - CROWDED)
        room_s = GRACE * longer * least_s - self.full.fixed_s
        return min(playing, max(cheap, int(room_s / self.full.lane_s) if self.full.lane_s > 0.0 else playing))

    def slower(self, times: float) -> Costs:
        """The same with every step taking so many times longer."""
        if times == 1.0:
            return self
        return Costs(self.full.times(times), self.lead.times(times), self.frame_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """Step these lanes now; or, with none, wait until `wake_at` (inf: until something happens)."""

    lanes: tuple[int, ...]
    lead: bool = False
    wake_at: float = math.inf


def plan(views: Iterable[LaneView], costs: Costs, now: float, *, least_s: float = 0.0, taken: float = 0.0) -> Plan:
    """The next step. Deterministic: ties go to the lower lane.

    `least_s`: what a first sound takes alone; `taken`: the part of all lanes that somebody holds.

    What keeps rule 1: a step is only taken if after it, or after one more of those next to run dry, there is still time
    for a step of everybody before the first is dry. That step takes at most `load_max` of a frame and gives everybody a
    frame, so it can be repeated for ever. "Or after one more": a stream that has just begun has one frame in hand, and
    serving it alone is cheap; asking for a step of everybody at once would lock newcomers out for a second.
    """
    playing = sorted(views)
    waiting: list[LaneView] = []
    while playing and playing[-1].dry_at == math.inf:
        waiting.append(playing.pop())
    waiting.reverse()
    company = costs.company(len(playing), least_s, taken)
    if not waiting and (worth_at := _next_worth(playing, company)) > now + TOLERANCE_S:
        return Plan((), wake_at=worth_at)
    riders = [v for v in playing if v.may_at <= now + RIDE_S]
    if waiting:
        if step := _towards_sound(waiting, playing, riders, least_s * (1.0 + GRACE), costs, now):
            return step
        riders = riders or playing
    along = [v for v in waiting if v.next is Next.FULL]
    size = _batch(riders, len(playing), company, costs, now)
    chosen = riders[:size]
    if along and _ride(chosen, along, playing, costs, now):
        chosen = chosen + along
    return Plan(tuple(v.lane for v in chosen))


def _towards_sound(
    waiting: list[LaneView], playing: list[LaneView], riders: list[LaneView], wait_s: float, costs: Costs, now: float
) -> Plan | None:
    """A step towards the first sound of whoever has the least slack until `wait_s` is over; None if it is not safe."""
    # Company costs newcomers little, but not nothing: a higher priority is not made to share.
    rank = min(v.rank for v in waiting)
    waiting = [v for v in waiting if v.rank == rank]
    leading = [v for v in waiting if v.next is Next.LEAD]
    ready = [v for v in waiting if v.next is Next.FULL]
    lead_s, full_s = costs.lead.of(len(leading)), costs.full.of(max(1, len(ready)))

    def slack_s(v: LaneView) -> float:
        return v.waiting_since + wait_s - now - v.leads_left * lead_s - v.fulls_left * full_s

    first = min(waiting, key=lambda v: (slack_s(v), v.lane))
    if first.next is Next.LEAD:
        safe = _safe(playing, leading, True, costs, now)
        return Plan(tuple(v.lane for v in leading), lead=True) if safe else None
    if costs.full.lane_s * len(leading) < lead_s:  # their leads cost less along with the others than by themselves
        ready = ready + leading
    seats = len(riders)
    if costs.full.lane_s > 0:
        spare_s = _spare_s(first, sorted(leading, key=slack_s), slack_s, costs)
        seats = min(seats, max(0, int(spare_s / first.fulls_left / costs.full.lane_s)))
    riders = riders[:seats]
    if riders and _ride(riders, ready, playing, costs, now):
        return Plan(tuple(v.lane for v in riders + ready))
    return Plan(tuple(v.lane for v in ready)) if _safe(playing, ready, False, costs, now) else None


def _spare_s(first: LaneView, leading: list[LaneView], slack_s: Callable[[LaneView], float], costs: Costs) -> float:
    """What the whole steps of `first` may lose to players without making it late, or those who lead behind it."""
    spare_s, before_s = slack_s(first), first.fulls_left * costs.full.of(1)
    for v in leading:
        spare_s = min(spare_s, slack_s(v) - before_s)
        before_s += v.leads_left * costs.lead.of(1) + v.fulls_left * costs.full.of(1)
    return spare_s


def _next_worth(playing: list[LaneView], company: int) -> float:
    """When enough players may run ahead to make a step of `company`, or one has too little in hand to wait for that.

    A step that is not taken before this is taken at it: asked here only, since a second answer made the device spin.
    """
    if not playing:
        return math.inf
    return min(sorted([v.may_at for v in playing])[company - 1], min([v.low_at for v in playing]))


def _safe(playing: list[LaneView], group: list[LaneView], lead: bool, costs: Costs, now: float) -> bool:
    """Whether the players are safe after a step of this group, which may sound from then on."""
    if not playing:
        return True
    ends = now + (costs.lead if lead else costs.full).of(len(group))
    dries = [v.dry_at for v in playing]
    if not lead:
        dries = sorted(dries + [ends + costs.frame_s] * len(group))
    return _safe_size(dries, len(playing) + len(group), 1, costs, ends) is not None


def _ride(chosen: list[LaneView], waiting: list[LaneView], playing: list[LaneView], costs: Costs, now: float) -> bool:
    """Whether those who wait for sound can be in the same step, and all are safe after it."""
    ends = now + costs.full.of(len(chosen) + len(waiting))
    dries = [v.dry_at for v in playing]
    if ends > dries[0]:
        return False
    after = sorted([d + costs.frame_s for d in dries[: len(chosen)]] + dries[len(chosen) :])
    after = sorted(after + [ends + costs.frame_s] * len(waiting))
    return _safe_size(after, len(after), 1, costs, ends) is not None


def _batch(worth: list[LaneView], playing: int, company: int, costs: Costs, now: float) -> int:
    """How many of the hungriest to step: the company if that is safe, or else the fewest that are safe."""
    dries = [v.dry_at for v in worth]
    least = min(company, len(worth))
    size = _safe_size(dries, playing, least, costs, now) or _safe_size(dries, playing, 1, costs, now)
    return size or _least_silence(dries, playing, costs, now)


def _least_silence(dries: list[float], everybody: int, costs: Costs, now: float) -> int:
    """How many to step if somebody may be late: so that least silence is heard, with a step of everybody after it.

    Everybody at once instead made five late who were half a millisecond short of being safe.
    """
    before = list(itertools.accumulate(dries, initial=0.0))
    silences: list[float] = []
    for size in range(1, len(dries) + 1):
        ends = now + costs.full.of(size)
        then = ends + costs.full.of(everybody)
        late = min(size, bisect.bisect_left(dries, ends))
        later = max(size, bisect.bisect_left(dries, then))
        silences.append(late * ends - before[late] + (later - size) * then - before[later] + before[size])
    return 1 + silences.index(min(silences))


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

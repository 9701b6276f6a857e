"""Which lanes step next. Pure: the playout position of every stream, its text state and `now` in, one plan out.

The rule, in order:
1. A stream that plays must not run dry. Whatever else is done now has to leave time for that.
2. Streams that have no sound yet (or whose text ran dry and came back) come next. Each has a moment at which it should
   sound: from its text on, as long as most of those before it took (`Aim`). Who has the least slack until then says
   what is next: a lead step for all who lead, or a whole step for all past their lead. Slack that is left is spent in
   the whole steps, on players who ride along for a lane's cost each. So the device never idles, and it makes little
   difference to a newcomer's wait what was running when it came, or who else did.
3. When nobody waits, streams run ahead, the least ahead first, up to `ahead_max_s`: the hand they gain is what lets a
   newcomer have the device to itself. The bound keeps a barge-in from wasting more; who rides along may be RIDE_S past
   it, so that there is nearly always somebody to spend slack on.

Run-ahead steps carry the few lanes that make a newcomer's wait for the step that is running shortest, and more of them
as hands grow poor: a step of many serves each for less. How much more is needed is seen in the hands alone; reckoned
from the newcomers of the last seconds, it grew without bound near saturation. While the hands allow, steps wait for
that company. Where a step costs the same for any number of lanes (a GPU), it is all of them. Who goes along with the
hungriest is who lies next to it, as long as nobody is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from runtime.step_cost import StepCost

# A newcomer's wait for the step that is running, and half of one for what others who come then take.
GRACE = 1.5
# The part of newcomers that may sound later than is aimed at; how fast the aim moves; what counts as late; how far the
# aim may go, in times that a newcomer alone takes.
LATE, AIM_STEP, AIM_TOLERANCE, AIM_MAX = 0.25, 0.015, 1.01, 5.0
# Whoever rides along with a newcomer may be so much further ahead: no frame costs less.
RIDE_S = 0.32
# With so much in the middle hand run-ahead steps carry the best few, with this part of it everybody.
HAND_GOOD_S, HAND_POOR = 1.0, 0.2
# So much before its moment a step may come: a wait for exactly that moment ends in a step, not in another wait.
TOLERANCE_S = 1e-6


class Next(Enum):
    """What a lane's next step would be; a lane that cannot step has no view here."""

    LEAD = "lead"
    FULL = "full"


class LaneView(NamedTuple):
    """One lane that could step. `dry_at` is when its listener runs out of sound; inf while nothing is playing.

    A tuple: one is made for every stream and step, in a fifth of the time that a frozen dataclass takes.
    """

    lane: int
    next: Next
    dry_at: float
    waiting_since: float  # arrival, or the return of text: orders those without sound
    ahead_max_s: float
    priority: int = 1
    leads_left: int = 0  # lead steps and whole steps until it sounds, where it does not
    fulls_left: int = 1


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

    def calm_s(self, delay_steps: int, first_frame_step: int) -> float:
        """The same beside few others: a step of the best company to wait for, and half of one for who comes then."""
        return self.first_sound_s(delay_steps, first_frame_step) + GRACE * self.full.of(self.best)

    @property
    def best(self) -> int:
        """Lanes in a run-ahead step that make a newcomer's wait for it shortest.

        b lanes a step keep the device busy for N / b * cost(b) of a frame, and who comes in then waits half a step:
        N / b * cost(b) ** 2 is least where b lanes cost as much as the step's fixed part.
        """
        return max(1, math.ceil(self.full.fixed_s / self.full.lane_s)) if self.full.lane_s > 0 else 1

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


@dataclass(slots=True)
class Aim:
    """How long after its text a newcomer should sound: as long as all but LATE of the last ones really took.

    An aim that most can keep makes waits alike; one that is kept too easily comes down. It moves by parts of itself
    with each newcomer, up where one was late: where it stands still, just LATE of them are.
    """

    least_s: float
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        self.wait_s = max(self.wait_s, self.least_s)

    def note(self, took_s: float) -> None:
        """One sounded so long after its text."""
        late = took_s > self.wait_s * AIM_TOLERANCE
        self.wait_s *= 1.0 + (AIM_STEP * (1.0 - LATE) if late else -AIM_STEP * LATE)
        self.wait_s = min(AIM_MAX * self.least_s, max(self.least_s, self.wait_s))


def plan(views: list[LaneView], costs: Costs, now: float, *, wait_s: float = 0.0) -> Plan:
    """The next step. Deterministic: ties go to the lower lane.

    What keeps rule 1: a step is only taken if after it, or after one more of those next to run dry, there is still time
    for a step of everybody before the first is dry. That step takes at most `load_max` of a frame and gives everybody a
    frame, so it can be repeated for ever. "Or after one more": a stream that has just begun has one frame in hand, and
    serving it alone is cheap; asking for a step of everybody at once would lock newcomers out for a second.
    """
    playing = sorted((v for v in views if v.dry_at < math.inf), key=lambda v: (v.dry_at, -v.priority, v.lane))
    waiting = [v for v in views if v.dry_at == math.inf]
    hungry = [v for v in playing if v.dry_at - v.ahead_max_s <= now + TOLERANCE_S]
    company = _company(playing, costs, now)
    if waiting:
        riders = [v for v in playing if v.dry_at - now <= v.ahead_max_s + RIDE_S]
        if step := _towards_sound(waiting, playing, riders, wait_s, costs, now):
            return step
        worth = hungry or playing
    else:
        worth = hungry if _next_worth(playing, company) <= now + TOLERANCE_S else []
    if not worth:
        return Plan((), wake_at=max(now, _next_worth(playing, company)))
    riders = [v for v in waiting if v.next is Next.FULL]
    size = _batch(worth, len(playing), company, costs, now)
    calm = _calm(playing, size + len(riders), costs, now)
    chosen = _near(worth[0].lane, worth, size) if calm else worth[:size]
    if riders and _ride(chosen, riders, playing, costs, now):
        chosen = chosen + riders
    return Plan(tuple(v.lane for v in chosen))


def _towards_sound(
    waiting: list[LaneView], playing: list[LaneView], hungry: list[LaneView], wait_s: float, costs: Costs, now: float
) -> Plan | None:
    """A step towards the first sound of whoever has the least slack until `wait_s` is over; None if it is not safe."""
    # Company costs newcomers little, but not nothing: a higher priority is not made to share.
    rank = max(v.priority for v in waiting)
    waiting = [v for v in waiting if v.priority == rank]
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
    seats = len(hungry)
    if costs.full.lane_s > 0:
        spare_s = _spare_s(first, sorted(leading, key=slack_s), slack_s, costs)
        seats = min(seats, max(0, int(spare_s / first.fulls_left / costs.full.lane_s)))
    calm = playing and _calm(playing, seats + len(ready), costs, now)
    riders = _near(ready[0].lane, hungry, seats) if calm else hungry[:seats]
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
    """When enough players may run ahead to make a step of `company`, or one has used up half of its hand.

    A step that is not taken before this is taken at it: asked here only, since a second answer made the device spin.
    """
    if not playing:
        return math.inf
    may = sorted(v.dry_at - v.ahead_max_s for v in playing)
    return min(may[company - 1], min(v.dry_at - v.ahead_max_s / 2 for v in playing))


def _company(playing: list[LaneView], costs: Costs, now: float) -> int:
    """Lanes in a run-ahead step: the best few while hands are good, more as they grow poor, for that serves more."""
    everybody = len(playing)
    if costs.full.lane_s <= 0 or not playing:
        return max(1, everybody)
    best, middle = min(everybody, costs.best), playing[everybody // 2]
    good_s = min(HAND_GOOD_S, middle.ahead_max_s / 2)
    lack = min(1.0, max(0.0, 1.0 - (middle.dry_at - now) / good_s) / (1.0 - HAND_POOR))
    return best + math.ceil(lack * (everybody - best))


def _near(lane: int, views: list[LaneView], size: int) -> list[LaneView]:
    """So many of these next to that lane: neighbours are stepped in place, scattered lanes copied there and back."""
    if size >= len(views):
        return views
    return sorted(views, key=lambda v: (abs(v.lane - lane), v.lane))[:size]


def _calm(playing: list[LaneView], size: int, costs: Costs, now: float) -> bool:
    """Whether after a step of this size there is time for one of everybody, whoever was in it."""
    return playing[0].dry_at >= now + costs.full.of(size) + costs.full.of(len(playing))


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


def _batch(hungry: list[LaneView], playing: int, company: int, costs: Costs, now: float) -> int:
    """How many of the hungriest to step: the company if that is safe, or else the fewest that are safe.

    If no number is safe, everybody: somebody may be late, and the largest step catches up soonest.
    """
    dries = [v.dry_at for v in hungry]
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

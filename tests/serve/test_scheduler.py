"""Nobody who plays runs dry; newcomers sound as early as that allows; the rest of the time buys a hand in advance."""

from __future__ import annotations

import math
import random

import pytest

from runtime.admission import capacity
from runtime.scheduler import COST_MAX, GRACE, Costs, LaneView, Next, plan, view_of
from runtime.step_cost import StepCost

CPU = Costs(full=StepCost(0.004, 0.002), lead=StepCost(0.001, 0.0005))
CROWD = Costs(full=StepCost(0.003, 0.0004), lead=CPU.lead)
GPU = Costs(full=StepCost(0.020, 0.0001), lead=StepCost(0.005, 0.0))


def playing(lane: int, dry_at: float, ahead: float = 4.0) -> LaneView:
    return view_of(lane, Next.FULL, dry_at, 0.0, ahead)


def new(lane: int, kind: Next = Next.LEAD, since: float = 0.0, priority: int = 1, done: int = 0) -> LaneView:
    leads = 16 - done if kind is Next.LEAD else 0
    return view_of(lane, kind, math.inf, since, 4.0, priority, leads, 3 if kind is Next.LEAD else 3 - done)


def test_with_nothing_to_do_it_waits_for_something_to_happen() -> None:
    assert plan([], CPU, 5.0) == plan([], CPU, 6.0)
    assert plan([], CPU, 5.0).wake_at == math.inf


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_without_a_step_names_a_later_moment_and_that_one_ends_in_a_step(seed: int) -> None:
    """Whatever mixture of hands and bounds: calls over HTTP may run ahead further than those over sockets."""
    rng = random.Random(seed)
    waits = 0
    for _ in range(200):
        costs = rng.choice([Costs(StepCost(0.004, 0.0008), CPU.lead), CPU, GPU])
        now = rng.uniform(0.0, 1e6)
        bounds = [rng.choice([0.2, 4.0, 30.0]) for _ in range(rng.randint(1, 8))]
        views = [playing(n, now + bound * rng.uniform(0.3, 1.1), bound) for n, bound in enumerate(bounds)]
        p = plan(views, costs, now)
        if not p.lanes:
            waits += 1
            assert p.wake_at > now, f"seed {seed}"
            # The hand that makes company grow may have fallen by then; half of somebody's hand is the last moment.
            while not plan(views, costs, p.wake_at).lanes:
                later = plan(views, costs, p.wake_at)
                assert later.wake_at > p.wake_at, f"seed {seed}"
                p = later
    assert waits


def test_who_may_run_furthest_ahead_does_not_keep_the_device_awake_without_a_step() -> None:
    """Little left of a long hand, and somebody before it in line who has most of a short one."""
    cheap = Costs(full=StepCost(0.004, 0.0008), lead=CPU.lead)
    views = [playing(0, 1000.19, 0.2), playing(1, 1001.0, 30.0), *(playing(n, 1016.0, 15.0) for n in range(2, 6))]
    assert plan(views, cheap, 1000.0).lanes


def test_a_newcomer_leads_while_everybody_has_a_hand() -> None:
    p = plan([playing(0, 10.5), new(1)], CPU, 10.0)
    assert p.lanes == (1,) and p.lead


def test_a_newcomer_waits_when_a_player_would_run_dry() -> None:
    p = plan([playing(0, 10.006), new(1)], CPU, 10.0)
    assert p.lanes == (0,) and not p.lead


def test_a_late_player_comes_before_every_newcomer() -> None:
    p = plan([playing(0, 9.0), new(1)], CPU, 10.0)
    assert p.lanes == (0,)


def test_newcomers_past_their_lead_take_whole_steps_and_share_them() -> None:
    views = [new(1, Next.FULL, 1.0), new(2, Next.FULL, 2.0), new(3, Next.LEAD, 3.0)]
    p = plan(views, CPU, 10.0)
    assert p.lanes == (1, 2) and not p.lead
    cheap = Costs(full=StepCost(0.004, 0.0002), lead=CPU.lead)
    assert plan(views, cheap, 10.0).lanes == (1, 2, 3), "where a lane costs less than a lead step of its own"


def test_whoever_has_the_least_slack_says_what_is_next() -> None:
    late_lead = [new(1, Next.LEAD, 9.90), new(2, Next.FULL, 9.99)]
    p = plan(late_lead, CPU, 10.0, least_s=LEAST_S)
    assert p.lead and p.lanes == (1,)
    late_ready = [new(1, Next.LEAD, 9.99), new(2, Next.FULL, 9.95)]
    p = plan(late_ready, CPU, 10.0, least_s=LEAST_S)
    assert not p.lead and p.lanes == (2,)


LEAST_S = CPU.first_sound_s(16, 18)


def test_a_run_ahead_step_takes_a_part_of_a_first_sounds_time_or_more_where_it_is_dear() -> None:
    for costs in (CPU, GPU, Costs(StepCost(0.0036, 0.00058), CPU.lead), Costs(StepCost(0.0, 0.002), CPU.lead)):
        least_s = costs.first_sound_s(16, 18)
        for players in (1, 2, 3, 20, 95):
            views = [playing(n, 10.9) for n in range(players)]
            size = len(plan(views, costs, 10.0, least_s=LEAST_S).lanes)
            assert size == 1 or costs.full.of(size) <= GRACE * least_s or costs.full.fixed_s > 0.1 * costs.full.of(size)
            dear_s = COST_MAX * costs.full.of(players) / players
            assert costs.full.of(size) / size <= dear_s * (1 + 1e-9)
            short = [playing(n, 10.9) for n in range(players)]
            assert len(plan(short, costs, 10.0, least_s=0.0).lanes) <= size, "and no larger where neither asks for it"


def test_a_step_is_filled_with_who_is_far_ahead_where_only_one_is_short() -> None:
    views = [playing(0, 10.5), *(playing(n, 14.1) for n in range(1, 20)), *(playing(n, 15.0) for n in range(20, 40))]
    lanes = plan(views, CPU, 10.0, least_s=LEAST_S).lanes
    assert lanes[0] == 0 and len(lanes) == CPU.company(40, LEAST_S)
    assert max(lanes) < 20, "nobody so far past its bound"


def test_slack_is_spent_on_players_and_no_more_than_there_is() -> None:
    """A newcomer's last whole step ends when it should sound, and carries as many players as that leaves time for."""
    players = [playing(n, 11.0 + n / 100) for n in range(10, 40)]
    due_s = (1 + GRACE) * LEAST_S
    for size in (1, 6, 13):
        left_s, along = CPU.full.of(size) + 1e-6, size - 1
        views = [*players, new(1, Next.FULL, 10.0 + left_s - due_s, done=2)]
        p = plan(views, CPU, 10.0, least_s=LEAST_S)
        assert len(p.lanes) == 1 + along and 1 in p.lanes, left_s
        assert set(p.lanes) - {1} == set(range(10, 10 + along)), "those who need it first"


def test_the_fewer_lanes_are_left_the_larger_a_run_ahead_step_may_be() -> None:
    least_s = CROWD.first_sound_s(16, 18)
    sizes = [CROWD.company(95, least_s, taken) for taken in (0.0, 0.7, 0.9, 0.95, 1.0)]
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3] < sizes[4] < 95
    assert CROWD.full.of(sizes[4]) <= 2 * GRACE * least_s
    views = [playing(n, 13.0) for n in range(95)]
    assert len(plan(views, CROWD, 10.0, least_s=least_s, taken=1.0).lanes) == sizes[4]


def test_players_far_ahead_wait_for_company_and_not_until_their_hand_is_poor() -> None:
    few, many = [playing(n, 13.0 + n / 100) for n in range(2)], [playing(n, 14.9) for n in range(2, 12)]
    waits = plan(few + many, GPU, 10.0, least_s=0.2)
    assert waits.lanes == () and waits.wake_at == pytest.approx(10.9), "all twelve can"
    assert len(plan(few + many, GPU, waits.wake_at, least_s=0.2).lanes) == 12
    low = plan([playing(0, 11.7), *many], GPU, 10.0, least_s=0.2)
    assert low.lanes == () and low.wake_at == pytest.approx(10.7), "the first is down to a second"
    short = plan([playing(0, 11.0, 1.2), *many], GPU, 10.0, least_s=0.2)
    assert short.lanes == () and short.wake_at == pytest.approx(10.4), "or to half of what it may have"


def test_the_higher_priority_newcomer_is_served_first() -> None:
    p = plan([new(1, Next.FULL, 1.0), new(2, Next.LEAD, 2.0, priority=2)], CPU, 10.0)
    assert p.lanes == (2,)


def test_running_ahead_serves_the_least_ahead_first() -> None:
    p = plan([playing(0, 12.0), playing(1, 11.0), playing(2, 13.0)], CPU, 10.0)
    assert p.lanes[0] == 1


def test_run_ahead_steps_are_short_where_lanes_cost_and_full_where_they_do_not() -> None:
    views = [playing(n, 12.0 + n / 100) for n in range(12)]
    assert len(plan(views, CPU, 10.0).lanes) <= 5
    busy = [playing(n, 12.0 + n / 100) for n in range(64)]
    gpu_full = Costs(full=StepCost(0.060, 0.0001), lead=GPU.lead)
    assert len(plan(busy, gpu_full, 10.0, least_s=0.3).lanes) >= 58


def test_no_stream_runs_further_ahead_than_its_bound_and_the_wake_up_is_when_it_may() -> None:
    p = plan([playing(0, 14.5)], CPU, 10.0)
    assert p.lanes == () and p.wake_at == 10.5


def test_players_about_to_run_dry_share_a_step() -> None:
    views = [playing(n, 10.021) for n in range(8)]  # 20 ms in one step, 24 in two
    assert len(plan(views, CPU, 10.0).lanes) == 8


def test_the_first_to_run_dry_is_not_made_late_by_company() -> None:
    views = [playing(0, 10.0065)] + [playing(n, 10.2) for n in range(1, 8)]
    p = plan(views, CPU, 10.0)
    assert p.lanes == (0,)


def test_when_somebody_must_be_late_the_step_that_carries_most_catches_up_soonest() -> None:
    views = [playing(0, 9.9)] + [playing(n, 10.02) for n in range(1, 8)]
    assert len(plan(views, CPU, 10.0).lanes) == 8


def test_who_is_short_of_being_safe_is_not_made_late_by_a_step_of_everybody() -> None:
    """One had half a millisecond too little, and everybody's step came three later for it."""
    rest = [playing(n, 10.035) for n in range(1, 8)]
    assert plan([playing(0, 10.0055), *rest], CPU, 10.0).lanes == (0,)
    fewest = [10.0055, 10.007, 10.0075, *([10.04] * 7)]
    views = [playing(n, dry_at) for n, dry_at in enumerate(fewest)]
    size = len(plan(views, CPU, 10.0).lanes)

    def silence_s(size: int) -> float:
        ends = 10.0 + CPU.full.of(size)
        heard = [ends] * size + [ends + CPU.full.of(len(fewest))] * (len(fewest) - size)
        return sum(max(0.0, at - dry_at) for at, dry_at in zip(heard, fewest, strict=True))

    assert silence_s(size) == pytest.approx(min(silence_s(n) for n in range(1, 11))) and size < 10


def test_with_lanes_to_step_it_never_waits_however_slow_the_machine_is() -> None:
    """Once three newcomers past their lead waited for ever: no plan was safe, and nobody played."""
    slow = CPU.slower(20.0)
    for kinds in ([Next.FULL] * 3, [Next.LEAD] * 3, [Next.LEAD, Next.FULL, Next.FULL]):
        newcomers = [new(n, kind, float(n)) for n, kind in enumerate(kinds)]
        assert plan(newcomers, slow, 10.0).lanes
        assert plan([playing(8, 9.0), *newcomers], slow, 10.0).lanes
        assert plan([playing(8, 10.01), *newcomers], slow, 10.0).lanes


FIRST_SOUND, ENDLESS = 18, 10**9


def simulate(
    joined: list[float], costs: Costs, seconds: float, *, frames: int = ENDLESS
) -> tuple[int, list[float]]:
    """Streams that join at these times for so many frames: underruns after their start, and each one's wait."""
    now, n = 0.0, len(joined)
    steps = [0] * n
    dry = [math.inf] * n
    first = [0.0] * n
    underruns = 0
    while now < seconds:
        views = [
            view_of(
                k, Next.LEAD if steps[k] < 16 else Next.FULL, dry[k], joined[k], 2.0, 1, max(0, 16 - steps[k]),
                max(1, FIRST_SOUND + 1 - max(16, steps[k])),
            )
            for k in range(n)
            if joined[k] <= now and steps[k] < frames + FIRST_SOUND
        ]  # fmt: skip
        p = plan(views, costs, now, least_s=costs.first_sound_s(16, FIRST_SOUND))
        if not p.lanes:
            coming = min((j for j in joined if j > now), default=math.inf)
            now = min(p.wake_at, coming, seconds)
            continue
        now += (costs.lead if p.lead else costs.full).of(len(p.lanes))
        for k in p.lanes:
            steps[k] += 1
            if steps[k] <= FIRST_SOUND:
                continue
            was = dry[k]
            if was == math.inf:
                first[k] = now - joined[k]
                dry[k] = now + 0.08
            else:
                underruns += now > was + 1e-9
                dry[k] = max(was, now) + 0.08
    return underruns, first


def test_n_streams_that_fill_85_percent_of_the_frame_never_run_dry() -> None:
    for costs in (CPU, GPU, Costs(full=StepCost(0.012, 0.0035), lead=StepCost(0.003, 0.001))):
        n = max(k for k in range(1, 65) if costs.full.of(k) <= 0.85 * 0.08)
        underruns, _ = simulate([0.3 * k for k in range(n)], costs, 40.0)
        assert underruns == 0, costs


def test_the_last_to_join_waits_little_longer_than_the_first() -> None:
    n = max(k for k in range(1, 65) if CPU.full.of(k) <= 0.70 * 0.08)
    _, first = simulate([0.3 * k for k in range(n)], CPU, 30.0)
    alone = 16 * CPU.lead.of(1) + 3 * CPU.full.of(1)
    assert max(first) <= 2 * alone


def test_at_70_percent_it_makes_little_difference_to_a_wait_what_else_is_done() -> None:
    """Calls of 8 s at random times: the middle half of the waits is narrow, the longest are not twice the median."""
    rng = random.Random(3)
    fits = capacity(CPU.full, frame_s=0.08, load_max=0.85, lanes=64, joining_s=CPU.joining_s(16, FIRST_SOUND, 8.0))
    rate, at = 0.7 * fits / 8.0, 0.0
    joined = []
    while (at := at + rng.expovariate(rate)) < 60.0:
        joined.append(at)
    underruns, first = simulate(joined, CPU, 62.0, frames=100)
    waits = sorted(first)
    median = waits[len(waits) // 2]
    assert underruns == 0
    assert waits[len(waits) * 3 // 4] - waits[len(waits) // 4] <= 0.1 * median
    assert waits[len(waits) * 99 // 100] <= 2 * median

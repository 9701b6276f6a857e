"""Capacity is measured, and a machine that was disturbed while it was measured does not lose half of it for ever."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.admission import capacity
from runtime.port import FrameOut, StreamSpec
from runtime.scheduler import Costs
from runtime.serve.conductor import REVIEW_S, Conductor
from runtime.serve.traffic import End, Feed, Open
from runtime.serve.warmup import warm_up
from runtime.step_cost import SEEN_MIN, StepCost, StepWatch, doubtful, fit_cost, plausible, sizes
from tests.serve.fake_engine import FakeEngine, SimClock

TRUE = StepCost(0.0045, 0.0006)
SAMPLES = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 0.1), min_size=1, max_size=10)


class Disturbed(FakeEngine):
    """Steps that begin in one of the `bad` stretches of the clock take `times` longer."""

    bad: Callable[[float], bool] = staticmethod(lambda now: False)
    times = 4.0

    def step(self, lanes: Sequence[int], *, lead: bool = False) -> list[FrameOut]:
        assert self.clock
        began = self.clock.now
        out = super().step(lanes, lead=lead)
        if self.bad(began):
            self.clock.now += (self.times - 1) * (self.clock.now - began)
        return out


def engine(bad: Callable[[float], bool]) -> Disturbed:
    made = Disturbed(
        lanes=96, delay_steps=16, first_frame_step=18, clock=SimClock(),
        full_fixed_s=TRUE.fixed_s, full_lane_s=TRUE.lane_s,
    )  # fmt: skip
    made.bad = bad  # type: ignore[method-assign]
    return made


def fits(costs: Costs) -> int:
    return capacity(costs.full, frame_s=0.08, load_max=0.85, lanes=96, joining_s=costs.joining_s(16, 18, 30.0))


def warmed(bad: Callable[[float], bool]) -> Costs:
    made = engine(bad)
    assert made.clock
    return warm_up(made, made.clock)


QUIET = fits(warmed(lambda now: False))


@given(SAMPLES)
def test_the_cost_line_is_never_below_a_measured_step(samples: dict[int, float]) -> None:
    cost = fit_cost(samples)
    assert cost.fixed_s >= 0 and cost.lane_s >= 0
    assert all(cost.of(n) >= s * (1 - 1e-6) for n, s in samples.items())


def test_a_large_step_off_the_line_tilts_it_and_leaves_the_small_ones_near_their_times() -> None:
    samples = {n: TRUE.of(n) for n in (1, 2, 4, 8, 16, 32, 64)} | {96: 0.080}
    assert fit_cost(samples).of(1) <= 1.1 * samples[1]


@given(SAMPLES)
def test_what_is_plausible_is_never_above_what_was_measured_and_grows_with_the_lanes(samples: dict[int, float]) -> None:
    kept = plausible(samples)
    assert all(kept[n] <= s for n, s in samples.items())
    ordered = [kept[n] for n in sorted(kept)]
    assert ordered == sorted(ordered)


def test_a_quiet_machine_has_nothing_to_measure_again() -> None:
    assert not doubtful({n: TRUE.of(n) for n in sizes(96)})
    made = engine(lambda now: False)
    assert made.clock
    warm_up(made, made.clock)
    assert made.opened == sum(sizes(96)), "each size once"


@pytest.mark.parametrize("seed", range(20))
def test_a_warm_up_disturbed_for_a_while_promises_what_a_quiet_one_does(seed: int) -> None:
    rng = random.Random(seed)
    begin, length = rng.uniform(0, 1.0), rng.uniform(0.02, 0.6)
    assert fits(warmed(lambda now: begin <= now < begin + length)) >= 0.9 * QUIET, (begin, length)


@pytest.mark.parametrize("seed", range(20))
def test_a_warm_up_disturbed_again_and_again_promises_what_a_quiet_one_does(seed: int) -> None:
    rng = random.Random(seed)
    bursts = [rng.uniform(0, 20) for _ in range(40)]
    costs = warmed(lambda now: any(b <= now < b + 0.05 for b in bursts))
    assert fits(costs) >= 0.9 * QUIET


@pytest.mark.parametrize("seed", range(5))
def test_it_never_promises_more_than_there_is(seed: int) -> None:
    rng = random.Random(seed)
    begin = rng.uniform(0, 1.0)
    assert fits(warmed(lambda now: begin <= now < begin + 0.3)) <= QUIET


def test_running_steps_correct_a_start_that_was_disturbed_from_end_to_end() -> None:
    made = engine(lambda now: now < 100.0)
    assert made.clock
    costs = warm_up(made, made.clock)
    assert fits(costs) < 0.5 * QUIET
    made.clock.now = 100.0
    conductor = Conductor(made, costs, made.clock)
    speak(made, conductor, made.clock, 12)
    assert 0.85 * QUIET <= fits(conductor.costs) <= QUIET


def speak(made: FakeEngine, conductor: Conductor, clock: SimClock, streams: int) -> None:
    """Streams join a second apart and speak on; half a minute in all."""
    words, began = "a few words " * 400, clock.now
    joined = 0
    while clock.now < began + 6 * REVIEW_S:
        if joined < streams and clock.now >= began + joined:
            feed = made.text_feed(StreamSpec())
            entries = (*feed.push(words), *feed.end())
            conductor.obey([Open(joined, StreamSpec(seed=joined), 4.0), Feed(joined, entries), End(joined)])
            joined += 1
        _, wake = conductor.turn()
        clock.now = max(clock.now, min(wake, clock.now + 1.0))


def watched(times: float, lanes: Sequence[int], seconds: float = 30.0) -> StepWatch:
    watch = StepWatch(TRUE, 96)
    for n in range(4 * SEEN_MIN):
        size = lanes[n % len(lanes)]
        watch.note(size, times * TRUE.of(size), n * seconds / (4 * SEEN_MIN))
    return watch


def test_a_machine_that_stays_slower_loses_capacity_and_gets_it_back() -> None:
    watch = watched(2.0, (8, 60))
    assert watch.review(30.0) and watch.promised.of(60) == pytest.approx(2 * TRUE.of(60), rel=0.1)
    for n in range(SEEN_MIN):
        watch.note(8, TRUE.of(8), 31.0 + n)
        watch.note(60, TRUE.of(60), 31.0 + n)
    assert watch.review(60.0) and watch.promised.of(60) == pytest.approx(TRUE.of(60), rel=0.1)


def test_after_an_overload_small_steps_give_back_what_was_measured_and_not_more() -> None:
    """Once 22 streams became 96 where 50 fitted: the line through the small steps of a quiet hour is nearly level."""
    rng = random.Random(4)
    for _ in range(50):
        watch = watched(2.5, (8, 60))
        assert watch.review(30.0)
        for n in range(8 * SEEN_MIN):
            size = (1, 2, 4)[n % 3]
            # A step alone on an idle machine, whose caches are others' by now, takes longer than one among many.
            times = rng.gauss(1.15 if size == 1 else 1.0, 0.05)
            watch.note(size, times * TRUE.of(size), 31.0 + 0.1 * n)
        watch.review(60.0)
        assert 0.8 * TRUE.of(96) <= watch.promised.of(96) <= 1.2 * TRUE.of(96)


def test_small_differences_old_steps_and_few_steps_change_nothing() -> None:
    assert not watched(1.15, (8, 60)).review(30.0), "what scattered lanes cost"
    assert not watched(0.9, (8, 60)).review(30.0), "what a few quick steps promise"
    assert not watched(2.0, (8, 60)).review(120.0), "what was, not what is"
    few = StepWatch(TRUE, 96)
    for n in range(SEEN_MIN - 1):
        few.note(8, 9 * TRUE.of(8), float(n))
    assert not few.review(30.0)

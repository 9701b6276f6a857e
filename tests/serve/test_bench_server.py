"""The scheduling benchmark, on the fake engine and a simulated clock: its figures are what such an engine must give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from runtime.admission import capacity
from runtime.bench.arrivals import PROMPTS, Call, calls
from runtime.scheduler import Costs
from runtime.step_cost import StepCost
from tests.serve.fake_engine import FakeEngine, SimClock

spec = importlib.util.spec_from_file_location(
    "bench_server", Path(__file__).parents[2] / "benchmarks" / "bench_server.py"
)
assert spec and spec.loader
bench = importlib.util.module_from_spec(spec)
sys.modules["bench_server"] = bench
spec.loader.exec_module(bench)

COSTS = Costs(full=StepCost(0.010, 0.007), lead=StepCost(0.003, 0.0021))


class Skipping(SimClock):
    def skip_to(self, when: float) -> None:
        self.now = max(self.now, when)


def engine(clock: SimClock, lanes: int = 12) -> FakeEngine:
    return FakeEngine(
        lanes=lanes, delay_steps=16, first_frame_step=18, clock=clock, full_fixed_s=0.010, full_lane_s=0.007
    )


def test_alone_the_first_sound_comes_after_the_arithmetic_minimum() -> None:
    clock = Skipping()
    out, _ = bench.play(engine(clock), COSTS, clock, [Call(0.0, PROMPTS[0], 1)], 4)
    least = 16 * COSTS.lead.of(1) + 3 * COSTS.full.of(1)
    assert out.first_sound_s[0] <= 1.001 * least and out.finished == 1


def test_n_streams_that_fill_85_percent_never_run_dry_and_call_n_plus_1_is_refused() -> None:
    clock = Skipping()
    fits = capacity(COSTS.full, frame_s=0.08, load_max=0.85, lanes=12)
    assert COSTS.full.of(fits) <= 0.068 < COSTS.full.of(fits + 1)
    out, _ = bench.play(engine(clock), COSTS, clock, bench.at_capacity(fits, 20.0), fits)
    assert (out.underruns, out.refused, out.finished, out.active_max) == (0, 1, fits, fits)


def test_at_70_percent_the_tail_stays_within_twice_the_median() -> None:
    clock = Skipping()
    costs = Costs(full=StepCost(0.004, 0.004), lead=StepCost(0.0012, 0.0012))
    fits = capacity(costs.full, frame_s=0.08, load_max=0.85, lanes=48)
    fake = FakeEngine(
        lanes=48, delay_steps=16, first_frame_step=18, clock=clock, full_fixed_s=0.004, full_lane_s=0.004
    )
    longer = tuple(" ".join(three) for three in zip(PROMPTS, PROMPTS[1:], PROMPTS[2:], strict=False))
    out, _ = bench.play(fake, costs, clock, calls(120, rate=0.7 * fits / 5.7, seed=2, prompts=longer), fits)
    quantile = bench.quantile
    median = quantile(out.first_sound_s, 0.5)
    assert out.underruns == 0 and quantile(out.first_sound_s, 0.99) <= 2 * median
    # A lane costs as much as all the rest of a step here: who comes together hardly gains by sharing one.
    assert quantile(out.first_sound_s, 0.75) - quantile(out.first_sound_s, 0.25) <= 0.1 * median


def test_where_many_come_waits_are_as_much_alike() -> None:
    clock = Skipping()
    costs = Costs(full=StepCost(0.005, 0.0007), lead=StepCost(0.001, 0.00014))
    fits = capacity(costs.full, frame_s=0.08, load_max=0.85, lanes=96, joining_s=costs.joining_s(16, 18, 5.7))
    fake = FakeEngine(
        lanes=96, delay_steps=16, first_frame_step=18, clock=clock, full_fixed_s=0.005, full_lane_s=0.0007,
        lead_share=0.2,
    )  # fmt: skip
    longer = tuple(" ".join(three) for three in zip(PROMPTS, PROMPTS[1:], PROMPTS[2:], strict=False))
    out, _ = bench.play(fake, costs, clock, calls(240, rate=0.7 * fits / 5.7, seed=2, prompts=longer), fits)
    quantile, median = bench.quantile, bench.quantile(out.first_sound_s, 0.5)
    assert fits > 50 and out.underruns == 0 and quantile(out.first_sound_s, 0.99) <= 2 * median
    assert quantile(out.first_sound_s, 0.75) - quantile(out.first_sound_s, 0.25) <= 0.1 * median

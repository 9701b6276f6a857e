"""Before the first caller: every shape of step runs, and what each costs becomes the capacity that is promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from runtime.admission import fit_cost
from runtime.port import Engine, LaneState, StreamSpec
from runtime.scheduler import Costs

# Words enough for every timed step; what they are does not matter.
TEXT = "The quick brown fox jumps over the lazy dog and runs away. " * 6
FULL_STEPS, DROPPED = 7, 2  # the first steps of a shape compile or fault pages in; the median of the rest counts


def warm_up(engine: Engine, clock: Callable[[], float]) -> Costs:
    """Runs lead and whole steps of 1, 2, 4, … all lanes and measures them. Leaves every lane free."""
    full: list[tuple[int, float]] = []
    lead: list[tuple[int, float]] = []
    for size in _sizes(engine.lanes):
        lanes = [_opened(engine, seed) for seed in range(size)]
        leads, fulls = _run(engine, lanes, clock)
        for lane in lanes:
            engine.close(lane)
        if leads:
            lead.append((size, statistics.median(leads)))
        full.append((size, statistics.median(fulls)))
    whole = fit_cost(full)
    return Costs(whole, fit_cost(lead) if lead else whole, engine.frame_samples / engine.sample_rate)


def _sizes(lanes: int) -> list[int]:
    return sorted({*(2**k for k in range(int(math.log2(lanes)) + 1)), lanes})


def _opened(engine: Engine, seed: int) -> int:
    spec = StreamSpec(seed=seed)
    feed = engine.text_feed(spec)
    lane = engine.open(spec)
    engine.feed(lane, (*feed.push(TEXT), *feed.end()))
    engine.end(lane)
    return lane


def _run(engine: Engine, lanes: list[int], clock: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Seconds of the lead steps and of the whole steps that yield sound."""
    leads: list[float] = []
    while all(engine.state(lane) is LaneState.LEAD for lane in lanes):
        began = clock()
        engine.step(lanes, lead=True)
        leads.append(clock() - began)
    fulls = []
    for _ in range(engine.first_frame_step - engine.delay_steps + FULL_STEPS):
        began = clock()
        engine.step(lanes)
        fulls.append(clock() - began)
    return leads[DROPPED:] or leads, fulls[DROPPED:]

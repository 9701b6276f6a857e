"""Before the first caller: every shape of step runs, and what each costs becomes the capacity that is promised.

A machine that is disturbed meanwhile measures its neighbours: a size whose steps differ among themselves, or that lies
far above the others, is measured again, and its best measurement counts. A quiet machine measures each size once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from runtime.port import Engine, LaneState, StreamSpec
from runtime.scheduler import Costs
from runtime.step_cost import DOUBT, doubtful, fit_cost, plausible, sizes

# Words enough for every timed step; what they are does not matter.
TEXT = "The quick brown fox jumps over the lazy dog and runs away. " * 6
FULL_STEPS, DROPPED = 7, 2  # the first steps of a shape compile or fault pages in; the median of the rest counts
# Rounds of measuring again: a machine that is disturbed for longer is corrected by the steps of the first callers.
AGAIN_MAX = 3

Seconds = Sequence[float]


def warm_up(engine: Engine, clock: Callable[[], float]) -> Costs:
    """Runs lead and whole steps of 1, 2, 4, … all lanes and measures them. Leaves every lane free."""
    full: dict[int, float] = {}
    lead: dict[int, float] = {}
    due = sizes(engine.lanes)
    for _ in range(1 + AGAIN_MAX):
        uneven = [size for size in due if _measure(engine, size, clock, lead, full)]
        due = sorted({*uneven, *doubtful(lead), *doubtful(full)})
        if not due:
            break
    whole = fit_cost(plausible(full))
    return Costs(whole, fit_cost(plausible(lead)) if lead else whole, engine.frame_samples / engine.sample_rate)


def _measure(
    engine: Engine, size: int, clock: Callable[[], float], lead: dict[int, float], full: dict[int, float]
) -> bool:
    """Times steps of this many lanes; the best measurement of each size stays. Whether this one was disturbed."""
    lanes = [_opened(engine, seed) for seed in range(size)]
    leads, fulls = _run(engine, lanes, clock)
    for lane in lanes:
        engine.close(lane)
    if leads:
        lead[size] = min(lead.get(size, float("inf")), statistics.median(leads))
    full[size] = min(full.get(size, float("inf")), statistics.median(fulls))
    return _uneven(fulls)


def _uneven(seconds: Seconds) -> bool:
    """Whether half of the steps took much longer than the quickest: a step alone on a machine does not."""
    return statistics.median(seconds) > DOUBT * min(seconds)


def _opened(engine: Engine, seed: int) -> int:
    spec = StreamSpec(seed=seed)
    feed = engine.text_feed(spec)
    lane = engine.open(spec)
    engine.feed(lane, (*feed.push(TEXT), *feed.end()))
    engine.end(lane)
    return lane


def _run(engine: Engine, lanes: list[int], clock: Callable[[], float]) -> tuple[Seconds, Seconds]:
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

"""Owns a whole study of one scenario: our run, the rivals', the callers where there are any, and the checks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bdn.sim.calls import Calls, Waits, run_calls
from bdn.sim.results import check_accounts, report
from bdn.sim.rivals import RIVALS
from bdn.sim.run import Outcome, Rollout, simulate
from bdn.sim.scenario import Scenario

SAY_EVERY_S = 10.0  # Real seconds: a large run takes minutes.


@dataclass
class Study:
    """outcomes: ours under "bdn", first, then the rivals by name."""

    result: dict[str, object]
    outcomes: dict[str, Outcome]
    waits: dict[str, Waits] = field(default_factory=dict)

    @property
    def bound_s(self) -> float:
        """When the last node is done at the earliest, after the first start."""
        bound = self.result["bound_seconds"]
        assert isinstance(bound, float)
        return bound


def study(scenario: Scenario, seed: int, *, alone: bool = False, say: Callable[[str], None] = lambda _: None) -> Study:
    """Run everything. Raises AccountsDiffer when the ledgers and the links disagree."""
    with _few_collections():
        say(f"{scenario.name}: {scenario.nodes.count} nodes")
        outcomes = {"bdn": simulate(scenario, seed, watch=_teller(f"{scenario.name}: bdn", say))}
        check_accounts(outcomes["bdn"])
        for name, rival in RIVALS.items() if scenario.rivals and not alone else ():
            say(f"{scenario.name}: {name}")
            outcomes[name] = simulate(scenario, seed, rival(), watch=_teller(f"{scenario.name}: {name}", say))
    rivals = {n: o for n, o in outcomes.items() if n != "bdn"}
    done = Study(report(scenario, seed, outcomes["bdn"], rivals), outcomes)
    if scenario.calls:
        _take_calls(done, Calls.parse(scenario.calls), seed)
    return done


def _take_calls(done: Study, calls: Calls, seed: int) -> None:
    """The same callers, with each way of bringing the weights, with and without a schedule."""
    for name in ("bdn", "everyone_from_origin"):
        outcome = done.outcomes.get(name)
        if outcome is None:
            continue
        took = sorted(end - outcome.started[key] for key, end in outcome.finished.items())
        for scheduled in (False, True):
            label = f"{name}{' + schedule' if scheduled else ''}"
            done.waits[label] = run_calls(calls, took, scheduled=scheduled, seed=seed)
    done.result["callers"] = {name: waits.json for name, waits in done.waits.items()}


def _teller(name: str, say: Callable[[str], None]) -> Callable[[Rollout], None]:
    """Says how far a long run has come, now and then."""
    said = time.monotonic()

    def tell(rollout: Rollout) -> None:
        nonlocal said
        if time.monotonic() - said < SAY_EVERY_S:
            return
        said = time.monotonic()
        outcome = rollout.outcome
        moved = sum(outcome.world.trace.carried.values()) / 1e9
        done, begun = len(outcome.finished), len(outcome.started)
        at = rollout.loop.time()
        say(f"{name}: after {at:.2f} simulated s {moved:.1f} GB moved, {done} of {begun} have the model")

    return tell


@contextmanager
def _few_collections() -> Iterator[None]:
    """The collector looks at millions of live objects in vain: a fifth of a large run."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)



"""Random clusters, random faults: every promise of delivery holds, or the seed is printed and kept here.

Each example is a whole rollout in simulated time. What must hold however nodes start, slow down, die, restart, lie or
disagree: every living node gets its model; nobody waits in a circle; the accounts equal the links; and no chunk is
read from the origin again while a living node has it or is reading it, once views have settled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bdn.policy import Limits
from bdn.sim.results import check_accounts
from bdn.sim.run import Outcome, simulate
from bdn.sim.scenario import Fault, Joins, Model, Nodes, OriginSpec, Pulls, Scenario

NARROW = Limits(stall_s=1.0, settle_s=0.3, in_flight_chunks=1, uploads=1, upload_queue=0, grants=1)

# Past failures. Each is run first, for ever. A scenario's name is part of what is drawn from its seed.
KEPT: dict[str, tuple[int, Scenario]] = {
    # A grant reached a node whose fetch of that chunk already waited for another node, which was then sent to it.
    "circle": (1, Scenario(
        "j", "", (Model(bytes=250_000_000),), Nodes(count=12), joins=Joins(present=0, over_s=2, lag_s=1),
        limits=Limits(settle_s=1.0))),
    # A node that died for good before it had arrived came all the same, alive and without its pull.
    "died-early": (0, Scenario(
        "random", "", (Model(bytes=1, chunk_mib=2),), Nodes(count=2), joins=Joins(present=0, over_s=1.0),
        faults=(Fault(kind="die", first=0),), limits=Limits(settle_s=0.3))),
    # A node that died twice at once was counted twice, and the run ended before the others had their model.
    "died-twice": (0, Scenario(
        "random", "", (Model(bytes=1, chunk_mib=2),), Nodes(count=2),
        faults=(Fault(kind="die", first=0), Fault(kind="die", first=0)))),
    # A settled node whose claim met only nodes that had yet to settle took them for lost, and read on its own account.
    "unsettled": (0, Scenario(
        "random", "", (Model(bytes=25_578_758, chunk_mib=2),), Nodes(count=9, nic_gbit=5.0),
        joins=Joins(present=0, over_s=0.25, lag_s=0.0), pulls=Pulls(over_s=0.25), limits=NARROW)),
    # A coordinator that had started again, and was not settled yet, still counted as the one in charge.
    "restarted": (1930, Scenario(
        "random", "", (Model(bytes=11, chunk_mib=2),), Nodes(count=3, nic_gbit=5.0),
        joins=Joins(present=0, over_s=1.0, lag_s=0.0), pulls=Pulls(over_s=0.5), limits=NARROW, time_s_max=120.0,
        faults=(Fault(kind="die", first=0), Fault(kind="restart", at_s=0.5, first=2, for_s=0.109375)))),
    # A node that had been silent and was back, and had just said what it has, still counted as down.
    "back": (1930, Scenario(
        "random", "", (Model(bytes=11, chunk_mib=2),), Nodes(count=3, nic_gbit=5.0),
        joins=Joins(present=0, over_s=1.0, lag_s=0.0), pulls=Pulls(over_s=0.5), limits=NARROW,
        faults=(Fault(kind="die", first=0), Fault(kind="restart", at_s=0.5, first=2, for_s=1.0, silent=True)))),
    # A node was asked what it reads just when it had been told to; and it was held against it that it had been down.
    "overtaken": (0, Scenario(
        "random", "", (Model(bytes=1, chunk_mib=2),), Nodes(count=2, nic_gbit=5.0), joins=Joins(lag_s=0.0),
        faults=(Fault(kind="restart", first=0, for_s=0.25),), limits=NARROW)),
}  # fmt: skip
READ_ONCE = {"unsettled", "restarted", "back", "overtaken"}
"""Where no copy was lost: the origin sends one."""

deaths = st.builds(
    Fault, kind=st.sampled_from(["die", "restart", "leave"]), at_s=st.floats(0.0, 0.6), nodes=st.integers(1, 2),
    first=st.integers(0, 5), over_s=st.floats(0.0, 0.5), for_s=st.floats(0.1, 1.0), silent=st.booleans(),
)  # fmt: skip
slow = st.builds(
    Fault, kind=st.sampled_from(["nic", "disk"]), at_s=st.floats(0.0, 0.3), nodes=st.integers(1, 3),
    first=st.integers(0, 5), factor=st.floats(0.05, 1.0),
)  # fmt: skip
origin_faults = st.builds(
    Fault, kind=st.sampled_from(["origin", "origin-down"]), at_s=st.floats(0.0, 0.4), for_s=st.floats(0.1, 3.0),
    factor=st.floats(0.1, 1.0),
)  # fmt: skip
liars = st.builds(Fault, kind=st.just("corrupt"), at_s=st.floats(0.0, 0.3), first=st.integers(0, 5))


@st.composite
def scenarios(draw: st.DrawFn, faults: st.SearchStrategy[Fault]) -> Scenario:
    count = draw(st.integers(2, 9))
    warm = draw(st.sampled_from([0, 0, min(2, count - 1)]))
    present = max(warm, draw(st.sampled_from([count, count, max(1, count // 2), 0])))  # Who holds it is there.
    return Scenario(
        "random", "",
        (Model(bytes=draw(st.integers(1, 160_000_000)), chunk_mib=draw(st.sampled_from([2, 8, 16]))),),
        Nodes(count=count, zones=draw(st.integers(1, 3)), nic_gbit=draw(st.sampled_from([5.0, 25.0]))),
        OriginSpec(concurrency_max=draw(st.sampled_from([0, 0, 4]))),
        Joins(present=present, over_s=draw(st.floats(0.0, 1.0)), lag_s=draw(st.sampled_from([0.0, 0.3]))),
        Pulls(over_s=draw(st.floats(0.0, 0.5)), warm=warm),
        tuple(draw(st.lists(faults, max_size=3))),
        Limits(
            stall_s=1.0, settle_s=0.3, uploads=draw(st.integers(1, 8)), upload_queue=draw(st.sampled_from([0, 64])),
            in_flight_chunks=draw(st.integers(1, 8)), grants=draw(st.sampled_from([1, 16])),
        ),
        time_s_max=7200.0,  # Three faults may slow one link 8000-fold.
    )  # fmt: skip


def run(scenario: Scenario, seed: int) -> Outcome:
    outcome = simulate(scenario, seed)
    check_accounts(outcome)
    assert not outcome.failed, (seed, outcome.failed)
    return outcome


def everyone_is_served(outcome: Outcome) -> None:
    for number, model in outcome.started:
        machine = outcome.world.machines[number]
        if machine.alive:
            assert machine.store.published(outcome.models[model].digest), f"{machine.name} has no model"


RANDOM = settings(max_examples=15, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", KEPT)
def test_kept_failures_stay_fixed(name: str) -> None:
    seed, scenario = KEPT[name]
    outcome = run(scenario, seed)
    everyone_is_served(outcome)
    assert name not in READ_ONCE or outcome.origin_copies == 1.0


@RANDOM
@given(scenarios(slow), st.integers(0, 1 << 16))
def test_slow_nodes_are_waited_for_and_the_origin_sends_each_chunk_once(scenario: Scenario, seed: int) -> None:
    outcome = run(scenario, seed)
    everyone_is_served(outcome)
    assert max(outcome.world.origin.reads.values(), default=0) <= 1
    assert outcome.origin_copies == (0.0 if scenario.pulls.warm else 1.0)


@RANDOM
@given(scenarios(st.one_of(deaths, slow)), st.integers(0, 1 << 16))
def test_a_node_that_dies_costs_at_most_what_it_alone_had(scenario: Scenario, seed: int) -> None:
    outcome = run(scenario, seed)
    everyone_is_served(outcome)
    assert not outcome.world.origin.avoidable, (seed, outcome.world.origin.avoidable)


@RANDOM
@given(scenarios(st.one_of(liars, deaths, slow, origin_faults)), st.integers(0, 1 << 16))
def test_whatever_goes_wrong_every_living_node_gets_the_right_bytes(scenario: Scenario, seed: int) -> None:
    everyone_is_served(run(scenario, seed))  # `SimStore.commit` refuses a wrong byte.


@RANDOM
@given(scenarios(st.one_of(deaths, slow)), st.integers(0, 1 << 16), st.sampled_from([0.0, 0.3, 5.0]))
def test_in_strict_mode_a_chunk_is_read_again_only_if_it_died_with_its_sole_holder_however_late_the_news_is(
    scenario: Scenario, seed: int, lag_s: float
) -> None:
    strict = replace(
        scenario, strict=True, limits=replace(scenario.limits, settle_s=0.0), joins=replace(scenario.joins, lag_s=lag_s)
    )
    outcome = run(strict, seed)
    everyone_is_served(outcome)
    assert not outcome.world.origin.avoidable, (seed, outcome.world.origin.avoidable)


@RANDOM
@given(scenarios(st.one_of(deaths, slow, origin_faults)), st.integers(0, 1 << 16))
def test_no_node_fetches_again_what_it_has_verified_whatever_restarts_it_lives_through(
    scenario: Scenario, seed: int
) -> None:
    outcome = run(scenario, seed)
    sizes = [c.size for c in outcome.models[0].chunks]
    whole = Counter((node, chunk) for _, _, node, chunk, size in outcome.world.trace.events if size == sizes[chunk])
    assert max(whole.values(), default=0) <= 1, (seed, whole.most_common(1))


@RANDOM
@given(scenarios(liars), st.integers(0, 1 << 16))
def test_a_wrong_byte_costs_its_receiver_one_more_fetch_and_its_sender_is_asked_no_more(
    scenario: Scenario, seed: int
) -> None:
    outcome = run(scenario, seed)
    everyone_is_served(outcome)
    at_once = scenario.limits.in_flight_chunks + scenario.limits.origin_concurrency
    for name, ledger in outcome.ledgers.items():
        assert max(ledger.corrupt_by_source.values(), default=0) <= at_once, (seed, name)


@settings(RANDOM, max_examples=5)
@given(scenarios(st.one_of(liars, deaths, slow, origin_faults)), st.integers(0, 1 << 16))
def test_the_same_seed_takes_the_same_steps(scenario: Scenario, seed: int) -> None:
    assert run(scenario, seed).world.trace.digest() == run(scenario, seed).world.trace.digest()

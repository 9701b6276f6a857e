"""Random clusters, random faults: every promise of delivery holds, or the seed is printed and kept here.

Each example is a whole rollout in simulated time. What must hold however nodes start, slow down, die, restart, lie or
disagree: every living node gets its model; nobody waits in a circle; the accounts equal the links; and no chunk is
read from the origin again while a living node has it or is reading it, once views have settled.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bdn.policy import Limits
from bdn.sim.results import check_accounts
from bdn.sim.run import Outcome, simulate
from bdn.sim.scenario import Fault, Joins, Model, Nodes, OriginSpec, Pulls, Scenario

# (seed, scenario) of past failures. Each is run first, for ever.
KEPT: list[tuple[int, Scenario]] = [
    # A grant reached a node whose fetch of that chunk already waited for another node, which was then sent to it.
    (1, Scenario("j", "", (Model(bytes=250_000_000),), Nodes(count=12), joins=Joins(present=0, over_s=2, lag_s=1),
                 limits=Limits(settle_s=1.0))),
    # A node that died for good before it had arrived came all the same, alive and without its pull.
    (0, Scenario("random", "", (Model(bytes=1, chunk_mib=2),), Nodes(count=2), joins=Joins(present=0, over_s=1.0),
                 faults=(Fault(kind="die", at_s=0.0, nodes=1, first=0),), limits=Limits(settle_s=0.3))),
    # A settled node whose claim met only nodes that had yet to settle took them for lost, and read on its own account.
    (0, Scenario("unsettled", "", (Model(bytes=25_578_758, chunk_mib=2),), Nodes(count=9, nic_gbit=5.0),
                 joins=Joins(present=0, over_s=0.25, lag_s=0.0), pulls=Pulls(over_s=0.25),
                 limits=Limits(stall_s=1.0, settle_s=0.3, in_flight_chunks=1, uploads=1, upload_queue=0, grants=1))),
]  # fmt: skip
READ_ONCE = {"unsettled"}
"""Of these, what nobody died or lied in: the origin sends one copy."""

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
    present = draw(st.sampled_from([count, count, max(1, count // 2), 0]))
    return Scenario(
        "random", "",
        (Model(bytes=draw(st.integers(1, 160_000_000)), chunk_mib=draw(st.sampled_from([2, 8, 16]))),),
        Nodes(count=count, zones=draw(st.integers(1, 3)), nic_gbit=draw(st.sampled_from([5.0, 25.0]))),
        OriginSpec(concurrency_max=draw(st.sampled_from([0, 0, 4]))),
        Joins(present=present, over_s=draw(st.floats(0.0, 1.0)), lag_s=draw(st.sampled_from([0.0, 0.3]))),
        Pulls(over_s=draw(st.floats(0.0, 0.5)), warm=draw(st.sampled_from([0, 0, min(2, count - 1)]))),
        tuple(draw(st.lists(faults, max_size=3))),
        Limits(
            stall_s=1.0, settle_s=0.3, uploads=draw(st.integers(1, 8)), upload_queue=draw(st.sampled_from([0, 64])),
            in_flight_chunks=draw(st.integers(1, 8)), grants=draw(st.sampled_from([1, 16])),
        ),
        time_s_max=120.0,
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


@pytest.mark.parametrize(("seed", "scenario"), KEPT, ids=lambda v: getattr(v, "name", str(v)))
def test_kept_failures_stay_fixed(seed: int, scenario: Scenario) -> None:
    outcome = run(scenario, seed)
    everyone_is_served(outcome)
    assert scenario.name not in READ_ONCE or outcome.origin_copies == 1.0


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

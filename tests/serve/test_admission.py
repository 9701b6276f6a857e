"""Calls admitted never get slower: what does not fit is refused, each refusal with its own word and a retry hint."""

from __future__ import annotations

import pytest

from runtime.admission import Admission, KeyLimits, Priority, capacity
from runtime.step_cost import StepCost

ANY = KeyLimits("any")


def warm(n: int, **more: int) -> Admission:
    return Admission(capacity=n, warm=True, **more)  # type: ignore[arg-type]


def test_capacity_is_the_most_streams_whose_step_fills_85_percent_of_a_frame() -> None:
    cost = StepCost(fixed_s=0.008, lane_s=0.004)
    n = capacity(cost, frame_s=0.08, load_max=0.85, lanes=64)
    assert n == 15
    assert cost.of(n) <= 0.068 < cost.of(n + 1)
    assert capacity(cost, frame_s=0.08, load_max=0.85, lanes=64, joining_s=0.001) == 12, "who joins needs time too"
    many = capacity(StepCost(0.020, 0.0001), frame_s=0.08, load_max=0.85, lanes=96, joining_s=0.002)
    assert many == 96, "newcomers share their steps where those would take most of the time"


def test_streams_that_live_long_join_seldom_and_only_those_that_spoke_count() -> None:
    gate = warm(2)
    was = gate.stream_s
    for held_s, spoke in ((2.0, True), (0.001, False)):
        gate.ask(ANY, 0.0)
        gate.release(ANY, held_s, spoke=spoke)
    once = gate.stream_s
    assert once < was
    for _ in range(200):
        gate.ask(ANY, 0.0)
        gate.release(ANY, 0.0)
    assert gate.stream_s == pytest.approx(1.0, abs=0.1), "a bound: no flood of short calls takes all capacity away"


def test_capacity_never_exceeds_the_lanes_and_never_refuses_everybody() -> None:
    assert capacity(StepCost(0.001, 0.0), frame_s=0.08, load_max=0.85, lanes=8) == 8
    assert capacity(StepCost(0.2, 0.1), frame_s=0.08, load_max=0.85, lanes=8) == 1


def test_call_n_plus_1_is_refused_with_a_retry_hint_and_the_next_release_lets_one_in() -> None:
    gate = warm(2)
    assert gate.ask(ANY, 0.0) is None and gate.ask(ANY, 0.0) is None
    refusal = gate.ask(ANY, 0.0)
    assert refusal and refusal.code == "at_capacity" and refusal.retry_after_s > 0
    gate.release(ANY, held_s=4.0)
    assert gate.ask(ANY, 0.1) is None


def test_a_refused_call_takes_nothing() -> None:
    gate = warm(1)
    gate.ask(ANY, 0.0)
    for _ in range(10):
        assert gate.ask(ANY, 0.0)
    assert gate.active == 1 and gate.streams_of(ANY) == 1


def test_a_key_has_its_own_limit_of_streams() -> None:
    gate = warm(8)
    one = KeyLimits("one", streams_max=1)
    assert gate.ask(one, 0.0) is None
    refusal = gate.ask(one, 0.0)
    assert refusal and refusal.code == "key_streams"
    assert gate.ask(ANY, 0.0) is None, "one key's limit is no other key's"


def test_a_key_has_its_own_rate_and_the_hint_is_when_it_will_be_let_in() -> None:
    gate = warm(100)
    key = KeyLimits("k", starts_per_minute=20)  # all at once, then one each 3 s
    assert not any(gate.ask(key, 10.0) for _ in range(20))
    refusal = gate.ask(key, 10.0)
    assert refusal and refusal.code == "key_rate" and refusal.retry_after_s == 3.0
    assert gate.ask(key, 12.9) and gate.ask(key, 13.0) is None


def test_batch_calls_leave_the_reserve_to_calls_of_people() -> None:
    gate = warm(3, reserve=1)
    batch = KeyLimits("b", priority=Priority.BATCH)
    assert gate.ask(batch, 0.0) is None and gate.ask(batch, 0.0) is None
    assert gate.ask(batch, 0.0), "the last lane is kept"
    assert gate.ask(ANY, 0.0) is None


def test_a_call_may_lower_its_priority_but_never_raise_it() -> None:
    gate = warm(1, reserve=1)
    assert gate.ask(KeyLimits("n"), 0.0, Priority.BATCH)
    assert gate.ask(KeyLimits("b", priority=Priority.BATCH), 0.0, Priority.HIGH)


def test_the_last_lanes_go_to_the_key_that_holds_less_than_its_share() -> None:
    gate = warm(6, reserve=2)
    greedy, modest = KeyLimits("greedy"), KeyLimits("modest")
    for _ in range(3):
        assert gate.ask(greedy, 0.0) is None
    assert gate.ask(modest, 0.0) is None
    refusal = gate.ask(greedy, 0.0)
    assert refusal and refusal.code == "fair_share"
    assert gate.ask(modest, 0.0) is None


def test_nobody_enters_before_the_warm_up_nor_while_draining() -> None:
    gate = Admission(capacity=4)
    assert (r := gate.ask(ANY, 0.0)) and r.code == "warming"
    gate.warm, gate.draining = True, True
    assert (r := gate.ask(ANY, 0.0)) and r.code == "draining"


def test_releasing_twice_is_a_bug_that_shows() -> None:
    gate = warm(2)
    gate.ask(ANY, 0.0)
    gate.release(ANY, 1.0)
    with pytest.raises(AssertionError):
        gate.release(ANY, 1.0)

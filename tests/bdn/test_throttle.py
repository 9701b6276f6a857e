"""How many reads of the origin a node keeps in flight, and how long it waits after a refusal."""

from __future__ import annotations

import pytest

from bdn.digest import Digest
from bdn.errors import SourceDown
from bdn.policy import Limits, pause_s
from bdn.sources import Tried
from bdn.throttle import READS_ADDED, READS_AT_FIRST, Throttle

MB = 1_000_000


@pytest.mark.parametrize(("share", "slots"), [(1.0, 8), (1 / 4, 4), (1 / 50, 1), (0.0, 1)])
def test_a_burst_starts_with_so_many_reads_in_all_and_every_node_with_at_least_one(share: float, slots: int) -> None:
    throttle = Throttle(8)
    throttle.begin(share)
    assert throttle.slots == slots == max(1, min(8, round(READS_AT_FIRST * share)))


def test_many_nodes_together_add_few_reads_in_a_round_and_one_alone_adds_many() -> None:
    def after_one_round(nodes: int) -> int:
        throttles = [Throttle(8, phase=i / nodes) for i in range(nodes)]
        for throttle in throttles:
            throttle.done(8 * MB, 0.1, 1 / nodes)
        return sum(t.slots for t in throttles) - nodes

    assert after_one_round(50) == READS_ADDED
    assert after_one_round(1) == 7, "to its own most"


def test_a_few_nodes_double_their_reads_while_each_is_as_fast_and_no_further_once_they_take_from_one_another() -> None:
    def slots(nodes: int, rounds: int, *, enough_for: float = 1e9) -> list[int]:
        """Of one of several nodes, before each round. enough_for: reads of a node that the origin can feed."""
        throttle, found = Throttle(8), []
        throttle.begin(1 / nodes)
        for _ in range(rounds):
            found.append(throttle.slots)
            seconds = 0.1 * max(1.0, throttle.slots / enough_for)
            for _ in range(throttle.slots):
                throttle.done(8 * MB, seconds, 1 / nodes)
        return found

    assert slots(8, 5) == [2, 4, 8, 8, 8]
    assert slots(50, 3) == [1, 1, 1], "as many as fill the origin at once"
    assert set(slots(8, 12, enough_for=2.0)[2:]) <= {2, 3, 4, 5}
    assert slots(8, 3, enough_for=1.0) == [2, 4, 2], "no fewer than at first"


def test_reads_that_take_from_one_another_are_made_fewer_and_a_refusal_halves_them() -> None:
    throttle = Throttle(8)
    throttle.begin(1 / 8)
    for size in (2, 4):
        assert throttle.slots == size
        for _ in range(size):
            throttle.done(8 * MB, 0.1, 1 / 8)
    for _ in range(8):
        throttle.done(8 * MB, 0.2, 1 / 8)
    assert throttle.slots == 5, "0.55 of the best rate, which fades"
    throttle.refused(now=10.0, retry_after_s=2.0)
    assert throttle.slots == 2 and throttle.pause_until == 12.0
    throttle.begin(1.0)
    assert throttle.slots == 2, "a refusal outlives the start"


def test_the_origins_patience_counts_from_its_first_failure_and_bounds_what_it_asks_for() -> None:
    limits, tried = Limits(origin_patience_s=60.0), Tried(Digest.of(b"m"))
    tried.origin_failed(SourceDown("origin", "503", retry_after_s=86400.0), 1000.0, limits)
    assert tried.origin_error is None and tried.origin_after == 1060.0
    tried.origin_failed(SourceDown("origin", "refused"), 1059.0, limits)
    assert tried.origin_error is None
    tried.origin_failed(SourceDown("origin", "refused"), 1061.0, limits)
    assert tried.origin_error is not None


def test_a_source_is_left_alone_as_long_as_it_asks_or_ever_longer_and_never_without_end() -> None:
    silent, asking = SourceDown("s", "no"), SourceDown("s", "503", retry_after_s=7.0)
    assert [pause_s(silent, 0.5, 20.0, n, asked_s_max=9.0) for n in (1, 2, 3, 7, 5000)] == [0.5, 1.0, 2.0, 20.0, 20.0]
    assert [pause_s(asking, 0.5, 20.0, n, asked_s_max=most) for n, most in ((1, 9.0), (5, 9.0), (1, 2.0))] == [7, 7, 2]


def test_who_is_down_and_asks_for_no_pause_gets_none_once() -> None:
    """`retry-after: 0` is sent in earnest; taken at its word, it was 260 requests a second for as long as we wait."""
    hasty = SourceDown("s", "503", retry_after_s=0.0)
    assert [pause_s(hasty, 0.5, 20.0, n, asked_s_max=9.0) for n in (1, 2, 3)] == [0.0, 1.0, 2.0]

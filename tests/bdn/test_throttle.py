"""How many reads of the origin a node keeps in flight, and how long it waits after a refusal."""

from __future__ import annotations

import pytest

from bdn.digest import Digest
from bdn.errors import SourceDown
from bdn.policy import Limits
from bdn.sources import Tried
from bdn.throttle import READS_ADDED, READS_AT_FIRST, Throttle

MB = 1_000_000


@pytest.mark.parametrize(("share", "slots"), [(1.0, 8), (1 / 16, 4), (1 / 50, 1), (0.0, 1)])
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


def test_reads_that_take_from_one_another_are_made_fewer_and_a_refusal_halves_them() -> None:
    throttle = Throttle(8)
    throttle.begin(1.0)
    for _ in range(8):
        throttle.done(8 * MB, 0.1, 1.0)
    for _ in range(8):
        throttle.done(8 * MB, 0.4, 1.0)
    assert throttle.slots == 7
    throttle.refused(now=10.0, retry_after_s=2.0)
    assert throttle.slots == 3 and throttle.pause_until == 12.0
    throttle.begin(1.0)
    assert throttle.slots == 3, "a refusal outlives the start"


def test_the_origins_patience_counts_from_its_first_failure_and_bounds_what_it_asks_for() -> None:
    limits, tried = Limits(origin_patience_s=60.0), Tried(Digest.of(b"m"))
    tried.origin_failed(SourceDown("origin", "503", retry_after_s=86400.0), 1000.0, limits)
    assert tried.origin_error is None and tried.origin_after == 1060.0
    tried.origin_failed(SourceDown("origin", "refused"), 1059.0, limits)
    assert tried.origin_error is None
    tried.origin_failed(SourceDown("origin", "refused"), 1061.0, limits)
    assert tried.origin_error is not None

"""Pipes share fairly, carry no more than their rate, and account for what was abandoned."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from bdn.sim.links import Pipe, Transfer
from bdn.sim.loop import SimLoop


def loop() -> SimLoop:
    return SimLoop()  # type: ignore[abstract]


def test_two_transfers_share_a_pipe_and_the_second_speeds_up_when_the_first_ends() -> None:
    sim = loop()

    async def main() -> tuple[float, float]:
        pipe = Pipe(sim, "p", 100.0)
        one = Transfer(sim, 100, [pipe])
        two = Transfer(sim, 200, [pipe])
        await one.done
        first = sim.time()
        await two.done
        return first, sim.time()

    first, second = sim.run(main())
    assert abs(first - 2.0) < 1e-6 and abs(second - 3.0) < 1e-6


def test_a_transfer_is_as_slow_as_its_slowest_pipe_and_a_flow_keeps_to_its_own_limit() -> None:
    sim = loop()

    async def main() -> float:
        await Transfer(sim, 100, [Pipe(sim, "fast", 1000.0, flow_rate=50.0), Pipe(sim, "slow", 25.0)]).done
        return sim.time()

    assert abs(sim.run(main()) - 4.0) < 1e-6


def test_an_aborted_transfer_counts_what_came_through_and_frees_its_share() -> None:
    sim = loop()

    async def main() -> tuple[int, float]:
        pipe = Pipe(sim, "p", 100.0)
        gone, stays = Transfer(sim, 1000, [pipe]), Transfer(sim, 150, [pipe])
        await asyncio.sleep(1.0)
        through = gone.abort(None)
        await stays.done
        assert abs(pipe.carried - 200) < 1e-2
        return through, sim.time()

    through, end = sim.run(main())
    assert through in (49, 50) and abs(end - 2.0) < 1e-6


def test_what_has_come_of_a_transfer_is_seen_while_it_runs_and_looking_changes_nothing() -> None:
    sim = loop()

    async def main() -> tuple[list[int], float]:
        slow = Pipe(sim, "slow", 100.0)
        one, seen = Transfer(sim, 200, [slow, Pipe(sim, "fast", 1000.0)]), []
        Transfer(sim, 100, [slow])
        for _ in range(3):
            seen.append(one.so_far)
            await asyncio.sleep(0.75)
        await one.done
        return [*seen, one.so_far], sim.time()

    seen, end = sim.run(main())
    assert seen == [0, 37, 75, 200] and abs(end - 3.0) < 1e-6


def test_a_new_rate_holds_from_now_on() -> None:
    sim = loop()

    async def main() -> float:
        pipe = Pipe(sim, "p", 100.0)
        transfer = Transfer(sim, 200, [pipe])
        await asyncio.sleep(1.0)
        pipe.set_rate(10.0)
        await transfer.done
        return sim.time()

    assert abs(sim.run(main()) - 11.0) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 5000), st.booleans()), min_size=1, max_size=25
    )
)  # fmt: skip
def test_a_pipe_is_never_faster_than_its_rate_and_never_idle_with_work(jobs: list[tuple[float, int, bool]]) -> None:
    sim = loop()
    first = min(at for at, _, _ in jobs)

    async def job(pipe: Pipe, at: float, size: int, dies: bool) -> float:
        await asyncio.sleep(at)
        transfer = Transfer(sim, size, [pipe])
        if dies:
            await asyncio.sleep(0.05)
            return float(transfer.abort(None))
        await transfer.done
        return float(size)

    async def main() -> tuple[float, float]:
        pipe = Pipe(sim, "p", 1000.0)
        got = await asyncio.gather(*(job(pipe, *j) for j in jobs))
        assert not pipe.n
        return sum(got), sim.time()

    carried, end = sim.run(main())
    assert carried <= (end - first) * 1000.0 + 1.0
    if all(at == first for at, _, _ in jobs) and not any(dies for _, _, dies in jobs):
        assert carried >= (end - first) * 1000.0 - 1.0

"""A small pull is not starved by a large one, and background work yields to a waiting container."""

from __future__ import annotations

import asyncio

from bdn.sim.loop import run
from bdn.window import Window


def grants(window: Window, asks: list[tuple[str, int, int]]) -> list[str]:
    """Ask for everything at once, let one piece of work end at a time; who was let in, in order."""
    order: list[str] = []

    async def work(payer: str, priority: int, size: int) -> None:
        async with window.room(size, priority, payer):
            order.append(payer)
            await asyncio.sleep(1)

    async def main() -> None:
        await asyncio.gather(*(work(*a) for a in asks))

    run(main())
    return order


def test_a_small_model_gets_its_share_beside_a_large_one() -> None:
    asks = [("large", 0, 8)] * 40 + [("small", 0, 8)] * 5
    order = grants(Window(slots=1, bytes_max=100), asks)
    assert max(i for i, who in enumerate(order) if who == "small") <= 12


def test_a_waiting_container_goes_before_preheat() -> None:
    order = grants(Window(slots=2, bytes_max=100), [("preheat", 5, 8)] * 10 + [("container", 0, 8)] * 3)
    assert order[:2] == ["preheat"] * 2  # already in flight
    assert order[2:5] == ["container"] * 3


def test_bytes_are_bounded_and_one_large_chunk_is_still_let_in() -> None:
    async def main() -> None:
        window = Window(slots=9, bytes_max=10)
        await window.acquire(64, 0, "a")
        late = asyncio.ensure_future(window.acquire(1, 0, "a"))
        await asyncio.sleep(1)
        assert not late.done() and window.used_bytes == 64
        window.release(64)
        await late

    run(main())


def test_a_cancelled_wait_gives_its_turn_to_the_next() -> None:
    async def main() -> None:
        window = Window(slots=1, bytes_max=10)
        await window.acquire(5, 0, "a")
        first, second = (asyncio.ensure_future(window.acquire(5, 0, "a")) for _ in range(2))
        await asyncio.sleep(1)
        window.release(5)
        first.cancel()  # granted and cancelled in the same moment
        await asyncio.gather(first, return_exceptions=True)
        await second
        assert window.used_slots == 1

    run(main())

"""An origin gets more requests while that helps, half as many when it says no, and none while it asked for a pause."""

from __future__ import annotations

import asyncio
import random

import pytest

from bdn.errors import SourceDown, SourceSilent
from bdn.origins.pressure import LEAST, MOST, RENEW_EVERY, START, Gate, Pressure

CHUNK = 8 << 20


def link(pressure: Pressure, bytes_per_s: float, each_max: float, rounds: int) -> None:
    """A link that `limit` equal streams share, each at most `each_max`."""
    for _ in range(rounds):
        width = int(pressure.limit)
        rate = min(each_max, bytes_per_s / width)
        pressure.done(CHUNK, CHUNK / rate, in_flight=width)


@pytest.mark.parametrize("streams", [2, 6, 12, 24])
def test_the_limit_settles_near_what_fills_the_link(streams: int) -> None:
    pressure = Pressure()
    link(pressure, bytes_per_s=streams * 100e6, each_max=100e6, rounds=2950)
    assert streams * 0.9 <= pressure.limit <= streams / 0.7 + 2


def test_a_limit_that_nobody_uses_does_not_grow() -> None:
    pressure = Pressure()
    for _ in range(RENEW_EVERY - 1):
        pressure.done(CHUNK, 0.1, in_flight=1)
    assert pressure.limit == START


def test_a_burst_of_refusals_halves_once_and_the_pause_is_kept() -> None:
    pressure = Pressure(start=16)
    for _ in range(10):
        pressure.refused(5.0, retry_after_s=3)
    assert pressure.limit == 8 and pressure.paused_until == 8.0
    pressure.refused(6.5, retry_after_s=None)
    assert pressure.limit == 4
    pressure.stalled(9.0)
    assert pressure.limit == pytest.approx(2.8)


def test_whatever_happens_the_limit_stays_in_bounds() -> None:
    pressure, rng, now = Pressure(), random.Random(4), 0.0
    for _ in range(20_000):
        now += rng.random()
        match rng.randrange(4):
            case 0:
                pressure.refused(now, rng.choice([None, 1.0]))
            case 1:
                pressure.stalled(now)
            case _:
                pressure.done(rng.randrange(1 << 24), rng.random() * 10, in_flight=rng.randrange(64))
        assert LEAST <= pressure.limit <= MOST


def test_the_gate_never_lets_more_in_than_allowed_and_everyone_in_the_end() -> None:
    async def work() -> None:
        gate, inside, most = Gate(Pressure(start=3, most=3)), 0, 0
        rng = random.Random(8)

        async def one(number: int) -> None:
            nonlocal inside, most
            async with gate.entered(CHUNK):
                inside += 1
                most = max(most, inside)
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                inside -= 1
                if number % 7 == 0:
                    raise SourceSilent("x", 1.0)

        tasks = [asyncio.create_task(one(i)) for i in range(200)]
        for task in rng.sample(tasks, 40):
            asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= 3 and gate.in_flight == 0

    asyncio.run(work())


def test_a_refusal_reaches_the_caller_and_is_noted() -> None:
    async def work() -> None:
        gate = Gate(Pressure(start=8))
        with pytest.raises(SourceDown):
            async with gate.entered(CHUNK):
                raise SourceDown("origin", "status 503")
        assert gate.pressure.limit == 4

    asyncio.run(work())

"""Whoever finds the members, readers see numbered views, and a lost name server does not empty them."""

from __future__ import annotations

import asyncio

import pytest

from bdn.clock import LoopClock
from bdn.membership.dns import follow_dns
from bdn.membership.static import static_members
from bdn.membership.views import Views
from bdn.roster import Node
from bdn.sim.loop import run


def test_a_static_list_is_ready_at_once() -> None:
    async def main() -> None:
        members = static_members(["a=127.0.0.1:1", "b@z=127.0.0.1:2"])
        assert [n.name for n in members.roster.nodes] == ["a", "b"]

    run(main())


def test_epochs_grow_only_when_something_changed() -> None:
    async def main() -> None:
        views = Views([Node("a", "h", 1)])
        first = views.roster.epoch
        assert not views.replace([Node("a", "h", 1)])
        assert views.replace([Node("a", "h", 1, ready=False)])
        assert views.roster.epoch == first + 1

    run(main())


def test_a_slow_reader_sees_the_newest_view_and_never_an_old_one() -> None:
    async def main() -> None:
        views = Views()
        changes = views.changes()
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        views.replace([Node("a")])
        views.replace([Node("a"), Node("b")])
        assert len((await first).nodes) == 2

    run(main())


def test_dns_follows_the_name_and_keeps_the_last_view_when_it_fails_or_hangs() -> None:
    answers: list[list[str] | Exception | None] = [["10.0.0.1"], OSError("SERVFAIL"), None, ["10.0.0.1", "fd00::1"]]

    async def lookup(host: str, port: int) -> list[str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            await asyncio.sleep(1000)
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    async def main() -> None:
        views = Views()
        task = asyncio.ensure_future(follow_dns(views, "agents", 7, LoopClock(), lookup=lookup))
        await asyncio.sleep(1)
        assert [n.name for n in views.roster.nodes] == ["10.0.0.1:7"]
        await asyncio.sleep(10)
        assert [n.name for n in views.roster.nodes] == ["10.0.0.1:7"]
        await asyncio.sleep(10)
        assert [n.name for n in views.roster.nodes] == ["10.0.0.1:7", "[fd00::1]:7"]
        task.cancel()

    run(main())


def test_who_follows_dns_stops_even_when_an_answer_comes_at_that_moment() -> None:
    """An agent that stops waits for it: a stop that got lost would have kept the agent for ever."""

    async def main() -> None:
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        async def lookup(host: str, port: int) -> list[str]:
            return await answer

        for turns in range(4):
            answer = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(follow_dns(Views(), "agents", 7, LoopClock(), lookup=lookup))
            await asyncio.sleep(0.1)
            answer.set_result(["10.0.0.1"])
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=60)
            assert task.cancelled(), turns

    run(main())


@pytest.mark.parametrize(
    ("settings", "settle_s"),
    [({}, 0.0), ({"peers_dns": "a:1"}, 35.0), ({"peers_dns": "a:1", "strict_origin": True}, 0.0),
     ({"peers_dns": "a:1", "settle_s": 2.0}, 2.0), ({"settle_s": 3.0}, 3.0)],
)  # fmt: skip
def test_how_long_a_view_settles_follows_from_how_late_its_news_may_be(
    settings: dict[str, object], settle_s: float
) -> None:
    from bdn.agent import _limits
    from bdn.config import AgentSettings

    assert _limits(AgentSettings(**settings)).settle_s == settle_s  # type: ignore[arg-type]

"""A wrong chunk costs one more fetch, at once; its sender is told, looks, and brings again what went bad."""

from __future__ import annotations

import asyncio

import pytest

from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.messages import encode_blame
from bdn.policy import Limits
from bdn.resolver import Resolver
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, MemoryPeers, model
from bdn.standing import BAD_CHUNKS_MAX

MODEL, OBJECTS = model(80)
NAMES = [f"node-{i:02}" for i in range(10)]
M = MODEL.digest


def cluster(limits: Limits = Limits()) -> Cluster:  # noqa: B008
    return Cluster(NAMES, CountingOrigin(dict(OBJECTS)), limits)


def damage(c: Cluster, name: str, *numbers: int) -> None:
    for i in numbers:
        digest = MODEL.chunks[i].digest
        c.stores[name].bytes[digest] = bytes(len(OBJECTS[digest]))


async def warm(c: Cluster, name: str) -> None:
    """The model complete on one node, and nothing of it counted as read."""
    await c.pull(name, MODEL)
    c.origin.reads.clear()


@pytest.mark.parametrize("coordinate", [True, False])
@pytest.mark.parametrize("bad", [(5,), (5, 40)])
def test_a_bad_chunk_costs_one_more_read_at_once_and_the_rest_still_comes_from_its_holder(
    bad: tuple[int, ...], coordinate: bool
) -> None:
    async def main() -> None:
        for name in NAMES[:3]:
            c = Cluster(NAMES[:3], CountingOrigin(dict(OBJECTS)), coordinate=coordinate)
            await warm(c, name)
            damage(c, name, *bad)
            other = next(n for n in NAMES if n != name)
            started = c.clock.now()
            await c.pull(other, MODEL)
            assert c.clock.now() - started < 2.0, "neither a ban nor a pause is waited out"
            assert c.origin.reads == {MODEL.chunks[i].digest: 1 for i in bad}
            assert c.resolvers[other].standing.blamed == {name: len(bad)}

    run(main())


def test_one_whose_every_chunk_is_bad_is_left_after_a_few_and_nobody_waits_for_it() -> None:
    async def main() -> None:
        c = cluster(Limits(in_flight_chunks=2, origin_concurrency=1))
        await warm(c, NAMES[3])
        damage(c, NAMES[3], *range(80))
        started = c.clock.now()
        await asyncio.gather(c.pull(NAMES[4], MODEL), c.pull(NAMES[5], MODEL))
        assert c.clock.now() - started < 10.0
        assert set(c.origin.reads.values()) == {1} and len(c.origin.reads) == 80
        for name in NAMES[4:6]:
            assert c.resolvers[name].standing.blamed[NAMES[3]] < BAD_CHUNKS_MAX + 3

    run(main())


def test_who_sent_a_bad_chunk_is_told_forgets_it_and_says_no_more_that_it_has_it() -> None:
    async def main() -> None:
        c = cluster()
        heard: list[Digest] = []
        c.resolvers[NAMES[0]] = Resolver(
            NAMES[0], c.stores[NAMES[0]], MemoryPeers(NAMES[0], c), c.origin, c.views[NAMES[0]], c.clock,
            damaged=heard.append,
        )  # fmt: skip
        await warm(c, NAMES[0])
        damage(c, NAMES[0], 5)
        await c.pull(NAMES[1], MODEL)
        await asyncio.sleep(0.1)
        assert heard == [M] and c.stores[NAMES[0]].published(M) is None
        assert 5 not in c.resolvers[NAMES[0]].part(M).have and 6 in c.resolvers[NAMES[0]].part(M).have
        await c.pull(NAMES[0], MODEL)  # What an agent does when it hears so.
        assert c.stores[NAMES[0]].published(M) and c.origin.reads == {MODEL.chunks[5].digest: 1}

    run(main())


def test_a_false_accusation_costs_one_read_of_one_chunk_a_second_and_each_chunk_one_a_minute() -> None:
    async def main() -> None:
        c = cluster()
        await warm(c, NAMES[0])
        store = c.stores[NAMES[0]]
        accused = c.resolvers[NAMES[0]]
        for half_s in range(20):
            for chunk in MODEL.chunks[:4]:
                await accused.told("blame", encode_blame(chunk.digest))
            assert sum(store.rechecked.values()) <= 1 + half_s // 2
            await asyncio.sleep(0.5)
        assert store.rechecked == {chunk.digest: 1 for chunk in MODEL.chunks[:4]} and store.published(M)
        with pytest.raises(Invalid):
            await accused.told("blame", b'{"chunk": 7}')
        await accused.told("blame", encode_blame(Digest.of(b"not here")))

    run(main())

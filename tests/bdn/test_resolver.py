"""One chunk: who is asked, who is waited for, and that the origin sends it once whatever goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from bdn.errors import BdnError, ChunkCorrupt, ChunkMissing, Invalid, SourceDown
from bdn.hedge import Inflow
from bdn.holders import Bits, Report
from bdn.manifest import Chunk
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Tier
from bdn.roster import Node, Roster
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, model
from bdn.sources import asked_for

ONE, BYTES = model(1)
CHUNK = ONE.chunks[0]


def cluster(names: str = "abcd", limits: Limits = Limits()) -> Cluster:  # noqa: B008
    """Without a coordinator: these tests hold the rule that must work when none can be reached."""
    return Cluster(list(names), CountingOrigin(dict(BYTES)), limits, coordinate=False)


async def all_join(c: Cluster) -> list[str]:
    for name in c.resolvers:
        await c.join(name, ONE)
    return c.ranked(CHUNK.digest)


async def obtain(c: Cluster, name: str) -> tuple[Tier, str]:
    outcome = await c.resolvers[name].obtain(ONE.digest, CHUNK)
    assert c.stores[name].bytes[CHUNK.digest] == BYTES[CHUNK.digest]
    assert not c.stores[name].open_sinks
    return outcome.tier, outcome.source


def test_the_owner_reads_the_origin_once_and_everyone_else_asks_the_owner() -> None:
    async def main() -> None:
        c = cluster()
        owner, *rest = await all_join(c)
        results = await asyncio.gather(*(obtain(c, n) for n in reversed([owner, *rest])))
        assert results[-1] == (Tier.ORIGIN, "origin")
        assert all(tier is Tier.PEER for tier, _ in results[:-1])
        assert c.origin.reads[CHUNK.digest] == 1
        assert c.resolvers[owner].ledger.origin_reasons == {"owner": 1}

    run(main())


def test_a_store_hears_which_chunks_others_will_come_for() -> None:
    async def main() -> None:
        c = cluster()
        owner, *rest = await all_join(c)
        await asyncio.gather(*(obtain(c, n) for n in (owner, *rest)))
        assert {n: c.stores[n].hot for n in c.stores} == {n: {CHUNK.digest} if n == owner else set() for n in c.stores}
        alone = cluster("a")
        await all_join(alone)
        await obtain(alone, "a")
        assert not alone.stores["a"].hot, "there is nobody to ask"

    run(main())


def test_an_owner_in_its_zone_is_asked_there() -> None:
    roster = Roster((Node("a", zone="x"), Node("b", zone="x"), Node("c", zone="y"), Node("d", zone="y")))
    asked = [n.name for n in roster.nodes if asked_for(CHUNK, n.name, roster)]
    firsts = {z: next(n.name for n in roster.ranked(CHUNK.digest) if n.zone == z) for z in "xy"}
    assert asked == sorted(firsts.values())


def test_many_callers_on_one_node_share_one_fetch_and_cancelling_one_leaves_the_others() -> None:
    async def main() -> None:
        c = cluster()
        owner, *_ = await all_join(c)
        c.origin.gate = asyncio.Event()
        callers = [asyncio.ensure_future(obtain(c, owner)) for _ in range(5)]
        await c.clock.sleep(1)
        callers[0].cancel()
        c.origin.gate.set()
        assert await asyncio.gather(*callers[1:]) == [(Tier.ORIGIN, "origin")] * 4
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


def test_when_the_last_caller_goes_the_fetch_stops_but_a_read_of_the_origin_goes_to_its_end() -> None:
    """Others may have been sent to the node that reads: stopping would have the chunk read twice."""

    async def main() -> None:
        c = cluster()
        owner, asker, *_ = await all_join(c)
        c.origin.gate = asyncio.Event()
        caller = asyncio.ensure_future(obtain(c, asker))
        await c.clock.sleep(1)
        assert c.stores[owner].open_sinks == c.stores[asker].open_sinks == c.origin.active == 1
        caller.cancel()
        await c.clock.sleep(1)
        assert not c.stores[asker].open_sinks and c.origin.active == 1
        c.origin.gate.set()
        await c.clock.sleep(1)
        assert not c.stores[owner].open_sinks and not c.origin.active
        assert await obtain(c, asker) == (Tier.PEER, owner) and c.origin.reads[CHUNK.digest] == 1

    run(main())


def test_slow_owner_is_awaited_and_origin_is_read_once() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, _ = await all_join(c)
        c.origin.gate = asyncio.Event()
        waits = [asyncio.ensure_future(obtain(c, n)) for n in (owner, second, third)]
        await c.clock.sleep(10 * c.limits.stall_s)
        assert not any(w.done() for w in waits)
        c.origin.gate.set()
        await asyncio.gather(*waits)
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


@pytest.mark.parametrize("fault", ["down", "silent"])
def test_an_owner_that_refuses_or_falls_silent_is_replaced_by_the_next_in_rank(fault: str) -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, last = await all_join(c)
        getattr(c, fault).add(owner)
        results = await asyncio.gather(*(obtain(c, n) for n in (last, third, second)))
        assert results == [(Tier.PEER, second), (Tier.PEER, second), (Tier.ORIGIN, "origin")]
        assert c.origin.reads[CHUNK.digest] == 1
        assert c.resolvers[second].ledger.origin_reasons == {"every node before this one failed": 1}

    run(main())


def test_an_owner_that_joined_late_asks_the_next_ranks_before_the_origin() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, *_ = await all_join(c)
        c.stores[second].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        assert await obtain(c, owner) == (Tier.PEER, second)
        assert not c.origin.reads

    run(main())


def test_an_owner_waits_for_a_lower_rank_that_is_reading_the_origin_already() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, *_ = c.ranked(CHUNK.digest)
        await c.join(second, ONE)
        c.origin.gate = asyncio.Event()
        early = asyncio.ensure_future(obtain(c, second))
        await c.clock.sleep(1)
        await c.join(owner, ONE)
        late = asyncio.ensure_future(obtain(c, owner))
        await c.clock.sleep(1)
        c.origin.gate.set()
        assert await asyncio.gather(early, late) == [(Tier.ORIGIN, "origin"), (Tier.PEER, second)]

    run(main())


def test_a_misdirected_request_is_forwarded_and_never_answered_by_an_origin_read() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, _ = await all_join(c)
        c.views[third].roster = Roster((Node(second), Node(third)))
        assert await obtain(c, third) == (Tier.PEER, second)
        assert c.resolvers[second].ledger.bytes_by_source[owner] == CHUNK.size
        assert c.resolvers[owner].ledger.origin_reasons == {"owner": 1}
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


def test_forwarding_ends_after_a_bounded_number_of_hops() -> None:
    async def main() -> None:
        c = cluster()
        _, second, third, _ = await all_join(c)
        with pytest.raises(ChunkMissing):
            await c.resolvers[second].answer(CHUNK.digest, Ask(ONE.digest, third, hops=3))
        assert not c.origin.reads

    run(main())


def test_nodes_that_each_take_the_other_for_the_owner_do_not_wait_for_ever() -> None:
    async def main() -> None:
        c = cluster("abcdefgh")
        ranked = await all_join(c)
        for i, name in enumerate(ranked):  # Everyone sees itself and one other, in a circle.
            other = ranked[(i + 1) % len(ranked)]
            c.views[name].roster = Roster((Node(name), Node(other)))
        await asyncio.gather(*(obtain(c, n) for n in ranked))

    run(main())


def test_busy_is_answered_with_other_holders_and_never_by_the_origin() -> None:
    async def main() -> None:
        c = cluster("abcdefgh", Limits(uploads=1, upload_queue=0))
        owner, *rest = await all_join(c)
        await obtain(c, owner)
        c.slow = dict.fromkeys("abcdefgh", 5.0)
        results = await asyncio.gather(*(obtain(c, n) for n in rest))
        assert c.origin.reads[CHUNK.digest] == 1
        assert len({source for _, source in results}) > 2, "the chunk spreads from node to node"

    run(main())


def test_a_wrong_byte_is_never_kept_and_its_sender_is_blamed_and_costs_one_more_fetch() -> None:
    async def main() -> None:
        c = cluster()
        owner, _, third, _ = await all_join(c)
        await obtain(c, owner)
        c.corrupt.add(owner)
        assert await obtain(c, third) != (Tier.PEER, owner)
        ledger = c.resolvers[third].ledger
        assert ledger.corrupt_by_source[owner] == 1
        assert ledger.wasted_by_tier[Tier.PEER] == CHUNK.size
        assert c.resolvers[third].standing.blamed[owner] == 1
        before = c.asked[(third, owner)]
        del c.stores[third].bytes[CHUNK.digest]
        await obtain(c, third)
        assert c.asked[(third, owner)] == before, "avoided for a while"

    run(main())


def test_a_corrupt_origin_object_is_read_twice_and_then_reported() -> None:
    async def main() -> None:
        c = cluster()
        owner, *_ = await all_join(c)
        c.origin.corrupt.add(CHUNK.digest)
        with pytest.raises(ChunkCorrupt, match="origin"):
            await obtain(c, owner)
        assert c.origin.reads[CHUNK.digest] == 2
        assert not c.stores[owner].has(CHUNK.digest)

    run(main())


def test_a_throttling_origin_is_retried_after_the_time_it_asks_for() -> None:
    async def main() -> None:
        c = cluster()
        owner, *_ = await all_join(c)
        c.origin.failures = [SourceDown("origin", "503 Slow Down", retry_after_s=7.0)]
        started = c.clock.now()
        assert await obtain(c, owner) == (Tier.ORIGIN, "origin")
        assert c.clock.now() - started >= 7.0

    run(main())


def test_an_origin_that_stays_down_ends_the_pull_with_its_own_error() -> None:
    async def main() -> None:
        c = cluster(limits=Limits(origin_patience_s=5.0))
        owner, *_ = await all_join(c)
        c.origin.failures = [SourceDown("origin", "connection refused")] * 1000
        with pytest.raises(SourceDown, match="connection refused"):
            await obtain(c, owner)
        assert c.origin.reads[CHUNK.digest] < 20, "it backs off"

    run(main())


@pytest.mark.parametrize("asker", range(1, 4))
def test_holders_that_come_back_while_the_origin_is_down_are_asked_again(asker: int) -> None:
    """They stood still for some seconds. A fetch never came back to them, and the pull failed with them all there."""

    async def main() -> None:
        c = cluster(limits=Limits(origin_patience_s=30.0))
        names = await all_join(c)
        await obtain(c, names[0])
        for holder in names:
            if holder not in (names[0], names[asker]):
                await obtain(c, holder)
        c.origin.failures = [SourceDown("origin", "connection refused")] * 1000
        c.down.update(n for n in names if n != names[asker])
        asking = asyncio.ensure_future(obtain(c, names[asker]))
        await c.clock.sleep(4.0)
        assert not asking.done()
        c.down.clear()
        tier, _ = await asking
        assert tier is Tier.PEER
        assert c.clock.now() < 25.0

    run(main())


def test_a_person_must_act_on_an_invalid_request_so_nothing_is_retried() -> None:
    async def main() -> None:
        c = cluster()
        owner, *_ = await all_join(c)
        c.origin.failures = [Invalid("access denied")]  # type: ignore[list-item]
        with pytest.raises(Invalid):
            await obtain(c, owner)
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


def test_forbidding_the_origin_fails_rather_than_falls_back() -> None:
    async def main() -> None:
        c = cluster()
        for n in c.resolvers:
            await c.stores[n].admit(ONE)
            c.resolvers[n].join(ONE, OriginUse.FORBID)
        owner, second, third, last = c.ranked(CHUNK.digest)
        with pytest.raises(BdnError, match="forbids the origin"):
            await obtain(c, owner)
        assert not c.origin.reads
        c.stores[second].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        assert await obtain(c, owner) == (Tier.PEER, second)
        c.down.update((owner, second, third))
        with pytest.raises(BdnError) as why:
            await obtain(c, last)
        assert "unreachable" in str(why.value) and "--origin-use" in str(why.value), "and what to do about it"

    run(main())


def test_requiring_the_origin_asks_no_peer() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, *_ = await all_join(c)
        await obtain(c, owner)
        c.resolvers[second].join(ONE, OriginUse.REQUIRE)
        assert await obtain(c, second) == (Tier.ORIGIN, "origin")
        assert c.resolvers[second].ledger.origin_reasons == {"policy: origin required": 1}
        assert not c.asked

    run(main())


def test_a_terminating_member_still_serves_but_owns_nothing() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, *_ = await all_join(c)
        c.stores[owner].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        leaving = Roster(tuple(Node(n.name, ready=n.name != owner) for n in c.roster.nodes), epoch=1)
        for view in c.views.values():
            view.roster = leaving
        assert await obtain(c, second) == (Tier.PEER, owner)
        assert not c.origin.reads

    run(main())


def test_a_chunk_crosses_between_zones_once() -> None:
    async def main() -> None:
        c = cluster("abcdefgh")
        zoned = Roster(tuple(Node(n, zone="east" if n in "abcd" else "west") for n in "abcdefgh"))
        for view in c.views.values():
            view.roster = zoned
        await all_join(c)
        results = dict(zip("abcdefgh", await asyncio.gather(*(obtain(c, n) for n in "abcdefgh")), strict=True))
        crossed = [n for n, (tier, src) in results.items() if tier is Tier.PEER and (n in "abcd") != (src in "abcd")]
        assert len(crossed) == 1
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


def test_a_node_that_does_not_take_part_says_so_at_once() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, *_ = c.ranked(CHUNK.digest)
        await c.join(second, ONE)
        with pytest.raises(ChunkMissing):
            await c.resolvers[owner].answer(CHUNK.digest, Ask(ONE.digest, second))
        assert await obtain(c, second) == (Tier.ORIGIN, "origin")

    run(main())


def test_a_chunk_of_another_model_on_this_disk_is_adopted_and_not_fetched() -> None:
    async def main() -> None:
        c = cluster()
        owner, *_ = await all_join(c)
        c.stores[owner].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        assert await obtain(c, owner) == (Tier.NVME, owner)
        assert CHUNK.digest in c.stores[owner].verified(ONE.digest)

    run(main())


def test_origin_reads_of_one_node_stay_within_their_own_limit() -> None:
    async def main() -> None:
        many, objects = model(40)
        c = Cluster(["a"], CountingOrigin(objects), Limits(origin_concurrency=3))
        await c.join("a", many)
        await asyncio.gather(*(c.resolvers["a"].obtain(many.digest, Chunk(x.digest, x.size)) for x in many.chunks))
        assert c.origin.active_max == 3

    run(main())


@pytest.mark.parametrize("another", [True, False])
def test_a_slow_peer_is_left_for_another_that_has_the_chunk_and_never_for_the_origin(another: bool) -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, _ = await all_join(c)
        await obtain(c, owner)
        c.slow[owner] = 60.0
        if another:
            await obtain_from(c, owner, second)
            told(c, third, second, has=True)
        started = c.clock.now()
        assert await obtain(c, third) == (Tier.PEER, second if another else owner)
        assert (c.clock.now() - started < 5.0) is another
        assert c.origin.reads[CHUNK.digest] == 1

    run(main())


@pytest.mark.parametrize("news_first", [True, False])
def test_a_holder_that_did_not_have_the_chunk_at_first_is_asked_at_once_when_the_one_asked_is_slow(
    news_first: bool,
) -> None:
    """The owner is often asked a moment before it takes part in the model, and is the first to have the chunk. An asker
    that hears of it while it waits for the next in rank left that one for it, did not ask it, and slept for 5 s."""

    async def main() -> None:
        c = cluster()
        owner, second, third, _ = c.ranked(CHUNK.digest)
        await c.join(second, ONE)
        await c.join(third, ONE)
        c.stores[second].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        c.slow[second] = 3.0
        asking = asyncio.ensure_future(obtain(c, third))
        await c.clock.sleep(0.1)
        await c.join(owner, ONE)
        await obtain_from(c, second, owner)
        await c.clock.sleep(0.0 if news_first else 1.5)
        assert c.asked[(third, owner)] == c.asked[(third, second)] == 1
        told(c, third, owner, has=True)
        assert await asking == (Tier.PEER, owner)
        assert c.clock.now() < (1.5 if news_first else 2.0)
        assert not c.origin.reads

    run(main())


def test_whoever_is_left_for_being_slow_is_asked_again_at_once_when_nobody_else_is_left() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, _ = await all_join(c)
        await obtain(c, owner)
        c.slow[owner] = 1.6
        told(c, third, second, has=True)
        c.down.add(second)
        assert await obtain(c, third) == (Tier.PEER, owner)
        assert c.clock.now() < 1.0 + 0.5 + 1.7, "late after 1 s, then once more from its first byte"
        assert c.asked[(third, second)] == 1 and c.asked[(third, owner)] == 2

    run(main())


def test_a_fetch_that_waits_for_a_busy_node_hears_of_another_that_has_the_chunk() -> None:
    async def main() -> None:
        c = cluster(limits=Limits(flights=0))  # An owner that must fetch it first says: come back in a second.
        owner, second, third, _ = await all_join(c)
        asking = asyncio.ensure_future(obtain(c, third))
        await c.clock.sleep(0.1)
        assert c.asked[(third, owner)] == 1 and not asking.done()
        c.stores[second].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        told(c, third, second, has=True)
        told(c, third, owner, has=False)
        assert await asking == (Tier.PEER, second)
        assert c.clock.now() < 0.6 and c.asked[(third, owner)] == 1

    run(main())


def told(c: Cluster, name: str, of: str, *, has: bool) -> None:
    """The node hears of another whether it has the chunk."""
    report = Report(Bits(1), Bits(1))
    if has:
        report.have.add(0)
    c.resolvers[name].part(ONE.digest).holders.learn(of, report)


async def obtain_from(c: Cluster, source: str, name: str) -> None:
    """The chunk is on that node as well, as if it had come quickly."""
    c.stores[name].bytes[CHUNK.digest] = c.stores[source].bytes[CHUNK.digest]


@pytest.mark.parametrize(
    ("usual_s", "waited_s", "received", "late"),
    [(0.0, 0.9, 0, False), (0.0, 1.1, 0, True), (1.0, 3.9, 0, False), (1.0, 4.1, 0, True), (1.0, 4.1, 90, False),
     (1.0, 4.1, 10, True)],
)  # fmt: skip
def test_late_is_several_times_the_usual_with_much_of_it_still_to_come(
    usual_s: float, waited_s: float, received: int, late: bool
) -> None:
    inflow = Inflow()
    if usual_s:
        inflow.took(usual_s, 100)
    assert inflow.late(waited_s, received, 100, coming=1) is late


@pytest.mark.parametrize(("received", "late"), [(400, False), (100, True)])
def test_nobody_is_late_where_all_come_slowly_but_one_is_who_sends_less_than_its_share(
    received: int, late: bool
) -> None:
    inflow = Inflow()
    inflow.look(0.0, 0)
    inflow.look(1.0, 8 * 400)
    assert inflow.late(1.0, received, 1000, coming=8) is late, "an eighth of what comes is done after 2.5 s"


def test_what_is_known_of_a_node_that_left_is_forgotten_with_the_next_view() -> None:
    async def main() -> None:
        c = cluster()
        owner, second, third, last = await all_join(c)
        c.corrupt.add(owner)
        c.stores[owner].bytes[CHUNK.digest] = BYTES[CHUNK.digest]
        await obtain(c, last)
        standing = c.resolvers[last].standing
        assert standing.distrusted(CHUNK.digest, c.clock.now()) == [owner]
        c.views[last].roster = Roster(tuple(Node(n) for n in (second, third, last)), epoch=9)
        del c.stores[last].bytes[CHUNK.digest]
        await obtain(c, last)
        assert not standing.distrusted(CHUNK.digest, c.clock.now()) and not standing.blamed
        assert c.resolvers[last].ledger.corrupt_by_source[owner] == 1, "the account keeps the name"

    run(main())

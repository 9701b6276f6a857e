"""One coordinator per model: exact while it can be reached, exact again after it died, and never in the way."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdn.assignments import Table, judge
from bdn.errors import Invalid
from bdn.holders import Bits, Holders, Report
from bdn.messages import Claim, Verdict, encode_claim, encode_verdict, parse_claim, parse_collect, parse_verdict
from bdn.policy import Limits
from bdn.ports import Tier
from bdn.roster import Node, Roster
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, model

MODEL, OBJECTS = model(80)
NAMES = [f"node-{i:02}" for i in range(10)]
M = MODEL.digest


def cluster(limits: Limits = Limits()) -> Cluster:  # noqa: B008
    return Cluster(NAMES, CountingOrigin(dict(OBJECTS)), limits)


def claim(sender: str, *want: int, have: tuple[int, ...] = (), failed: tuple[str, ...] = ()) -> Claim:
    bits, had = Bits(8), Bits(8)
    for i in want:
        bits.add(i)
    for i in have:
        had.add(i)
    return Claim(M, 8, sender, Report(had, Bits(8)), bits, failed)


def test_a_chunk_is_given_to_the_first_who_claims_it_and_the_next_is_sent_there() -> None:
    table = Table(8, Holders(8))
    assert list(judge(table, claim("a", 1, 2), lambda _: True).read) == [1, 2]
    verdict = judge(table, claim("b", 2, 3), lambda _: True)
    assert list(verdict.read) == [3] and verdict.ask == {2: ("a",)}
    assert list(judge(table, claim("a", 2), lambda _: True).read) == [2], "a restart may claim its own again"


def test_holders_are_named_before_anyone_reads_and_who_failed_the_asker_is_not() -> None:
    table = Table(8, Holders(8))
    table.learn("h", Report(claim("h", have=(1,)).report.have, Bits(8)), [])
    assert judge(table, claim("a", 1), lambda _: True).ask == {1: ("h",)}
    assert list(judge(table, claim("a", 1, failed=("h",)), lambda _: True).read) == [1]


def test_the_chunks_of_a_node_that_is_gone_are_given_out_again() -> None:
    table = Table(8, Holders(8))
    judge(table, claim("a", 1), lambda _: True)
    assert list(judge(table, claim("b", 1), lambda n: n != "a").read) == [1]


def test_a_node_that_forgot_its_assignment_frees_it_but_not_one_it_has_not_heard_of_yet() -> None:
    table = Table(8, Holders(8))
    judge(table, claim("a", 1), lambda _: True)
    before = table.of("a")
    judge(table, claim("a", 2), lambda _: True)
    table.learn("a", Report(Bits(8), Bits(8)), before)
    assert table.of("a") == [2]


@given(st.sets(st.integers(0, 99)), st.integers(100, 200))
def test_a_bitmap_survives_its_text(numbers: set[int], size: int) -> None:
    bits = Bits(size)
    for i in numbers:
        bits.add(i)
    assert set(Bits.parse(size, bits.hex)) == numbers


def test_messages_survive_their_text_and_broken_ones_are_refused() -> None:
    said = claim("a", 1, 2, have=(3,), failed=("x",))
    back = parse_claim(encode_claim(said))
    assert encode_claim(back) == encode_claim(said)
    verdict = Verdict(said.want, {3: ("b",)}, {"b": said.report}, {"b": Node("b", "h", 7, "z")})
    assert encode_verdict(parse_verdict(encode_verdict(verdict), 8)) == encode_verdict(verdict)
    for body in (b"", b"[]", b"{}", b'{"size":-1}', encode_claim(said).replace(b'"size":8', b'"size":9999999999')):
        with pytest.raises(Invalid):
            parse_claim(body)
        with pytest.raises(Invalid):
            parse_collect(body)
    with pytest.raises(Invalid):
        parse_verdict(b'{"read":"ffffffffffff"}', 8)


def test_a_burst_of_nodes_that_join_the_model_one_by_one_reads_every_chunk_once() -> None:
    async def main() -> None:
        c = cluster()

        async def late(i: int) -> None:
            await asyncio.sleep(0.002 * i)
            await c.pull(NAMES[i], MODEL)

        await asyncio.gather(*(late(i) for i in range(len(NAMES))))
        assert set(c.origin.reads.values()) == {1} and len(c.origin.reads) == 80

    run(main())


def test_fresh_owners_in_a_warm_cluster_are_sent_to_the_holders() -> None:
    async def main() -> None:
        c = cluster()
        for name in NAMES[:3]:
            await c.pull(name, MODEL)
        reads = sum(c.origin.reads.values())
        await asyncio.gather(*(c.pull(n, MODEL) for n in NAMES[3:]))
        assert sum(c.origin.reads.values()) == reads == 80

    run(main())


def test_when_the_coordinator_dies_its_successor_learns_what_was_read_and_nothing_is_read_twice() -> None:
    async def main() -> None:
        c = cluster(Limits(origin_concurrency=1, grants=4))
        first = c.ranked(M)[0]
        others = [n for n in NAMES if n != first]
        pulls = [asyncio.ensure_future(c.pull(n, MODEL)) for n in others]
        await asyncio.sleep(0.004)
        assert 0 < sum(c.origin.reads.values()) < 80
        c.down.add(first)
        await asyncio.gather(*pulls)
        assert set(c.origin.reads.values()) == {1}

    run(main())


def test_a_new_coordinator_takes_over_from_the_old_one_and_old_views_are_sent_on_to_it() -> None:
    async def main() -> None:
        c = cluster(Limits(origin_concurrency=1, grants=4))
        top, *rest = c.ranked(M)
        without = Roster(tuple(Node(n) for n in rest), epoch=1)
        for n in rest:
            c.views[n].roster = without
        early = [asyncio.ensure_future(c.pull(n, MODEL)) for n in rest[:5]]
        await asyncio.sleep(0.004)
        late = [asyncio.ensure_future(c.pull(n, MODEL)) for n in (top, *rest[5:])]  # only `top` sees itself
        await asyncio.gather(*early, *late)
        assert set(c.origin.reads.values()) == {1}

    run(main())


def test_a_node_without_any_coordinator_falls_back_on_the_rule() -> None:
    async def main() -> None:
        c = cluster()
        alone = c.ranked(M)[-1]
        c.silent.update(n for n in NAMES if n != alone)
        result = await c.pull(alone, MODEL)
        assert result.ledger.bytes_by_tier[Tier.ORIGIN] == MODEL.unique_bytes

    run(main())


def test_a_node_whose_view_has_not_settled_coordinates_nobody() -> None:
    async def main() -> None:
        c = cluster(Limits(settle_s=5.0))
        alone = c.resolvers[NAMES[0]]
        c.views[NAMES[0]].roster = Roster((Node(NAMES[0]),))
        started = c.clock.now()
        await c.pull(NAMES[0], MODEL)
        assert c.clock.now() - started >= 5.0
        assert alone.ledger.bytes_by_tier[Tier.ORIGIN] == MODEL.unique_bytes

    run(main())


def test_a_node_that_comes_back_with_a_model_says_so_and_nothing_it_has_is_read_again() -> None:
    async def main() -> None:
        c = cluster()
        back = c.ranked(M)[3]
        c.stores[back].bytes.update(OBJECTS)
        await c.stores[back].admit(MODEL)
        for chunk in MODEL.chunks:
            await c.stores[back].adopt(M, chunk)
        c.down.add(back)
        first, second = [n for n in NAMES if n != back][:2]
        early = asyncio.ensure_future(c.pull(first, MODEL))
        await asyncio.sleep(0.003)
        reads = sum(c.origin.reads.values())
        assert 0 < reads < 80
        c.down.remove(back)
        c.resolvers[back].join(MODEL)
        c.resolvers[back].introduce()
        c.resolvers[back].introduce()  # The coordinator has heard it: no second message.
        await asyncio.gather(early, c.pull(second, MODEL))
        assert sum(c.origin.reads.values()) <= reads + 16, "only what was granted before may still be read"

    run(main())

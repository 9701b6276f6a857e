"""One coordinator per model: exact while it can be reached, exact again after it died, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdn.assignments import Table, judge
from bdn.errors import Invalid, SourceDown
from bdn.holders import Bits, Holders, Report
from bdn.messages import (
    Claim,
    Collected,
    Verdict,
    encode_claim,
    encode_collect,
    encode_collected,
    encode_verdict,
    parse_claim,
    parse_collect,
    parse_collected,
    parse_verdict,
)
from bdn.policy import Limits, backoff_s
from bdn.ports import Tier
from bdn.roster import Node, Roster
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, MemoryClaims, model
from bdn.standing import DOWN_S_MAX, Standing

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
    return Claim(M, 8, Node(sender), Report(had, Bits(8)), bits, failed)


def test_a_chunk_is_given_to_the_first_who_claims_it_and_the_next_is_sent_there() -> None:
    table = Table(8, Holders(8))
    assert list(judge(table, claim("a", 1, 2), lambda _: True).read) == [1, 2]
    verdict = judge(table, claim("b", 2, 3), lambda _: True)
    assert list(verdict.read) == [3] and verdict.ask == {2: ("a",)}
    assert list(judge(table, claim("a", 2), lambda _: True).read) == [2], "a restart may claim its own again"


def test_holders_are_named_before_anyone_reads_and_who_failed_the_asker_is_not() -> None:
    table = Table(8, Holders(8))
    table.learn("h", Report(claim("h", have=(1,)).report.have, Bits(8)))
    assert judge(table, claim("a", 1), lambda _: True).ask == {1: ("h",)}
    assert list(judge(table, claim("a", 1, failed=("h",)), lambda _: True).read) == [1]


def test_the_chunks_of_a_node_that_is_gone_are_given_out_again() -> None:
    table = Table(8, Holders(8))
    judge(table, claim("a", 1), lambda _: True)
    assert list(judge(table, claim("b", 1), lambda n: n != "a").read) == [1]


def test_a_node_that_forgot_its_assignment_frees_it_but_not_while_word_of_it_may_be_on_its_way() -> None:
    table = Table(8, Holders(8))
    judge(table, claim("a", 1), lambda _: True)
    table.granted["a"] = 7
    table.learn("a", Report(Bits(8), Bits(8), heard=6))
    assert table.of("a") == [1]
    table.learn("a", Report(Bits(8), Bits(8), heard=7))
    assert table.of("a") == []


@given(st.sets(st.integers(0, 99)), st.integers(100, 200))
def test_a_bitmap_survives_its_text(numbers: set[int], size: int) -> None:
    bits = Bits(size)
    for i in numbers:
        bits.add(i)
    back = Bits.parse(size, bits.hex)
    assert list(back) == sorted(numbers) == [i for i in range(-1, size + 9) if i in back]


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_a_bitmap_names_no_chunk_that_the_model_has_not(size: int) -> None:
    every = Bits.parse(size, "ff" * ((size + 7) // 8))
    assert list(every) == list(range(size)) and not Bits(size) and every


def test_messages_survive_their_text_and_broken_ones_are_refused() -> None:
    said = claim("a", 1, 2, have=(3,), failed=("x",))
    back = parse_claim(encode_claim(said))
    assert encode_claim(back) == encode_claim(said)
    verdict = Verdict(said.want, {3: ("b",)}, {"b": said.report}, {"b": Node("b", "h", 7, "z")})
    assert encode_verdict(parse_verdict(encode_verdict(verdict), 8)) == encode_verdict(verdict)
    deep = b"[" * 100_000
    for body in (
        b"",
        b"[]",
        b"{}",
        deep,
        b'{"size":-1}',
        encode_claim(said).replace(b'"size":8', b'"size":9999999999'),
    ):
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


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("liar", [False, True])
def test_a_chunk_that_its_only_holder_lost_is_read_once_more_and_nobody_waits_for_ever(
    strict: bool, coordinate: bool, liar: bool
) -> None:
    """Its disk went bad, or somebody deleted it. liar: it never says so, and denies the chunk whenever it is asked."""

    async def main() -> None:
        origin = CountingOrigin(dict(OBJECTS))
        c = Cluster(NAMES, origin, coordinate=coordinate, claims=MemoryClaims() if strict else None)
        holder, store = c.resolvers[NAMES[0]], c.stores[NAMES[0]]
        await c.pull(NAMES[0], MODEL)
        for i in (5, 6, 40):
            del store.bytes[MODEL.chunks[i].digest]
        if liar:
            store.has = lambda digest: True  # type: ignore[method-assign]
            holder.missed = lambda digest: None  # type: ignore[method-assign]
        started = c.clock.now()
        await asyncio.gather(*(c.pull(n, MODEL) for n in NAMES[1:4]))
        assert c.clock.now() - started < 60.0
        if coordinate:
            assert {i for i, chunk in enumerate(MODEL.chunks) if origin.reads[chunk.digest] == 2} == {5, 6, 40}
            assert sum(origin.reads.values()) == 83

    run(main())


def test_a_node_that_has_been_down_for_months_is_left_alone_for_a_while_more() -> None:
    standing, last = Standing(), 2999 * DOWN_S_MAX
    for i in range(3000):
        standing.failed("gone", M, SourceDown("gone", "connection refused"), i * DOWN_S_MAX)
    assert standing.down("gone", last + DOWN_S_MAX - 0.1) and not standing.down("gone", last + DOWN_S_MAX)
    assert [backoff_s(0.5, 3.0, n) for n in (0, 1, 2, 3, 4, 100_000)] == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_all_who_wait_for_a_node_that_goes_silent_count_as_one_failure() -> None:
    """Sixteen chunks were asked of it: it was left alone for 30 s at once, and whoever was back sooner not asked."""
    standing = Standing()
    for i in range(16):
        standing.failed("slow", M, SourceDown("slow", "silent"), i / 100)
    assert standing.failing("slow") and standing.down("slow", 0.9) and not standing.down("slow", 1.2)


def damaged(chance: random.Random, value: Any) -> Any:
    """The same with one thing in it of another kind or size."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return {**value, key: damaged(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], damaged(chance, value[at]), *value[at + 1 :]]
    odd = [None, True, -1, 8, 1 << 64, 1.5, math.inf, math.nan, "", "a\r\nb", "\0", "f" * 999, [], {}, [[]]]
    return chance.choice([*odd, ["b", "a b", -1, ""], ["b", "h", 65536, "z"]])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_a_peer_says_is_understood_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    said = claim("a", 1, 2, have=(3,), failed=("x",))
    verdict = Verdict(said.want, {3: ("b",)}, {"b": said.report}, {"b": Node("b", "h", 7, "z")})
    cases = [
        (encode_claim(said), parse_claim), (encode_verdict(verdict), lambda b: parse_verdict(b, 8)),
        (encode_collect(M, 8, Node("a", "h", 7)), parse_collect),
        (encode_collected(Collected(said.report, {"b": said.want})), lambda b: parse_collected(b, 8)),
    ]  # fmt: skip
    for good, parse in cases:
        bad = json.dumps(damaged(chance, json.loads(good))).encode()
        with contextlib.suppress(Invalid):
            parse(bad)


def test_who_has_a_model_s_size_wrong_spoils_nobody_s_table() -> None:
    async def main() -> None:
        c = cluster()
        coordinator = c.resolvers[c.ranked(M)[0]]
        for size in (1, 8, 1000):
            want = Bits(size)
            want.add(0)
            await coordinator.told(
                "claim", encode_claim(Claim(M, size, Node("x"), Report(Bits(size), Bits(size)), want))
            )
        pulls = [asyncio.ensure_future(c.pull(n, MODEL)) for n in NAMES]
        await asyncio.sleep(0.003)
        for size in (1, 8, 1000):
            await coordinator.told("collect", encode_collect(M, size, Node("x")))
        await asyncio.gather(*pulls)
        assert set(c.origin.reads.values()) == {1}

    run(main())


def test_a_coordinator_that_grants_more_than_was_asked_for_makes_nobody_read_it() -> None:
    async def main() -> None:
        c = cluster()
        everything = Bits(80)
        for i in range(80):
            everything.add(i)

        async def told(topic: str, body: bytes) -> bytes:
            return encode_verdict(Verdict(everything))

        first = c.ranked(M)[0]
        c.resolvers[first].told = told  # type: ignore[method-assign]
        await asyncio.gather(*(c.pull(n, MODEL) for n in NAMES if n != first))
        assert sum(c.origin.reads.values()) <= 80 + 20

    run(main())


def test_what_was_granted_to_one_that_came_and_went_unheard_of_is_read_all_the_same() -> None:
    async def main() -> None:
        c = cluster()
        coordinator = c.resolvers[c.ranked(M)[0]]
        want = Bits(80)
        for i in range(16):
            want.add(i)
        for ghost in (Node("ghost"), Node("seen", "10.0.0.1", 7)):  # Where the first can be reached nobody knows.
            await coordinator.told("claim", encode_claim(Claim(M, 80, ghost, Report(Bits(80), Bits(80)), want)))
        started = c.clock.now()
        await c.pull_all(MODEL)
        assert set(c.origin.reads.values()) == {1}
        assert c.clock.now() - started < 30.0

    run(main())


@pytest.mark.parametrize("seed", range(8))
def test_a_verdict_that_takes_seconds_to_arrive_still_stands(seed: int) -> None:
    """A machine without an idle core answers late; what was granted meanwhile must not be granted to another."""

    async def main() -> None:
        c = cluster(Limits(origin_concurrency=2, grants=4))
        chance = random.Random(seed)
        c.late = lambda: chance.uniform(1.0, 6.0) if chance.random() < 0.5 else 0.0
        c.slow = {n: chance.choice([0.001, 0.3]) for n in NAMES}

        async def pull(name: str) -> None:
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            await c.pull(name, MODEL)

        await asyncio.gather(*map(pull, NAMES))
        assert set(c.origin.reads.values()) == {1}

    run(main())

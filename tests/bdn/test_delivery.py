"""One model: whole or absent, resumable, bounded, and its account adds up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bdn.delivery import Progress, order
from bdn.errors import ChunkMissing
from bdn.ledger import amplification
from bdn.policy import Limits, OriginUse
from bdn.ports import Tier
from bdn.roster import Node, Roster
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, model

MODEL, OBJECTS = model(60)
NAMES = [f"node-{i:02}" for i in range(8)]


def cluster(limits: Limits = Limits()) -> Cluster:  # noqa: B008
    return Cluster(NAMES, CountingOrigin(dict(OBJECTS)), limits)


def test_a_cold_cluster_reads_the_origin_once_and_a_warm_one_never() -> None:
    async def main() -> None:
        c = cluster()
        results = await c.pull_all(MODEL)
        read = sum(r.ledger.read_from(Tier.ORIGIN) for r in results)
        assert amplification(read, MODEL.unique_bytes) == 1.0
        assert all(sum(r.ledger.bytes_by_tier.values()) == MODEL.unique_bytes for r in results)
        again = await c.pull_all(MODEL)
        assert all(r.ledger.bytes_by_tier == {Tier.NVME: MODEL.unique_bytes} for r in again)

    run(main())


def test_two_pulls_at_once_of_models_that_share_chunks_count_each_chunk_once() -> None:
    """What one of them waited for came into the other's files, and from there into its own."""

    async def main() -> None:
        c = cluster()
        twin = replace(MODEL, provenance=(("source", "another"),))
        both = await asyncio.gather(c.pull("node-00", MODEL), c.pull("node-00", twin))
        assert all(sum(r.ledger.bytes_by_tier.values()) == MODEL.unique_bytes for r in both)
        assert sum(r.ledger.read_from(Tier.ORIGIN) for r in both) == sum(c.origin.reads.values()) * 64

    run(main())


def test_a_node_of_a_warm_cluster_that_lost_its_disk_is_served_by_the_others() -> None:
    async def main() -> None:
        c = cluster()
        for name in NAMES[:-1]:
            await c.pull(name, MODEL)
        reads = sum(c.origin.reads.values())
        fresh = await c.pull(NAMES[-1], MODEL)
        assert fresh.ledger.bytes_by_tier[Tier.PEER] == MODEL.unique_bytes
        assert sum(c.origin.reads.values()) == reads

    run(main())


def test_an_interrupted_pull_fetches_only_the_rest() -> None:
    async def main() -> None:
        c = Cluster(["a"], CountingOrigin(dict(OBJECTS)), Limits(origin_concurrency=1))
        first = asyncio.ensure_future(c.pull("a", MODEL))
        await c.clock.sleep(0.0255)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert c.stores["a"].published(MODEL.digest) is None
        there = len(c.stores["a"].verified(MODEL.digest))
        assert 0 < there < 60
        second = await c.pull("a", MODEL)
        assert second.ledger.bytes_by_tier[Tier.NVME] == there * 64
        assert second.ledger.bytes_by_tier[Tier.ORIGIN] == (60 - there) * 64
        assert not c.stores["a"].open_sinks

    run(main())


def test_a_pull_that_fails_publishes_nothing_and_stops_its_other_fetches() -> None:
    async def main() -> None:
        c = cluster()
        lost = MODEL.chunks[30].digest
        del c.origin.objects[lost]
        with pytest.raises(ChunkMissing):
            await c.pull(NAMES[0], MODEL)
        await c.clock.sleep(1)
        assert c.stores[NAMES[0]].published(MODEL.digest) is None
        assert not c.stores[NAMES[0]].open_sinks and not c.origin.active

    run(main())


def test_progress_counts_every_distinct_chunk_once() -> None:
    async def main() -> None:
        c = cluster()
        seen: list[Progress] = []
        delivery = c.delivery(NAMES[0], MODEL)
        delivery.progress = seen.append
        await delivery.run()
        assert [p.done_chunks for p in seen if p.done_chunks] == list(range(1, 61))
        assert seen[-1].done_bytes == seen[-1].total_bytes == MODEL.unique_bytes

    run(main())


def test_each_node_starts_its_round_at_its_own_place_and_asks_for_its_own_chunks_first() -> None:
    roster = Roster(tuple(Node(n) for n in NAMES))
    starts = set()
    for name in NAMES:
        own, rest = order(MODEL.chunks, name, roster)
        assert all(roster.owner(c.digest) == Node(name) for c in own)
        assert sorted((*own, *rest)) == sorted(MODEL.chunks)
        starts.add(rest[0])
    assert len(starts) == len(NAMES)


def test_what_is_in_flight_stays_within_chunks_and_bytes() -> None:
    async def main() -> None:
        c = cluster(Limits(in_flight_chunks=10, in_flight_bytes=4 * 64))
        for name in NAMES[:-1]:
            await c.pull(name, MODEL)
        delivery = c.delivery(NAMES[-1], MODEL)
        most = 0

        def watch(_: Progress) -> None:
            nonlocal most
            most = max(most, delivery.window.used_bytes)

        delivery.progress = watch
        await delivery.run()
        assert 0 < most <= 4 * 64

    run(main())


@pytest.mark.parametrize(
    ("use", "why"), [(OriginUse.PREFER, {"owner"}), (OriginUse.REQUIRE, {"policy: origin required"})]
)
def test_a_pull_s_own_account_says_why_it_read_the_origin(use: OriginUse, why: set[str]) -> None:
    async def main() -> None:
        c = Cluster(["a"], CountingOrigin(dict(OBJECTS)))
        reasons = (await c.pull("a", MODEL, use)).ledger.origin_reasons
        assert set(reasons) == why and sum(reasons.values()) == len(MODEL.chunks)

    run(main())

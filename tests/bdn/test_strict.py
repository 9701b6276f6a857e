"""Strict mode: one copy even where no two nodes see one another, and claims that only one of many takers gets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bdn.digest import Digest
from bdn.errors import Invalid, Usage
from bdn.origins.claims import DirectoryClaims, OpenClaims, S3Claims, open_claims
from bdn.origins.s3_requests import _age_s
from bdn.origins.sigv4 import Credentials
from bdn.ports import Claimed, Holding, Tier
from bdn.roster import Node, Roster
from bdn.sim.loop import run
from bdn.sim.memory import Cluster, CountingOrigin, MemoryClaims, model
from bdn.strict import LEASE_S, Move, after_claim
from tests.servers import ADMIN, READER, S3Service

MODEL, OBJECTS = model(40)
ONE, BYTES = model(1)
CHUNK = ONE.chunks[0]
NAMES = [f"node-{i:02}" for i in range(8)]
D = Digest.of(b"a chunk")


@pytest.mark.parametrize(
    ("word", "age_s", "spoilt", "move"),
    [
        (Holding.HAVE, 999.0, False, Move.ASK), (Holding.FETCHING, 999.0, False, Move.ASK),
        (Holding.LACKS, 0.0, False, Move.REPLACE), (None, 1.0, False, Move.WAIT),
        (None, LEASE_S + 1, False, Move.REPLACE), (Holding.HAVE, 0.0, True, Move.REPLACE),
    ],
)  # fmt: skip
def test_a_claim_is_replaced_only_on_its_holders_word_or_once_it_is_gone_and_old(
    word: Holding | None, age_s: float, spoilt: bool, move: Move
) -> None:
    assert after_claim(Claimed("b", age_s, "1"), word, spoilt=spoilt) is move


def test_nodes_of_which_each_sees_another_part_read_one_copy_together() -> None:
    """Each sees its two neighbours in a ring: many coordinators, of which no two need know one another."""

    async def main() -> None:
        c = Cluster(NAMES, CountingOrigin(dict(OBJECTS)), claims=MemoryClaims())
        for i, name in enumerate(NAMES):
            seen = (NAMES[i - 1], name, NAMES[(i + 1) % len(NAMES)])
            c.views[name].roster = Roster(tuple(Node(n) for n in seen), epoch=1)
        first = [asyncio.ensure_future(c.pull(n, MODEL)) for n in NAMES]
        await asyncio.sleep(3 * LEASE_S / 2)  # Claims of nodes that are out of sight are waited out ...
        for view in c.views.values():  # ... and here the news arrives before they are old.
            view.roster = c.roster
        await asyncio.gather(*first)
        assert set(c.origin.reads.values()) == {1} and len(c.origin.reads) == 40

    run(main())


def test_what_a_vanished_node_had_claimed_is_read_again_once_its_claim_is_old() -> None:
    async def main() -> None:
        claims = MemoryClaims()
        await claims.take(CHUNK.digest, "gone")
        c = Cluster(["a", "b"], CountingOrigin(dict(BYTES)), claims=claims)
        pull = asyncio.ensure_future(c.pull("a", ONE))
        await asyncio.sleep(100.0)
        assert not pull.done() and not c.origin.reads
        claims.age_s = LEASE_S + 1
        assert (await pull).ledger.bytes_by_tier[Tier.ORIGIN] == CHUNK.size

    run(main())


def test_a_holder_that_lost_its_chunk_is_not_waited_for() -> None:
    async def main() -> None:
        claims = MemoryClaims()
        await claims.take(CHUNK.digest, "b")
        c = Cluster(["a", "b"], CountingOrigin(dict(BYTES)), claims=claims)
        started = c.clock.now()
        await c.pull("a", ONE)
        assert c.clock.now() - started < 5.0 and claims.held[CHUNK.digest][0] == "a"

    run(main())


@pytest.fixture(params=["directory", "s3"])
def claims(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], OpenClaims]:
    if request.param == "directory":
        return lambda: DirectoryClaims(tmp_path)
    s3: S3Service = request.getfixturevalue("s3")
    url = s3.place()
    return lambda: S3Claims(url, endpoint=s3.endpoint, keys=Credentials(*ADMIN))


def test_of_many_takers_one_gets_the_claim_and_of_many_replacers_one(claims: Callable[[], OpenClaims]) -> None:
    async def main() -> None:
        several = [claims() for _ in range(6)]
        taken = await asyncio.gather(*(c.take(D, f"n{i}") for i, c in enumerate(several)))
        assert [t.fresh for t in taken].count(True) == 1
        assert len({t.holder for t in taken}) == 1 and len({t.mark for t in taken}) == 1
        seen = taken[0]
        again = await asyncio.gather(*(c.take(D, f"m{i}", replace=seen) for i, c in enumerate(several)))
        assert [t.fresh for t in again].count(True) == 1
        assert {t.holder for t in again} == {next(t.holder for t in again if t.fresh)}
        late = await several[0].take(D, "late", replace=seen)
        assert not late.fresh and late.holder == again[0].holder
        for c in several:
            await c.close()

    asyncio.run(main())


def test_a_claim_grows_old_by_the_origins_clock(tmp_path: Path) -> None:
    claims = DirectoryClaims(tmp_path)
    mine = asyncio.run(claims.take(D, "a"))
    then = time.time() - 100
    os.utime(next(p for p in tmp_path.rglob(mine.mark) if p.is_file()), (then, then))
    assert 99 < asyncio.run(claims.take(D, "b")).age_s < 200


@pytest.mark.parametrize(
    ("headers", "age_s"),
    [({"date": "Tue, 01 Dec 2026 00:01:40 GMT", "last-modified": "Tue, 01 Dec 2026 00:00:00 GMT"}, 100.0),
     ({"date": "Tue, 01 Dec 2026 00:00:00 GMT", "last-modified": "Tue, 01 Dec 2026 00:00:05 GMT"}, 0.0),
     ({"date": "yesterday", "last-modified": "Tue, 01 Dec 2026 00:00:00 GMT"}, 0.0), ({}, 0.0)],
)  # fmt: skip
def test_a_claim_in_a_bucket_is_as_old_as_the_service_says_and_new_where_it_says_nothing(
    headers: dict[str, str], age_s: float
) -> None:
    assert _age_s(headers) == age_s


def test_where_claims_cannot_be_written_a_person_is_told_so(s3: S3Service) -> None:
    with pytest.raises(Usage, match="strict-origin"):
        open_claims("https://mirror.example/models")

    async def main() -> None:
        claims = S3Claims(s3.place(), endpoint=s3.endpoint, keys=Credentials(*READER))
        with pytest.raises(Invalid, match="claims"):
            await claims.take(D, "a")
        await claims.close()

    asyncio.run(main())

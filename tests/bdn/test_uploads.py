"""Upload slots: who gets one, who waits for one, and who is sent on to another node."""

from __future__ import annotations

import asyncio

import pytest

from bdn.digest import Digest
from bdn.errors import Busy
from bdn.ledger import Ledger
from bdn.ports import Ask
from bdn.sim.loop import run
from bdn.uploads import LONG_S, SENT_ON_MAX, SENT_ON_REMEMBERED, UploadLease, Uploads

MANIFEST, ONE, OTHER = Digest.of(b"model"), Digest.of(b"one"), Digest.of(b"other")
SLOW_S, FAST_S = 2 * LONG_S, LONG_S / 4


def uploads() -> Uploads:
    return Uploads("me", Ledger(), slots=1, queue=64)


def waits(u: Uploads, digest: Digest, asker: str) -> asyncio.Task[UploadLease]:
    return asyncio.ensure_future(u.lease(digest, Ask(MANIFEST, asker, 0, 0)))


async def sent_in(seconds: float, u: Uploads, digests: dict[str, Digest]) -> list[str]:
    """All come together; each transfer takes that long. What became of them, in order: who was sent what, or where."""
    done: list[str] = []

    async def ask(asker: str, digest: Digest) -> None:
        try:
            lease = await u.lease(digest, Ask(MANIFEST, asker, 0, 0))
        except Busy as why:
            done.append(f"{asker} to {','.join(why.holders)}")
            return
        await asyncio.sleep(seconds)
        lease.close(1)
        done.append(asker)

    await asyncio.gather(*(ask(asker, digest) for asker, digest in digests.items()))
    assert u.load == 0
    return done


def test_a_slow_node_sends_a_chunk_that_nobody_has_before_one_that_others_were_given() -> None:
    """Fifty nodes wait for each chunk of a slow owner; it used to send it twenty times before the next one once."""

    async def main() -> None:
        comers = {"z": OTHER, "a": ONE, "b": ONE, "c": ONE, "d": MANIFEST}
        assert await sent_in(SLOW_S, uploads(), comers) == ["z", "a", "b to a", "c to a", "d"]

    run(main())


def test_a_fast_node_sends_to_all_who_came() -> None:
    async def main() -> None:
        comers = {"z": OTHER, "a": ONE, "b": ONE, "c": ONE}
        assert await sent_in(FAST_S, uploads(), comers) == ["z", "a", "b", "c"]

    run(main())


def test_who_was_sent_on_and_comes_back_twice_gets_the_chunk_however_slow_the_node() -> None:
    """The others named may be gone, in another zone or not to be trusted."""

    async def main() -> None:
        u = uploads()
        (await waits(u, ONE, "dead")).close(0)
        for _ in range(SENT_ON_MAX):
            assert (await sent_in(SLOW_S, u, {"z": OTHER, "b": ONE}))[1] == "b to dead"
        assert (await sent_in(SLOW_S, u, {"z": OTHER, "b": ONE}))[1] == "b"
        assert not u._sent_on

    run(main())


def test_what_is_remembered_of_askers_is_bounded() -> None:
    async def main() -> None:
        u = uploads()
        (await waits(u, ONE, "a")).close(0)
        for i in range(SENT_ON_REMEMBERED + 10):
            u.active += 1
            with pytest.raises(Busy):
                u._send_on(ONE, f"n{i}")
        assert len(u._sent_on) == SENT_ON_REMEMBERED and not u.active

    run(main())


def test_whoever_was_given_a_chunk_and_comes_again_is_not_sent_to_itself() -> None:
    async def main() -> None:
        u = uploads()
        first, again = await waits(u, ONE, "a"), waits(u, ONE, "a")
        await asyncio.sleep(SLOW_S)
        first.close(0)
        (await again).close(0)

    run(main())


def test_who_stops_waiting_leaves_no_slot_taken() -> None:
    async def main() -> None:
        u = uploads()
        first = await waits(u, OTHER, "z")
        gone, stays = waits(u, ONE, "a"), waits(u, ONE, "b")
        await asyncio.sleep(SLOW_S)
        first.close(0)
        gone.cancel()
        (await stays).close(0)
        assert gone.cancelled() and u.load == 0

    run(main())

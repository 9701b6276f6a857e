"""Owns where a manifest comes from: this store, then a node that has it, then the origin.

As with chunks, so that a warm cluster needs no origin for a pull by digest. Unlike chunks, no node fetches a document
for another: a node says at once whether it has it, and fifty that start together on nothing read it from the origin
each, where every one of them looks its tag up anyhow. To make one read it for all would have the start of each hang on
one node more, to save a hundred-thousandth of the bytes.

Nobody is believed: each document's digest is checked, its size is bounded, and who drips, hangs or lies is left for
the next, while the origin is asked beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from bdn.digest import Digest
from bdn.documents import read_manifest_with
from bdn.errors import BdnError, Corrupt, Down, Missing, SourceSilent
from bdn.ledger import Ledger
from bdn.manifest import DOCUMENT_BYTES_MAX, Manifest
from bdn.nvme import NvmeStore
from bdn.origin_reads import patiently
from bdn.policy import Limits, OriginUse
from bdn.ports import Ask, Clock, Origin, PeerDocuments, Tier
from bdn.roster import Node, Roster
from bdn.standing import Standing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Every bound on a search, with its reason."""

    asked_first: int = 3
    """The first in rank for the manifest's digest: its coordinator, which knows who has the model, and two more."""
    head_start_s: float = 0.5
    """How long those may take before the origin is asked beside them. Who has nothing says so in a round trip."""
    look_s: float = 2.0
    """A member that has not said by then whether it has the manifest is of no use."""
    answer_s: float = 10.0
    """For one document from one node: 64 MiB, the largest there may be, at 6.7 MB/s."""
    again_s: float = 2.0
    again_s_max: float = 30.0
    """Between looks at all members while the origin gives nothing, twice as long each time."""
    asked_at_once: int = 64
    in_memory: int = 4
    """Documents from other nodes at once, of all pulls: unchecked, each may be of `DOCUMENT_BYTES_MAX`."""


@dataclass(frozen=True, slots=True)
class Found:
    manifest: Manifest
    tier: Tier


class ManifestSearch:
    """One node's. origin: None where this node may not reach it. say: hears of each node that gave wrong bytes."""

    def __init__(
        self,
        me: str,
        store: NvmeStore,
        peers: PeerDocuments,
        origin: Origin | None,
        roster: Callable[[], Roster],
        clock: Clock,
        standing: Standing,
        ledger: Ledger,
        limits: Limits,
        *,
        search: SearchLimits = SearchLimits(),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._me, self._store, self._peers, self._origin, self._roster = me, store, peers, origin, roster
        self._clock, self._standing, self._ledger = clock, standing, ledger
        self._limits, self._search, self._say = limits, search, say
        self._in_memory = asyncio.Semaphore(search.in_memory)

    async def find(self, digest: Digest, use: OriginUse) -> Found:
        """Raises what the origin says once no member has it either: Missing, SourceDown (after the origin's patience),
        Corrupt; and Invalid for what is no manifest, whoever has it."""
        if digest in self._store.models():
            return Found(self._store.manifest(digest), Tier.NVME)
        if use is OriginUse.REQUIRE:
            return await self._from_origin(digest)
        async with _task(self._ask(digest, self._first(digest))) as first:
            await asyncio.wait([first], timeout=self._search.head_start_s)
            if first.done() and (found := first.result()) is not None:
                return found
            return await self._beside_origin(digest, first)

    async def _beside_origin(self, digest: Digest, first: asyncio.Future[Found | None]) -> Found:
        """Whichever gives it first: the origin, those asked already, or in the end any member at all."""
        failed = asyncio.Event()
        async with (
            _task(self._from_origin(digest, failed.set)) as origin,
            _task(self._whoever_has_it(digest, first, failed)) as peers,
        ):
            await asyncio.wait([origin, peers], return_when=asyncio.FIRST_COMPLETED)
            if peers.done():
                return peers.result()
            why = origin.exception()
        if why is None:
            return origin.result()
        if not isinstance(why, BdnError):
            raise why
        if (found := await self._ask(digest, self._others())) is not None:
            return found
        why.hint = why.hint or "no node that answers has this manifest either; one that has it is enough"
        raise why

    async def _whoever_has_it(
        self, digest: Digest, first: asyncio.Future[Found | None], failed: asyncio.Event
    ) -> Found:
        """All members, again and again, as soon as the origin has failed or says nothing. Ends only with the manifest:
        members may still be coming."""
        found, pause_s = await first, self._search.again_s
        while found is None:
            try:
                async with asyncio.timeout(pause_s):
                    await failed.wait()
                failed = asyncio.Event()  # The first failure is news; those after it are not.
            except TimeoutError:
                pause_s = min(2 * pause_s, self._search.again_s_max)
            found = await self._ask(digest, self._others())
        return found

    async def _from_origin(self, digest: Digest, failed: Callable[[], None] = lambda: None) -> Found:
        if self._origin is None:
            raise Missing(f"manifest {digest.short} is on no node that answers, and this agent has no origin")
        origin = self._origin

        async def read(name: Digest) -> bytes:
            body = await origin.read_document(name, bytes_max=DOCUMENT_BYTES_MAX)
            self._ledger.documents_by_tier[Tier.ORIGIN] += 1
            return body

        async def whole() -> Manifest:
            return await read_manifest_with(read, digest)

        try:
            return Found(await patiently(whole, self._limits, self._clock, failed), Tier.ORIGIN)
        except Missing:
            raise Missing(f"there is no manifest {digest} at the origin", hint="`bdn ls` lists what there is") from None

    # -- other nodes --

    def _first(self, digest: Digest) -> list[Node]:
        now, ranked = self._clock.now(), self._roster().ranked(digest)
        there = (n for n in ranked if n.name != self._me and not self._standing.down(n.name, now))
        return list(islice(there, self._search.asked_first))

    def _others(self) -> list[Node]:
        return [n for n in self._roster().nodes if n.name != self._me]

    async def _ask(self, digest: Digest, nodes: Sequence[Node]) -> Found | None:
        """The manifest from one of these nodes, or of those that they name; None when none gives it."""
        if not nodes:
            return None
        candidates = _Candidates()
        async with _task(self._look(digest, nodes, candidates)):
            try:
                return Found(await read_manifest_with(lambda d: self._read(digest, d, candidates), digest), Tier.PEER)
            except Missing:
                return None

    async def _look(self, digest: Digest, nodes: Sequence[Node], candidates: _Candidates) -> None:
        """Ask each whether it has the manifest; returns within `look_s`, whoever answers."""
        ask, todo, look_s = Ask(digest, self._me), iter(nodes), self._search.look_s

        async def some() -> None:
            for node in todo:
                try:
                    names = await self._peers.whereabouts(node, ask, stall_s=look_s)
                except BdnError as why:
                    self._ledger.miss(node.name, why)
                    continue
                found = (node if name == node.name else self._roster().get(name) for name in names)
                candidates.add(n for n in found if n is not None and n.name != self._me)

        try:
            async with asyncio.timeout(look_s):
                await asyncio.gather(*(some() for _ in range(min(len(nodes), self._search.asked_at_once))))
        except TimeoutError:
            pass
        finally:
            candidates.close()

    async def _read(self, manifest: Digest, name: Digest, candidates: _Candidates) -> bytes:
        """One document from whichever candidate gives it. Raises Missing when none is left."""
        while (node := await candidates.first()) is not None:
            try:
                async with self._in_memory, asyncio.timeout(self._search.answer_s):
                    body = await self._peers.read_document(
                        node, name, Ask(manifest, self._me), bytes_max=DOCUMENT_BYTES_MAX, stall_s=self._search.look_s
                    )
            except TimeoutError:
                why: BdnError = SourceSilent(node.name, self._search.answer_s)
            except BdnError as failed:
                why = failed
            else:
                self._ledger.documents_by_tier[Tier.PEER] += 1
                return body
            candidates.drop(node)
            self._ledger.miss(node.name, why)
            if isinstance(why, Corrupt | Down):
                self._say(f"manifest {manifest.short} does not come from {node.name}: {why}")
        raise Missing(f"no node gives manifest document {name.short}")


class _Candidates:
    """Nodes that are said to have the manifest, in the order in which they were heard of, each once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._seen: set[str] = set()
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.name not in self._seen:
                self._seen.add(node.name)
                self._nodes[node.name] = node
        self._changed.set()

    def drop(self, node: Node) -> None:
        self._nodes.pop(node.name, None)

    def close(self) -> None:
        """No more will be added."""
        self._closed = True
        self._changed.set()

    async def first(self) -> Node | None:
        """Waits for one; None when none is left and none will come."""
        while not self._nodes:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return next(iter(self._nodes.values()))


@asynccontextmanager
async def _task(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Runs beside the block and is over when the block is."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Heard of, where nobody waits for it any more.

"""The other ways to bring one model to many nodes, over the same links, faults and times as ours.

Each is given the benefit of the doubt: requests cost one round trip, knowledge of others is exact and free.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from bdn.digest import Digest
from bdn.errors import Down, SourceDown
from bdn.manifest import Chunk
from bdn.sim.run import Plan, Rollout
from bdn.sim.world import Machine, SimSink

AT_ONCE = 8  # Requests in flight per node, as ours.
TIMEOUT_S = 5.0
NEIGHBOURS = 40  # A BitTorrent client's usual number of connections.
UNCHOKED = 8
WEB_SEEDS = 2

_Fetch = Callable[[Chunk], Awaitable[None]]


async def _each(chunks: list[Chunk], at_once: int, fetch: _Fetch) -> None:
    todo = iter(chunks)

    async def work() -> None:
        for chunk in todo:
            await fetch(chunk)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(chunks))):
            group.create_task(work())


class _Shared:
    """What the rivals have in common: fetching from the origin or a node, once per node and chunk."""

    def __init__(self) -> None:
        self._flights: dict[tuple[int, int], asyncio.Future[None]] = {}

    def start(self, rollout: Rollout, machine: Machine) -> None:
        self._flights = {k: f for k, f in self._flights.items() if k[0] != machine.number}

    async def pull(self, rollout: Rollout, machine: Machine, model: int) -> None:
        manifest = rollout.manifests[model]
        await machine.store.admit(manifest)
        have = machine.store.verified(manifest.digest)
        missing = [c for c in manifest.chunks if c.digest not in have]
        rollout.chance(f"order/{machine.number}").shuffle(missing)
        await self.fetch_all(rollout, machine, model, missing)

    async def fetch_all(self, rollout: Rollout, machine: Machine, model: int, missing: list[Chunk]) -> None:
        raise NotImplementedError

    async def from_origin(self, rollout: Rollout, machine: Machine, model: int, chunk: Chunk) -> None:
        await self._once(rollout, machine, model, chunk, lambda sink: self._origin(rollout, machine, chunk, sink))

    async def _origin(self, rollout: Rollout, machine: Machine, chunk: Chunk, sink: SimSink) -> None:
        while True:
            try:
                return await rollout.world.origin.send(machine, chunk, sink)
            except Down as why:
                await asyncio.sleep(getattr(why, "retry_after_s", None) or 1.0)

    async def from_node(self, rollout: Rollout, machine: Machine, model: int, chunk: Chunk, source: Machine) -> None:
        """Raises SourceDown when the source dies."""
        await self._once(rollout, machine, model, chunk, lambda sink: _move(rollout, source, machine, chunk, sink))

    async def _once(
        self, rollout: Rollout, machine: Machine, model: int, chunk: Chunk, get: Callable[[SimSink], Awaitable[None]]
    ) -> None:
        key = (machine.number, rollout.world.numbers[chunk.digest])
        if machine.store.has(chunk.digest):
            return
        if key in self._flights:
            await asyncio.shield(self._flights[key])
            return
        flight = self._flights[key] = rollout.loop.create_future()
        try:
            sink = SimSink(chunk)
            await get(sink)
            await machine.store.admit(rollout.manifests[model])
            sink.restart()
            sink.arrived(chunk.size)
            await machine.store.commit(rollout.manifests[model].digest, sink)
        except BaseException as why:
            del self._flights[key]
            flight.set_exception(SourceDown(machine.name, "its own fetch failed"))
            flight.exception()
            raise why
        flight.set_result(None)


async def _move(rollout: Rollout, source: Machine, machine: Machine, chunk: Chunk, sink: SimSink) -> None:
    await rollout.world.pause(rollout.world.rtt_s)
    if not source.alive:
        raise SourceDown(source.name, "connection refused")
    await rollout.world.move(source, machine, chunk, sink)


class EveryoneFromOrigin(_Shared):
    """Each node downloads the whole model itself."""

    async def fetch_all(self, rollout: Rollout, machine: Machine, model: int, missing: list[Chunk]) -> None:
        await _each(missing, AT_ONCE, lambda c: self.from_origin(rollout, machine, model, c))


class OwnerOrOrigin(_Shared):
    """Rendezvous owners without patience: after a timeout, or a failure, a node reads the origin itself."""

    async def fetch_all(self, rollout: Rollout, machine: Machine, model: int, missing: list[Chunk]) -> None:
        await _each(missing, AT_ONCE, lambda c: self._fetch(rollout, machine, model, c))

    async def _fetch(self, rollout: Rollout, machine: Machine, model: int, chunk: Chunk) -> None:
        owner = rollout.view(machine).owner(chunk.digest)
        source = rollout.world.by_name[owner.name] if owner is not None else machine
        if source is not machine and source.alive:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.from_origin(rollout, source, model, chunk)
                    return await self.from_node(rollout, machine, model, chunk, source)
            except (TimeoutError, Down):
                pass
        await self.from_origin(rollout, machine, model, chunk)
        return None


class SeedNode(_Shared):
    """One node, the first that is up, reads the origin; everyone else downloads from it alone."""

    async def fetch_all(self, rollout: Rollout, machine: Machine, model: int, missing: list[Chunk]) -> None:
        missing.sort(key=lambda c: rollout.world.numbers[c.digest])
        await _each(missing, AT_ONCE, lambda c: self._fetch(rollout, machine, model, c))

    async def _fetch(self, rollout: Rollout, machine: Machine, model: int, chunk: Chunk) -> None:
        while True:
            up = [m for m in rollout.world.machines if m.alive]
            seed = next((m for m in up if m.store.published(rollout.manifests[model].digest)), up[0])
            try:
                if seed is not machine:
                    await self.from_origin(rollout, seed, model, chunk)
                    return await self.from_node(rollout, machine, model, chunk, seed)
                return await self.from_origin(rollout, machine, model, chunk)
            except Down:
                await asyncio.sleep(1.0)


class RarestFirst(_Shared):
    """BitTorrent in short: a random set of neighbours, the rarest piece among them first, a random one that has it and
    has an upload slot free; the origin is a web seed that each node uses on its own for what no neighbour has."""

    def __init__(self) -> None:
        super().__init__()
        self._uploads: dict[int, int] = {}

    async def fetch_all(self, rollout: Rollout, machine: Machine, model: int, missing: list[Chunk]) -> None:
        chance = rollout.chance(f"swarm/{machine.number}")
        others = [m for m in rollout.world.machines if m is not machine]
        neighbours = chance.sample(others, min(NEIGHBOURS, len(others)))
        left = {c.digest: c for c in missing}
        taken: set[bytes] = set()

        async def peer_lane() -> None:
            while left:
                found = self._rarest(neighbours, left, taken, chance)
                if found is None:
                    await asyncio.sleep(0.02)
                    continue
                chunk, source = found
                await take(chunk, source)

        async def seed_lane() -> None:
            while left:
                fresh = [c for d, c in left.items() if d.raw not in taken and not _held(neighbours, c)]
                if not fresh:
                    await asyncio.sleep(0.02)
                    continue
                await take(chance.choice(fresh), None)

        async def take(chunk: Chunk, source: Machine | None) -> None:
            taken.add(chunk.digest.raw)
            try:
                if source is None:
                    await self.from_origin(rollout, machine, model, chunk)
                else:
                    self._uploads[source.number] = self._uploads.get(source.number, 0) + 1
                    try:
                        await self.from_node(rollout, machine, model, chunk, source)
                    finally:
                        self._uploads[source.number] -= 1
                left.pop(chunk.digest, None)
            except Down:
                await asyncio.sleep(0.1)
            finally:
                taken.discard(chunk.digest.raw)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(peer_lane())
            for _ in range(WEB_SEEDS):
                group.create_task(seed_lane())

    def _rarest(
        self, neighbours: list[Machine], left: dict[Digest, Chunk], taken: set[bytes], chance: random.Random
    ) -> tuple[Chunk, Machine] | None:
        """Of a random dozen of the missing pieces, the one that the fewest neighbours have."""
        free = [m for m in neighbours if m.alive and self._uploads.get(m.number, 0) < UNCHOKED]
        pool = [c for c in left.values() if c.digest.raw not in taken]
        best: tuple[int, Chunk, list[Machine]] | None = None
        for chunk in chance.sample(pool, min(12, len(pool))):
            holders = [m for m in free if m.store.has(chunk.digest)]
            if holders and (best is None or len(holders) < best[0]):
                best = (len(holders), chunk, holders)
        return None if best is None else (best[1], chance.choice(best[2]))


def _held(neighbours: list[Machine], chunk: Chunk) -> bool:
    return any(m.alive and m.store.has(chunk.digest) for m in neighbours)


RIVALS: dict[str, Callable[[], Plan]] = {
    "everyone_from_origin": EveryoneFromOrigin,
    "owner_or_origin_after_5s": OwnerOrOrigin,
    "seed_node": SeedNode,
    "random_rarest_first": RarestFirst,
}

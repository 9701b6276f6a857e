"""Owns one run: builds the world of a scenario, starts and breaks nodes in it, and hands back what happened.

`Rollout` is the part that our protocol and its rivals share: machines, views, faults and times. What a node does
when it starts is a `Plan`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bdn.clock import LoopClock
from bdn.delivery import Delivery
from bdn.digest import Digest
from bdn.errors import BdnError, SourceDown
from bdn.ledger import Ledger
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.ports import Tier
from bdn.resolver import Resolver
from bdn.roster import Node, Roster
from bdn.sim.loop import SimLoop
from bdn.sim.scenario import Fault, Model, Scenario
from bdn.sim.world import Machine, SimMembership, SimPeers, World
from bdn.window import Window

WATCHED_S = 0.05  # Simulated: a large run takes seconds of real time for as much.


@dataclass
class Outcome:
    """What happened in one run of one plan."""

    world: World
    ledgers: dict[str, Ledger]
    """Every life's account, by node name."""
    started: dict[tuple[int, int], float] = field(default_factory=dict)
    finished: dict[tuple[int, int], float] = field(default_factory=dict)
    """(node, model) -> when."""
    failed: dict[tuple[int, int], str] = field(default_factory=dict)
    models: tuple[Manifest, ...] = ()
    ended_s: float = 0.0
    """When the run was over, in simulated seconds."""
    unfinished: int = 0
    """Pulls that had not ended, or not even begun, when the run was given up after `time_s_max`."""
    lost_pulls: int = 0
    """Pulls that ended because their node died for good."""

    @property
    def seconds(self) -> float:
        """From the first start to the last completion."""
        return max(self.finished.values(), default=0.0) - min(self.started.values(), default=0.0)

    @property
    def model_bytes(self) -> int:
        pulled = {model for _, model in self.started}
        return sum(m.unique_bytes for i, m in enumerate(self.models) if i in pulled)

    @property
    def origin_copies(self) -> float:
        return self.world.trace.carried[Tier.ORIGIN] / self.model_bytes if self.model_bytes else 0.0


class Plan(Protocol):
    """What a node does: `start` gives it a way to fetch, `pull` fetches one model."""

    def start(self, rollout: Rollout, machine: Machine) -> None: ...

    async def pull(self, rollout: Rollout, machine: Machine, model: int) -> None: ...


def manifest_of(model: Model, seed: int) -> Manifest:
    """A one-file model of that size whose chunk digests follow from the seeds."""
    size, chunks, left, i = model.chunk_mib << 20, [], model.bytes, 0
    while left:
        digest = Digest.of(f"{seed}/{model.seed}/{i}".encode())
        chunks.append(Chunk(digest, min(size, left)))
        left -= chunks[-1].size
        i += 1
    extents = tuple(Extent(c, 0, c.size) for c in chunks)
    return Manifest((File("weights.bin", model.bytes, 0o644, Digest.of(str(seed).encode()), extents),))


class Rollout:
    """One run in progress."""

    def __init__(
        self, scenario: Scenario, seed: int, plan: Plan, loop: SimLoop, manifests: Sequence[Manifest] = ()
    ) -> None:
        self.scenario, self.seed, self.plan, self.loop = scenario, seed, plan, loop
        self.world = World(loop, scenario.nodes, scenario.origin)
        self.clock = LoopClock()
        self.manifests = tuple(manifests) or tuple(manifest_of(m, seed) for m in scenario.models)
        for manifest in self.manifests:
            self.world.number(manifest.chunks)
        self.outcome = Outcome(self.world, {}, models=self.manifests)
        self._rosters: dict[tuple[tuple[int, bool], ...], Roster] = {}
        self._views: list[dict[int, bool]] = [{} for _ in self.world.machines]
        """What each node knows: member -> ready."""
        self._memberships: dict[int, SimMembership] = {}
        self._news = self.chance("news")
        self._pulls: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._held: dict[int, list[int]] = {}
        """Pulls that came due while their node was down; they begin with it."""
        self._gone: set[int] = set()
        """Nodes that died for good."""
        self._pending = 0
        self.watch: Callable[[Rollout], None] | None = None
        """Called every `WATCHED_S` simulated seconds; it changes nothing."""
        self._all_done = asyncio.Event()

    def chance(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose, so that one more draw in one does not change the others."""
        return random.Random(f"{self.seed}/{self.scenario.name}/{purpose}")

    async def run(self) -> Outcome:
        s, count = self.scenario, len(self.world.machines)
        present = count if s.joins.present < 0 else s.joins.present
        known = {i: True for i in range(present)}
        joins, pulls = self.chance("joins"), self.chance("pulls")
        for i, machine in enumerate(self.world.machines):
            self._views[i] = dict(known)
            if i < s.pulls.warm:
                for manifest in self.manifests:
                    machine.store.fill(manifest)
            at = 0.0 if i < present else joins.uniform(0.0, s.joins.over_s)
            self.loop.call_at(at, self._arrive, machine, i >= present)
            for m, model in enumerate(s.models):
                if i >= s.pulls.warm and (not model.nodes or i in model.nodes):
                    self._pending += 1
                    self.loop.call_at(at + pulls.uniform(0.0, s.pulls.over_s), self._begin, machine, m)
        for fault in s.faults:
            self._plan_fault(fault)
        self.loop.call_at(s.time_s_max, self._all_done.set)
        if self.watch is not None:
            self._look()
        if self._pending:
            await self._all_done.wait()
        self.outcome.unfinished, self.outcome.ended_s = self._pending, self.loop.time()
        for machine in self.world.machines:
            if machine.resolver is not None:
                self.outcome.ledgers.setdefault(machine.name, machine.resolver.ledger)
        return self.outcome

    def _look(self) -> None:
        assert self.watch is not None
        self.watch(self)
        self.loop.call_later(WATCHED_S, self._look)

    # -- members --

    def view(self, machine: Machine) -> Roster:
        """The members as this node sees them now."""
        return self._roster(machine.number)

    def membership(self, machine: Machine) -> SimMembership:
        member = SimMembership(self._roster(machine.number))
        self._memberships[machine.number] = member
        return member

    def _roster(self, number: int) -> Roster:
        """Equal views share one object, so that a ranking is worked out once for all who share it."""
        key = tuple(sorted(self._views[number].items()))
        found = self._rosters.get(key)
        if found is None:
            machines = self.world.machines
            nodes = (Node(m.name, m.name, zone=m.zone, ready=ready) for m, ready in ((machines[i], r) for i, r in key))
            found = self._rosters[key] = Roster(tuple(nodes), epoch=len(self._rosters) + 1)
        return found

    def _arrive(self, machine: Machine, announce: bool) -> None:
        if machine.number in self._gone:
            return  # It died for good before it came; its pulls are counted as lost.
        self._views[machine.number][machine.number] = True
        machine.life += 1
        machine.alive = True
        self.plan.start(self, machine)
        if announce:
            self._spread(machine.number, True)
        for model in self._held.pop(machine.number, []):
            self._begin(machine, model)

    def _spread(self, about: int, ready: bool | None) -> None:
        """Everyone hears of a change after an even chance from 0 to the lag; the node itself at once."""
        lag = self.scenario.joins.lag_s
        for observer in range(len(self.world.machines)):
            delay = 0.0 if observer == about else self._news.uniform(0.0, lag)
            self.loop.call_later(delay, self._hear, observer, about, ready)

    def _hear(self, observer: int, about: int, ready: bool | None) -> None:
        if ready is None:
            self._views[observer].pop(about, None)
        else:
            self._views[observer][about] = ready
        if observer in self._memberships:
            self._memberships[observer].roster = self._roster(observer)

    # -- pulls --

    def _begin(self, machine: Machine, model: int) -> None:
        self.outcome.started.setdefault((machine.number, model), self.loop.time())
        if machine.number in self._gone:
            self.outcome.lost_pulls += 1
            self._over()
            return
        if not machine.alive:
            self._held.setdefault(machine.number, []).append(model)
            return
        task = self.loop.create_task(self._pull(machine, model))
        self._pulls[(machine.number, model)] = task
        machine.tasks.add(task)
        task.add_done_callback(machine.tasks.discard)

    async def _pull(self, machine: Machine, model: int) -> None:
        try:
            await self.plan.pull(self, machine, model)
        except BdnError as why:
            self.outcome.failed[(machine.number, model)] = str(why)
        else:
            self.outcome.finished[(machine.number, model)] = self.loop.time()
        self._over()

    def _over(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._all_done.set()

    # -- faults --

    def _plan_fault(self, fault: Fault) -> None:
        count = len(self.world.machines)
        first = count - fault.nodes if fault.first < 0 else fault.first
        if fault.kind.startswith("origin"):
            self.loop.call_at(fault.at_s, self._break_origin, fault)
            return
        chosen = self.world.machines[first : first + fault.nodes]
        for i, machine in enumerate(chosen):
            at = fault.at_s + fault.over_s * i / max(1, len(chosen))
            self.loop.call_at(at, self._break, fault, machine)

    def _break(self, fault: Fault, machine: Machine) -> None:
        if fault.kind in ("restart", "flap", "leave") and not machine.alive:
            return  # There is nothing to stop, and starting it now would make it arrive twice.
        if fault.kind in ("die", "restart", "flap"):
            self._die(machine, fault)
        elif fault.kind == "leave":
            self._spread(machine.number, False)
            self.loop.call_later(max(fault.for_s, 1.0), self._die, machine, fault)
        elif fault.kind in ("nic", "disk"):
            machine.scale(**{fault.kind: fault.factor})
            if fault.for_s:
                self.loop.call_later(fault.for_s, lambda: machine.scale(**{fault.kind: 1.0 / fault.factor}))
        else:
            machine.corrupt = True
            if fault.for_s:
                self.loop.call_later(fault.for_s, setattr, machine, "corrupt", False)

    def _break_origin(self, fault: Fault) -> None:
        if fault.kind == "origin":
            egress = self.world.origin.egress
            egress.set_rate(egress.rate * fault.factor)
            if fault.for_s:
                self.loop.call_later(fault.for_s, lambda: egress.set_rate(egress.rate / fault.factor))
        else:
            self.world.origin.down = True
            for machine in self.world.machines:
                for transfer, source in list(machine.transfers.items()):
                    if source is None:
                        transfer.abort(SourceDown("origin", "connection reset"))
            if fault.for_s:
                self.loop.call_later(fault.for_s, setattr, self.world.origin, "down", False)

    def _die(self, machine: Machine, fault: Fault) -> None:
        if machine.number in self._gone:
            return
        pulling = [m for (n, m), t in self._pulls.items() if n == machine.number and not t.done()]
        if machine.resolver is not None:
            key = f"{machine.name}#{machine.life}"
            self.outcome.ledgers[key] = machine.resolver.ledger
        self.world.kill(machine, silent=fault.silent)
        self._memberships.pop(machine.number, None)
        self._spread(machine.number, None)
        comes_back = fault.kind in ("restart", "flap")
        if comes_back:
            self.loop.call_later(max(fault.for_s, 0.1), self._return, machine, fault, pulling)
        else:
            self._gone.add(machine.number)
            for _ in [*pulling, *self._held.pop(machine.number, [])]:
                self.outcome.lost_pulls += 1
                self._over()

    def _return(self, machine: Machine, fault: Fault, pulling: list[int]) -> None:
        self._arrive(machine, True)
        for model in pulling:
            self._begin(machine, model)
        if fault.kind == "flap":
            self.loop.call_later(max(fault.for_s, 0.1), self._die, machine, fault)


class Ours:
    """The core itself: every node has a Resolver and runs Deliveries."""

    def start(self, rollout: Rollout, machine: Machine) -> None:
        limits = rollout.scenario.limits
        machine.window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
        machine.resolver = Resolver(
            machine.name, machine.store, SimPeers(rollout.world, machine), rollout.world.origin.port(machine),
            rollout.membership(machine), rollout.clock, limits=limits,
            claims=rollout.world.claims if rollout.scenario.strict else None,
        )  # fmt: skip
        for manifest in rollout.manifests:
            if machine.store.published(manifest.digest):
                machine.resolver.join(manifest)
        machine.resolver.introduce()

    async def pull(self, rollout: Rollout, machine: Machine, model: int) -> None:
        assert machine.resolver is not None
        priority = rollout.scenario.models[model].priority
        delivery = Delivery(rollout.manifests[model], machine.resolver, machine.window, rollout.clock, priority)
        await delivery.run()


def simulate(
    scenario: Scenario,
    seed: int,
    plan: Plan | None = None,
    manifests: Sequence[Manifest] = (),
    watch: Callable[[Rollout], None] | None = None,
) -> Outcome:
    """Run a scenario in simulated time with one plan (ours by default).

    manifests: real ones in place of the scenario's models, so that every chunk has the owner that it has in reality.
    """
    loop = SimLoop()  # type: ignore[abstract]
    return loop.run(_main(Rollout(scenario, seed, plan or Ours(), loop, manifests), watch))


async def _main(rollout: Rollout, watch: Callable[[Rollout], None] | None) -> Outcome:
    rollout.watch = watch
    outcome, loop = await rollout.run(), rollout.loop
    if loop.errors:
        raise AssertionError(f"an error nobody looked at: {loop.errors[0]}")
    return outcome

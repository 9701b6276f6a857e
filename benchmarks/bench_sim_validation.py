"""sim_validation: the same scenario by `bdn simulate` and by real agents on links of their own; how far they differ.

Every node is a `bdn agent` process with a store of its own in memory (eight nodes on one machine would otherwise share
one disk, which no cluster does); the origin is `bdn origin`. Simulated and real nodes have the same names and the same
manifest, so that every chunk has the same owner in both; all are asked within 20 ms.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bdn.documents import read_manifest
from bdn.fleet import Fleet, free_ports
from bdn.manifest import Manifest
from bdn.origin_process import OriginProcess
from bdn.origins.open import open_origin
from bdn.rollout import Member, Wave
from bdn.sim.run import simulate
from bdn.sim.scenario import Scenario, load
from bdn.sim.world import GBIT
from benchmarks.data import NAME, Seeded, seeded
from benchmarks.network import Network, enter, network
from benchmarks.rounds import ROOT, WORK, arguments, commit, machine, save

SCENARIOS = ("validate-cold", "validate-warm-join", "validate-slow-nic", "validate-origin-throttled")
SMOKE = ("validate-cold",)
SEEDS = 9  # Who asks whom first decides a run by some percent, in both: medians are compared.


@dataclass(frozen=True)
class Run:
    """Seconds from the asking to the whole model, by node, and how many copies the origin sent."""

    seconds: dict[str, float]
    origin_copies: float
    idle: float = 1.0
    """The machine's processors meanwhile, of 1: near 0 they are what is measured, and not the links."""

    @property
    def last_s(self) -> float:
        return max(self.seconds.values())


def main() -> None:
    parser = arguments(__doc__ or "")
    args = parser.parse_args()
    enter()
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = [n for n in args.only.split(",") if n in SCENARIOS] or list(SMOKE if args.smoke else SCENARIOS)
    rounds, rows = 1 if args.smoke else args.rounds, {}
    net = network()
    for name in wanted:
        path = ROOT / "benchmarks" / "scenarios" / f"{name}.yaml"
        scenario = load(path.read_text(encoding="utf-8"), str(path))
        if args.smoke:
            scenario = small(scenario)
        data = seeded(int(args.gb * 1e9) or scenario.models[0].bytes)
        manifest = asyncio.run(_manifest(data))
        simulated = [simulated_run(scenario, args.seed + i, manifest) for i in range(SEEDS)]
        measured = [asyncio.run(real_run(scenario, data, manifest, net)) for _ in range(rounds)]
        rows[name] = compare(simulated, measured)
        print(f"  {name}: {rows[name]}", file=sys.stderr, flush=True)
    line = {
        "workload": "sim_validation", "machine": machine(), "commit": commit(), "seed": args.seed,
        "smoke": args.smoke, "network": net.kind, "rounds": rounds, "seeds": SEEDS, "scenarios": rows,
        "worst_last_percent": max(abs(r["last_percent"]) for r in rows.values()),
        "worst_node_percent": max(abs(r["worst_node_percent"]) for r in rows.values()),
    }  # fmt: skip
    save(line, args)
    print(json.dumps(line))


def small(scenario: Scenario) -> Scenario:
    """Seconds and little memory: what a test runs to see that it runs."""
    model = dataclasses.replace(scenario.models[0], bytes=40_000_000)
    return dataclasses.replace(scenario, models=(model,), nodes=dataclasses.replace(scenario.nodes, count=3))


async def _manifest(data: Seeded) -> Manifest:
    origin = open_origin(str(data.root / "origin"))
    try:
        return await read_manifest(origin, await origin.read_tag(NAME, "latest"))
    finally:
        await origin.close()


def simulated_run(scenario: Scenario, seed: int, manifest: Manifest) -> Run:
    outcome = simulate(scenario, seed, manifests=(manifest,))
    seconds = {
        outcome.world.machines[number].name: end - outcome.started[(number, model)]
        for (number, model), end in outcome.finished.items()
    }
    return Run(seconds, outcome.origin_copies)


async def real_run(scenario: Scenario, data: Seeded, manifest: Manifest, net: Network) -> Run:
    """One round with fresh processes and stores; those nodes that have the model beforehand get it unmeasured."""
    nic, env = scenario.nodes.nic_gbit * GBIT, {k: v for k, v in os.environ.items() if not k.startswith("BDN_")}
    root = Path(tempfile.mkdtemp(prefix="bdn-validate-", dir=_memory()))
    try:
        async with Fleet(root / "logs") as fleet:
            rate = scenario.origin.gbit * GBIT
            host = net.add("origin", rate)
            origin = await OriginProcess.start(
                fleet, data.root / "origin", env, bytes_per_s=net.own_limits(rate), host=host,
                place=lambda argv: net.inside("origin", argv),
            )  # fmt: skip
            members = _members(scenario, root, net, nic)
            ref = f"{NAME}:latest@{manifest.digest}"

            def wave(who: Sequence[Member], others: Sequence[Member]) -> Wave:
                flags = ["--origin", origin.url, "--upload-bytes-per-s", str(net.own_limits(nic))]
                place = lambda m, argv: net.inside(m.name, argv)  # noqa: E731
                return Wave(fleet, who, others, env, flags, ref, lambda *_: None, place=place)

            warm = members[: scenario.pulls.warm]
            if warm:
                first = wave(warm, ())
                await first.start()
                await first.ask()
                await fleet.end([m.agent for m in warm if m.agent is not None])
            await wave(members, ()).start()
            cold = wave(members[len(warm) :], ())
            before, ticks = await origin.sent_bytes(), _ticks()
            await cold.ask()
            idle = _idle(ticks, _ticks())
            await cold.look()
            sent = await origin.sent_bytes() - before
    finally:
        shutil.rmtree(root, ignore_errors=True)
    seconds = {m.name: float(m.last["pulls"][0]["seconds"]) for m in cold.members}
    return Run(seconds, sent / manifest.unique_bytes, idle)


def _ticks() -> list[int]:
    """What all processors together have done since the start: user, nice, system, idle, …"""
    with open("/proc/stat", encoding="ascii") as stat:
        return [int(word) for word in stat.readline().split()[1:9]]


def _idle(before: list[int], after: list[int]) -> float:
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return spent[3] / max(1, sum(spent))


def _members(scenario: Scenario, root: Path, net: Network, nic: float) -> list[Member]:
    rates = [nic] * scenario.nodes.count
    for fault in scenario.faults:
        assert fault.kind == "nic" and fault.at_s == 0.0 and fault.first >= 0, (
            "only what a link can be set to beforehand"
        )
        for i in range(fault.first, fault.first + fault.nodes):
            rates[i] *= fault.factor
    names = [f"node-{i:04}" for i in range(scenario.nodes.count)]
    ports = free_ports(len(names))
    return [
        Member(name, port, root / name, net.add(name, rate))
        for name, port, rate in zip(names, ports, rates, strict=True)
    ]


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def compare(simulated: Sequence[Run], measured: Sequence[Run]) -> dict[str, float]:
    """Medians of both, and by how many percent the measured ones are above: of the last node, and of the worst node."""
    sides = {"simulated": simulated, "measured": measured}
    row: dict[str, float] = {}
    nodes = {side: {n: statistics.median(r.seconds[n] for r in runs) for n in runs[0].seconds}
             for side, runs in sides.items()}  # fmt: skip
    for side, runs in sides.items():
        lasts = [run.last_s for run in runs]
        row[f"{side}_last_s"] = round(statistics.median(lasts), 2)
        row[f"{side}_last_from_s"], row[f"{side}_last_to_s"] = round(min(lasts), 2), round(max(lasts), 2)
        row[f"{side}_median_s"] = round(statistics.median(nodes[side].values()), 2)
        row[f"{side}_copies"] = round(statistics.median(run.origin_copies for run in runs), 3)
    row["last_percent"] = round(100 * (row["measured_last_s"] / row["simulated_last_s"] - 1), 1)
    row["median_percent"] = round(100 * (row["measured_median_s"] / row["simulated_median_s"] - 1), 1)
    row["idle_percent"] = round(100 * statistics.median(run.idle for run in measured), 1)
    off = {n: 100 * (s / nodes["simulated"][n] - 1) for n, s in nodes["measured"].items()}
    row["worst_node_percent"] = round(max(off.values(), key=abs), 1)
    return row


if __name__ == "__main__":
    main()

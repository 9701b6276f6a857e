"""Owns what a run is worth: the bound, the ratios, the check of the accounts, and the JSON that others rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bdn.ports import Tier
from bdn.sim.run import Outcome
from bdn.sim.scenario import Expect, Scenario
from bdn.sim.world import GBIT


class AccountsDiffer(AssertionError):
    """The ledgers' bytes are not the links' bytes: a promise is broken, and no figure of the run can be trusted."""


def check_accounts(outcome: Outcome) -> None:
    """Every byte that a link carried is in exactly one node's ledger, under the right tier, and in its sender's."""
    sent = sum(ledger.sent_bytes for ledger in outcome.ledgers.values())
    if sent != outcome.world.trace.carried[Tier.PEER]:
        carried = outcome.world.trace.carried[Tier.PEER]
        raise AccountsDiffer(f"the senders' ledgers hold {sent} bytes, the links between nodes carried {carried}")
    for tier in (Tier.PEER, Tier.ORIGIN):
        booked = sum(ledger.read_from(tier) for ledger in outcome.ledgers.values())
        carried = outcome.world.trace.carried[tier]
        if booked != carried:
            raise AccountsDiffer(f"{tier}: the ledgers hold {booked} bytes, the links carried {carried}")


def bound_seconds(scenario: Scenario, outcome: Outcome) -> float:
    """What no protocol can beat: from the first start to the last completion if only rates counted.

    The largest of: one copy out of the origin (unless a node has it); the slowest puller's own NIC and disk; and all
    copies together through all the upload links. Latencies count once: the origin's first byte.
    """
    if not outcome.started:
        return 0.0
    first = min(outcome.started.values())
    ends = [first]
    copies: dict[int, int] = {}
    for (number, model), start in outcome.started.items():
        if (number, model) in outcome.finished:
            size = outcome.models[model].unique_bytes
            copies[model] = copies.get(model, 0) + 1
            ends.append(start + size / _rate(scenario, number))
    total = sum(outcome.models[m].unique_bytes * n for m, n in copies.items())
    cold = 0 if scenario.pulls.warm else sum(outcome.models[m].unique_bytes for m in copies)
    if cold:
        ends.append(first + scenario.origin.first_byte_ms / 1e3 + cold / (scenario.origin.gbit * GBIT))
    up = scenario.nodes.nic_gbit * GBIT * scenario.nodes.count
    ends.append(first + (total - cold) / up)
    return max(ends) - first


def _rate(scenario: Scenario, number: int) -> float:
    nic, disk = scenario.nodes.nic_gbit * GBIT, scenario.nodes.disk_gb_s * 1e9
    for fault in scenario.faults:
        first = scenario.nodes.count - fault.nodes if fault.first < 0 else fault.first
        if fault.at_s == 0.0 and not fault.for_s and first <= number < first + fault.nodes:
            nic *= fault.factor if fault.kind == "nic" else 1.0
            disk *= fault.factor if fault.kind == "disk" else 1.0
    return min(nic, disk)


@dataclass(frozen=True)
class Figures:
    """One plan's run in numbers."""

    origin_copies: float
    seconds: float
    ratio_to_bound: float
    busiest_upload_ratio: float
    median_s: float
    p95_s: float
    started: int
    finished: int
    failed: int

    @staticmethod
    def of(outcome: Outcome, bound: float) -> Figures:
        took = sorted(end - outcome.started[key] for key, end in outcome.finished.items())
        ups = [m.up.carried for m in outcome.world.machines if m.life]
        mean = sum(ups) / len(ups) if ups else 0.0
        return Figures(
            origin_copies=round(outcome.origin_copies, 4),
            seconds=round(outcome.seconds, 4),
            ratio_to_bound=round(outcome.seconds / bound, 4) if bound else 0.0,
            busiest_upload_ratio=round(max(ups) / mean, 3) if mean else 0.0,
            median_s=round(_at(took, 0.5), 4),
            p95_s=round(_at(took, 0.95), 4),
            started=len(outcome.started),
            finished=len(took),
            failed=len(outcome.failed) + outcome.unfinished,
        )

    @property
    def json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def report(scenario: Scenario, seed: int, ours: Outcome, rivals: dict[str, Outcome]) -> dict[str, object]:
    """The JSON object that `bdn simulate --json` ends with."""
    bound = bound_seconds(scenario, ours)
    model = ours.model_bytes or 1
    result: dict[str, object] = {
        "scenario": scenario.name,
        "seed": seed,
        **Figures.of(ours, bound).json,
        "bound_seconds": round(bound, 4),
        "avoidable_origin_reads": len(ours.world.origin.avoidable),
        "bytes_by_tier": {t.value: ours.world.trace.carried[t] for t in (Tier.PEER, Tier.ORIGIN)},
        "zones": scenario.nodes.zones,
        "cross_zone_copies": round(ours.world.cross_zone_bytes / model, 4),
        "coordinator_messages": ours.world.told_messages,
        "coordinator_bytes": ours.world.told_bytes,
        "models": _by_model(scenario, ours),
        "alternatives": {name: Figures.of(outcome, bound).json for name, outcome in rivals.items()},
        "trace_digest": ours.world.trace.digest(),
    }
    late = [f for f in scenario.faults if f.at_s > ours.ended_s]
    result["after_the_end"] = [f"{f.kind} at {f.at_s:g} s: all was over at {ours.ended_s:.4g} s" for f in late]
    result["missed"] = missed(scenario.expect, result)
    return result


FIGURES = (
    "origin_copies", "ratio_to_bound", "busiest_upload_ratio", "cross_zone_copies", "median_s",
    "avoidable_origin_reads", "failed",
)  # fmt: skip


def missed(expect: Expect, result: Mapping[str, object]) -> list[str]:
    """Each expectation that the run did not keep, and by how much. Empty: all were kept."""
    limits: list[tuple[str, object, float | None]] = [
        (name, result[name], getattr(expect, f"{name}_max"))
        for name in FIGURES
    ]
    models = result["models"]
    assert isinstance(models, dict)
    for name, most in expect.model_seconds_max.items():
        limits.append((f"seconds of model {name}", models.get(name, {}).get("seconds"), most))
    broken = ["no pull came to its end"] if result["started"] and not result["finished"] else []
    for what, got, limit in limits:
        if limit is None:
            continue
        if not isinstance(got, int | float):
            broken.append(f"{what} was to be at most {limit:g}, and there is no such figure")
        elif got > limit:
            broken.append(f"{what} is {got:g}, at most {limit:g} was expected: {got - limit:.4g} over")
    return broken


def _by_model(scenario: Scenario, outcome: Outcome) -> dict[str, dict[str, float]]:
    found = {}
    for i, model in enumerate(scenario.models):
        starts = [at for (_, m), at in outcome.started.items() if m == i]
        ends = [at for (_, m), at in outcome.finished.items() if m == i]
        if starts and ends:
            found[model.seed] = {"finished": len(ends), "seconds": round(max(ends) - min(starts), 4)}
    return found


def table(result: dict[str, object]) -> str:
    """The report for people: one line per plan."""
    rows = [("", "origin", "last node", "median", "x bound", "busiest up", "finished", "failed")]
    alternatives = result["alternatives"]
    assert isinstance(alternatives, dict)
    for name, figures in [("bdn", result), *alternatives.items()]:
        rows.append(
            (
                name, f"{figures['origin_copies']:.3f}x", f"{figures['seconds']:.2f} s", f"{figures['median_s']:.2f} s",
                f"{figures['ratio_to_bound']:.2f}", f"{figures['busiest_upload_ratio']:.2f}x mean",
                f"{figures['finished']} of {figures['started']}", str(figures["failed"]),
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    models, late = result["models"], result["after_the_end"]
    assert isinstance(models, dict) and isinstance(late, list)
    if len(models) > 1:
        lines += [f"model {name}: last of {m['finished']} after {m['seconds']:.2f} s" for name, m in models.items()]
    if result["zones"] != 1:
        lines.append(f"between zones {result['cross_zone_copies']:.3f} copies")
    lines += [f"of no effect: {what}" for what in late]
    return "\n".join([*lines, f"lower bound {result['bound_seconds']} s, trace {str(result['trace_digest'])[:16]}"])


def _at(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0

"""Owns the table of what was aimed at: each target, what the recorded run gave, and the machine's own limit in that
run. Pure: results in, rows out; `report.py` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
BARE = "ours (bare loop)"


@dataclass(frozen=True)
class Target:
    what: str
    aim: str
    measured: float
    most: float
    unit: str = ""
    limit: str = ""
    """What the machine, or whoever does only this one thing, needs for it in the same run."""
    where: str = ""


def targets(results: Results) -> list[Target]:
    parts = {
        "origin_to_disk": origin_to_disk, "peer_to_disk": peer_to_disk, "mirror": mirror,
        "mirror_large": mirror_large, "small_files": small_files, "small_files_far": small_files, "delta": delta,
        "load": load, "swarm": swarm, "flatness": flatness,
    }  # fmt: skip
    return [target for name, of in parts.items() if name in results for target in of(results[name])]


def table(results: Results) -> list[list[str]]:
    rows = [["target", "aim", "measured", "limit measured beside it", "met"]]
    for t in targets(results):
        met = "yes" if t.measured <= t.most else "**no**"
        rows.append([f"{t.what} (`{t.where}`)", t.aim, f"{t.measured:.4g}{t.unit}", t.limit, met])
    return rows


def origin_to_disk(line: Mapping[str, Any]) -> list[Target]:
    ours, variants, where = line["ours"], line["variants"], "origin_to_disk"
    bare, peers = variants[BARE], [p for p in line["peers"].values() if "failed" not in p]
    cheapest = min(p["core_s_per_gb"] for p in peers)
    fastest = min(p["wall_s"] for p in peers)
    found = [
        Target("origin to disk, verified, core-s/GB", "0.50", ours["core_s_per_gb"], 0.50,
               limit=f"bare loop {bare['core_s_per_gb']}", where=where),
        Target("of the cheapest peer's, none of which verifies", "0.95 x", line["ratio_cpu_to_best_peer"], 0.95, " x",
               f"bare loop {bare['core_s_per_gb'] / cheapest:.2f} x", where),
        Target("wall time of the fastest peer's, which does not sync", "1.0 x", line["ratio_wall_to_best_peer"], 1.0,
               " x", f"bare loop {bare['wall_s'] / fastest:.2f} x", where),
        Target("of the fastest peer's that syncs", "1.0 x", line["ratio_wall_to_best_synced_peer"], 1.0, " x",
               where=where),
    ]  # fmt: skip
    least = variants.get("ours (bare loop, unverified)")
    found.append(
        Target("unverified, core-s/GB", "0.30", variants["ours (unverified)"]["core_s_per_gb"], 0.30,
               limit=f"bare loop without hash {least['core_s_per_gb']}" if least else "", where=where)
    )  # fmt: skip
    return found


def peer_to_disk(line: Mapping[str, Any]) -> list[Target]:
    ours, where = line["ours"], "peer_to_disk"
    bare = line["variants"].get(BARE, {})
    client, server = (bare.get(k) for k in ("core_s_per_gb", "server_core_s_per_gb"))
    return [
        Target("peer to disk, verified, core-s/GB of the client", "0.55", ours["core_s_per_gb"], 0.55,
               limit=f"bare loop {client}" if client else "", where=where),
        Target("… of the server", "0.12", ours["server_core_s_per_gb"], 0.12,
               limit=f"nginx {server} to the bare loop" if server else "", where=where),
    ]  # fmt: skip


def mirror(line: Mapping[str, Any]) -> list[Target]:
    ours, rclone = line["ours"], line["peers"]["rclone"]
    limit = ""
    if "server_core_s_per_gb" in ours:
        cores = line["machine"]["cores"]
        least = (ours["core_s_per_gb"] + ours["server_core_s_per_gb"]) * line["gb"] / cores / rclone["wall_s"]
        limit = f"{least:.2f} x if no core were idle: the service takes {ours['server_core_s_per_gb']:.3g} core-s/GB"
    return [
        Target("mirror into S3, hashed: wall time of rclone's plain copy", "1.0 x", line["ratio_wall_to_rclone"], 1.0,
               " x", limit, "mirror")
    ]  # fmt: skip


def mirror_large(line: Mapping[str, Any]) -> list[Target]:
    [small] = line["variants"].values()
    ratio = line["ours"]["core_s_per_gb"] / small["core_s_per_gb"]
    name = f"mirror one file of {line['gb']:g} GB: core-s/GB of one of 1 GB's"
    return [Target(name, "1.1 x", ratio, 1.1, " x", where="mirror_large")]


def small_files(line: Mapping[str, Any]) -> list[Target]:
    peers = {n: p for n, p in line["peers"].items() if "failed" not in p}
    best = min(p["wall_s"] for p in peers.values())
    bare = line["variants"].get("ours (bare files)")
    limit = ""
    if bare:
        limit = f"making the files {bare['wall_s'] / best:.2f} x, {bare['unsynced_s'] / best:.2f} x unsynced"
    where = line["workload"]
    far = " 10 ms away" if where.endswith("far") else ""
    return [
        Target(f"5,000 small files{far}: wall time of the best peer's", "0.2 x", line["ratio_wall_to_best_peer"], 0.2,
               " x", limit, where)
    ]  # fmt: skip


def delta(line: Mapping[str, Any]) -> list[Target]:
    name = "bytes moved by a fine-tune of 5 % of the tensors"
    return [Target(name, "≈ 5 %", 100 * line["moved_share"], 5.5, " %", where="delta")]


def load(line: Mapping[str, Any]) -> list[Target]:
    return [
        Target(f"load into tensors, {state}: wall time of the fastest loader's", "1.0 x",
               part["ratio_wall_to_best_peer"], 1.0, " x", where="load")
        for state, part in (("cold", line), ("hot", line["hot"]))
    ]  # fmt: skip


def swarm(line: Mapping[str, Any]) -> list[Target]:
    ours = line["ours"]
    return [
        Target("8 nodes, origin at 250 MB/s: its own time for one copy", "1.6 x", line["ratio_to_one_copy"], 1.6, " x",
               where="swarm"),
        Target("… core-s per node-GB", "0.9", ours["core_s_per_gb"], 0.9, where="swarm"),
    ]  # fmt: skip


def flatness(line: Mapping[str, Any]) -> list[Target]:
    costs = {n.removeprefix("ours (").removesuffix(")"): row["core_s_per_gb"] for n, row in line["variants"].items()}
    sizes = [line["ours"]["core_s_per_gb"], *(c for n, c in costs.items() if n.endswith(" GB"))]
    counts = [c for n, c in costs.items() if n.endswith(" peers")]
    return [
        Target("cost of a GB from 1 to 20 GB", "± 10 %", _spread(sizes), 10.0, " %", where="flatness"),
        Target("… from 1 to 16 peers", "± 10 %", _spread(counts), 10.0, " %", where="flatness"),
        Target("peak memory of a pull of 20 GB", "300 MB", line["ours"]["rss_mb"], 300.0, " MB", where="flatness"),
    ]  # fmt: skip


def _spread(values: list[float]) -> float:
    """How far the furthest is from the middle of the range, in per cent."""
    middle = (max(values) + min(values)) / 2
    return 100 * (max(values) - middle) / middle

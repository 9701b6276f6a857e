"""Writes the tables of benchmarks/README.md from benchmarks/results/: `python benchmarks/report.py [--check]`.

What stands between two markers is generated; the words around it are people's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.targets import table  # noqa: E402

BEGIN, END = "<!-- tables: written by benchmarks/report.py -->", "<!-- end of tables -->"
TARGETS, TARGETS_END = "<!-- targets: written by benchmarks/report.py -->", "<!-- end of targets -->"
RATIOS = (
    "ratio_wall_to_best_peer", "ratio_cpu_to_best_peer", "ratio_wall_to_best_synced_peer", "ratio_cpu_to_bare_loop",
    "ratio_wall_to_rclone", "ratio_to_one_copy", "ratio_origin_to_best_peer", "moved_share",
)  # fmt: skip
EXTRA = ("moved_gb", "origin_copies", "uploaded_gb", "read_p50_ms", "read_p99_ms")
COLUMNS = ("GB/s", "core-s/GB", "server core-s/GB", "peak MB", "verified")


def main() -> None:
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    new = _between(text, BEGIN, END, tables())
    new = _between(new, TARGETS, TARGETS_END, aimed_at())
    if "--check" in sys.argv:
        sys.exit(0 if new == text else "benchmarks/README.md is stale: run python benchmarks/report.py")
    readme.write_text(new, encoding="utf-8")


def _between(text: str, begin: str, end: str, what: str) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{what}\n{end}{after}"


def results() -> dict[str, dict[str, Any]]:
    """The recorded lines, by workload."""
    lines = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / "results").glob("*.json"))]
    return {line["workload"]: line for line in lines}


def aimed_at() -> str:
    head, *rows = table(results())
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows), ""])


def tables() -> str:
    parts = []
    for line in results().values():
        if line.get("workload") == "chunking":
            parts.append(chunking(line))
        elif line.get("workload") == "sim_validation":
            parts.append(validation(line))
        elif line.get("workload") == "load":
            parts.append(load(line))
        elif "ours" in line and "peers" in line:
            parts.append(workload(line))
    return "\n".join(parts)


def workload(line: dict[str, Any]) -> str:
    rows = {"**ours**": line["ours"], **line.get("variants", {}), **line["peers"]}
    extra = sorted({k for r in rows.values() for k in r if k in EXTRA})
    head = ["", *COLUMNS, *extra]
    out = [f"### {line['workload']}\n", _origin(line), "", _row(head), _row(["---"] * len(head))]
    for name, row in sorted(rows.items(), key=lambda item: float(item[1].get("core_s_per_gb", 1e9))):
        if "failed" in row:
            out.append(_row([name, f"did not run: {row['failed'][:80]}", *[""] * (len(head) - 2)]))
            continue
        cells = [row["gb_per_s"], row["core_s_per_gb"], row.get("server_core_s_per_gb", ""), row["rss_mb"]]
        out.append(_row([name, *cells, "yes" if row["verified"] else "no", *(row.get(k, "") for k in extra)]))
    ratios = [f"{k.replace('_', ' ')} {line[k]}" for k in RATIOS if line.get(k) is not None]
    return "\n".join([*out, "", f"{'; '.join(ratios)}.\n" if ratios else ""])


def load(line: dict[str, Any]) -> str:
    columns = ("load_s", "wall_s", "core_s_per_gb")
    head = ["", *(f"{state} {c.replace('_', ' ')}" for state in ("cold", "hot") for c in columns)]
    out = ["### load\n", _origin(line), "", _row(head), _row(["---"] * len(head))]
    cold, hot = ({"**ours**": part["ours"], **part["peers"]} for part in (line, line["hot"]))
    for name in sorted(cold, key=lambda n: float(cold[n]["wall_s"])):
        out.append(_row([name, *(rows[name][c] for rows in (cold, hot) for c in columns)]))
    ratios = "; ".join(f"{s} ratio wall to best peer {p['ratio_wall_to_best_peer']}" for s, p in
                       (("cold", line), ("hot", line["hot"])))  # fmt: skip
    return "\n".join([*out, "", f"{ratios}.\n"])


def chunking(line: dict[str, Any]) -> str:
    ways, pairs = line["pairs"], list(line["truly_new"])
    head = ["cut", "chunks", "manifest B/GB", "busiest of 8", *pairs]
    out = ["### chunking\n", _origin(line), "", _row(head), _row(["---"] * len(head))]
    for way, row in ways.items():
        facts = [row["chunks"], row["manifest_bytes_per_gb"], row["busiest_owner_of_8"]]
        shares = [_share(row[p]) for p in pairs]
        out.append(_row([f"**{way}**" if way == line["chosen"] else way, *facts, *shares]))
    out.append(_row(["truly new", "", "", "", *(_share(line["truly_new"][p]) for p in pairs)]))
    return "\n".join([*out, ""])


def validation(line: dict[str, Any]) -> str:
    head = ["scenario", "last node, simulated", "measured", "apart", "median node, simulated", "measured", "apart",
            "worst node apart", "origin copies, simulated", "measured", "machine idle"]  # fmt: skip
    m = line["machine"]
    about = (
        f"{m['cores']} cores of {m['cpu']}, kernel {m['kernel']}, {line['network']}, load {m['load_1m']}, {m['date']}, "
        f"commit {line['commit']}, seed {line['seed']}; medians of {line['seeds']} simulated and {line['rounds']} "
        "measured runs, in brackets their range."
    )
    out = ["### sim_validation\n", about, "", _row(head), _row(["---"] * len(head))]
    for name, row in line["scenarios"].items():
        last = [
            f"{row[f'{side}_last_s']} s ({row[f'{side}_last_from_s']} to {row[f'{side}_last_to_s']})"
            for side in ("simulated", "measured")
        ]
        median = [f"{row[f'{side}_median_s']} s" for side in ("simulated", "measured")]
        apart = [f"{row[f'{what}_percent']:+.1f} %" for what in ("last", "median", "worst_node")]
        idle = f"{row['idle_percent']:g} %" if "idle_percent" in row else ""  # Earlier runs did not look.
        rest = [row["simulated_copies"], row["measured_copies"], idle]
        out.append(_row([name, *last, apart[0], *median, *apart[1:], *rest]))
    return "\n".join([*out, ""])


def _origin(line: dict[str, Any]) -> str:
    m = line["machine"]
    return (
        f"{line['gb']:g} GB, {m['cores']} cores of {m['cpu']}, kernel {m['kernel']}, {m['congestion']}, "
        f"load {m['load_1m']}, {m['date']}, commit {line['commit']}, seed {line['seed']}."
    )


def _row(cells: list[Any]) -> str:
    return f"| {' | '.join(str(c) for c in cells)} |"


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


if __name__ == "__main__":
    main()

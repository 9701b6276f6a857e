"""Every benchmark runs, and its last line is the one JSON object that scripts read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = ("origin_to_disk", "swarm", "sim_validation")
ONLY = {"origin_to_disk": "ours,ours (bare loop),ours (unverified)"}
SLOW = ("peer_to_disk", "serve", "small_files", "delta", "mirror", "chunking", "flatness")


@pytest.mark.parametrize("workload", [*QUICK, *(pytest.param(w, marks=pytest.mark.slow) for w in SLOW)])
def test_a_smoke_run_ends_with_the_line_that_scripts_read(workload: str, tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / f"bench_{workload}.py"
    command = [sys.executable, str(script), "--smoke", "--json", "--only", ONLY.get(workload, "ours")]
    env = {**os.environ, "BDN_BENCH_DIR": str(tmp_path), "BDN_BENCH_NETNS": "no"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["workload"] == workload
    if workload == "chunking":
        assert set(line["pairs"]) and line["chosen"]
        return
    if workload == "sim_validation":
        [row] = line["scenarios"].values()
        assert row["simulated_copies"] == row["measured_copies"] == 1.0
        assert row["measured_last_s"] > 0 and row["simulated_last_s"] > 0
        return
    assert {"machine", "commit", "ours", "peers", "ratio_wall_to_best_peer", "ratio_cpu_to_best_peer"} <= set(line)
    assert not [row for row in (line["ours"], *line["variants"].values()) if "failed" in row], line
    assert 1 + len(line["variants"]) >= len(ONLY.get(workload, "ours").split(","))
    assert line["ours"]["core_s_per_gb"] > 0 and line["ours"]["wall_s"] > 0 and line["ours"]["rss_mb"] > 0

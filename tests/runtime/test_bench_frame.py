"""The frame benchmark runs anywhere and ends with one line that a machine can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_smoke_prints_one_json_line_with_where_and_what(small_checkpoint: Path) -> None:
    command = [sys.executable, "benchmarks/bench_frame.py", "--smoke", "--checkpoint", str(small_checkpoint)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=300)
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["workload"] == "frame" and line["commit"] and line["cpu"] and line["date"]
    assert line["frames"] == 5 and 0 < line["ours_ms_min"] <= line["ours_ms_p50"]

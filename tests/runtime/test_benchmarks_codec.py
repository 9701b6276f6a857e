"""The runtime's benchmarks run, and their last line is the promised JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.mark.parametrize(("name", "keys"), [("load", {"ours", "hot", "gb", "missing"}), ("mimi", {"ours", "lanes"})])
def test_smoke(name: str, keys: set[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / f"bench_{name}.py"), "--smoke", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert keys | {"workload", "machine", "commit"} <= found.keys()

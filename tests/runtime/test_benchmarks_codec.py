"""The runtime's benchmarks run, and their last line is the promised JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


KEYS = {
    "load": {"ours", "hot", "gb", "missing", "machine"},
    "mimi": {"ours", "lanes", "machine"},
    "products": {"formats", "step_ms", "cpu"},
    "long": {"step_ms", "rss_mib", "over_young", "cpu"},
}


@pytest.mark.parametrize(("name", "keys"), KEYS.items(), ids=KEYS)
def test_smoke(name: str, keys: set[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / f"bench_{name}.py"), "--smoke", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert keys | {"workload", "commit"} <= found.keys()

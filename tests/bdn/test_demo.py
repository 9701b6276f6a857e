"""The main job as a person runs it: real processes, and a receipt whose numbers are the origin's own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers import ADMIN, S3Service

MODEL_BYTES = 300_000_000


def environment(**more: str) -> dict[str, str]:
    """Nothing of this machine's own settings, one thread a process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDN_", "AWS_", "HF_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def demo(work: Path, *argv: str, **env: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bdn", "demo", "--work", str(work), "--json", *argv]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**env), timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    receipt: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert receipt == json.loads(Path(receipt["report_json"]).read_text()), "the file is the same account"
    return receipt


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of 300 MB: shards, small files, subfolders. Seeded, so that a failure can be repeated."""
    root, draw = tmp_path_factory.mktemp("large") / "large-model", random.Random(20261130)
    (root / "voices").mkdir(parents=True)
    for i, size in enumerate((120, 90, 60, 29)):
        (root / f"model-{i:05d}.safetensors").write_bytes(draw.randbytes(size * 1_000_000))
    for i in range(100):
        (root / "voices" / f"voice-{i:03d}.safetensors").write_bytes(draw.randbytes(10_500))
    (root / "config.json").write_text('{"model_type": "none"}')
    return root


def test_a_300_mb_model_costs_one_copy_cold_and_none_warm(large: Path, tmp_path: Path) -> None:
    r = demo(tmp_path, "--model", str(large), "--no-speech", "--quiet")
    assert r["model"]["bytes"] > MODEL_BYTES and r["model"]["files"] == 105
    assert r["cold"]["origin_copies"] == 1.0 and r["warm"]["origin_copies"] == 0.0
    assert r["mirror"]["again_bytes_stored"] == 0
    assert r["model"]["ref"] == "large-model:latest", "one's own model is not called the demo's"
    text = Path(r["report_html"]).read_text(encoding="utf-8")
    assert "<h1>large-model:latest onto 4 nodes</h1>" in text and "mirror again" in text
    assert len(r["agents"]) == 4 and all(a["state"] == "ready" for a in r["agents"])
    size = r["model"]["bytes"]
    moved = r["cold"]["bytes_by_tier"]
    wasted = sum(sum(node["wasted_by_tier"].values()) for node in r["agents"])  # On a busy machine a peer may be late.
    assert moved["origin"] + moved["peer"] == 4 * size + wasted, "the origin's own count and the nodes' ledgers agree"
    for node in (*r["agents"], *r["warm"]["agents"]):
        # A chunk fetched for another node and then found here counts for this node's own tier a second time.
        came = {source: n for source, n in node["bytes_by_source"].items() if source != node["name"]}
        assert sum(came.values()) == size, "the ledger adds up to the model on every node"
    assert {"mirror", "pull", "verify", "warm_pull", "total"} <= r["phases_s"].keys()


def test_a_node_killed_while_it_pulls_costs_little_and_stops_nobody(large: Path, tmp_path: Path) -> None:
    """At 120 MB/s the origin takes 2.5 s for one copy: time enough to kill a node that has a quarter of it."""
    r = demo(tmp_path, "--model", str(large), "--no-speech", "--quiet", "--no-warm", "--kill",
             "--origin-bytes-per-s", "1.2e8")  # fmt: skip
    assert sorted(a["state"] for a in r["agents"]) == ["killed", "ready", "ready", "ready"]
    assert 1.0 <= r["cold"]["origin_copies"] <= 1.30
    assert r["warm"] is None and "SIGKILL" in r["notes"][0]


def test_speech_is_held_back_until_the_weights_are_there(tmp_path: Path) -> None:
    r = demo(tmp_path, "--nodes", "2", "--no-warm", "--text", "Hello there.", "--quiet")
    for node in r["agents"]:
        at = {s["phase"]: s for s in node["timeline"]}
        assert at["start"]["start_s"] >= at["pull"]["end_s"] > 0, "no process before the weights"
        assert at["first audio"]["end_s"] > at["load"]["end_s"]
        with wave.open(node["wav"]) as sound:
            assert sound.getframerate() == 24000 and sound.getnframes() > 0
    spans = [s for n in r["agents"] for s in n["timeline"]]
    assert r["first_audio_s"] == max(s["end_s"] for s in spans if s["phase"] == "first audio")
    assert r["wav"] == r["agents"][0]["wav"] and {"start", "load", "first_audio"} <= r["phases_s"].keys()
    page = Path(r["report_html"]).read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "data:audio/wav" in page


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small-model").mkdir()
    (tmp_path / "small-model" / "weights.bin").write_bytes(random.Random(1).randbytes(5_000_000))
    return tmp_path / "small-model"


def test_an_s3_bucket_serves_as_the_origin(small: Path, tmp_path: Path, s3: S3Service) -> None:
    r = demo(tmp_path / "work", "--model", str(small), "--no-speech", "--quiet", "--nodes", "2",
             "--origin", s3.place(), "--endpoint", s3.endpoint, "--region", "us-east-1",
             AWS_ACCESS_KEY_ID=ADMIN[0], AWS_SECRET_ACCESS_KEY=ADMIN[1])  # fmt: skip
    assert r["cold"]["origin_copies"] == 1.0 and r["warm"]["origin_copies"] == 0.0


def descendants(mark: str) -> list[int]:
    """Living processes whose command line holds the mark."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        with contextlib.suppress(psutil.Error):
            if process.info["status"] != psutil.STATUS_ZOMBIE and mark in " ".join(process.info["cmdline"] or ()):
                found.append(process.pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(small: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The origin is so slow that the pull cannot end: the signal always comes in the middle of it."""
    work = tmp_path / "work"
    command = [sys.executable, "-m", "bdn", "demo", "--work", str(work), "--model", str(small), "--no-speech",
               "--nodes", "2", "--origin-bytes-per-s", "10000"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        seen = next((line for line in process.stderr if line.startswith("node-")), "")
        assert seen, "the pull began"
        process.send_signal(number)
        process.wait(60)
    assert process.returncode == (-9 if number is signal.SIGKILL else 130)
    until = time.monotonic() + 20
    while descendants(str(work)) and time.monotonic() < until:
        time.sleep(0.05)  # The kernel ends orphans; only a process that stays is a failure.
    assert descendants(str(work)) == []


def test_ctrl_c_while_the_agents_start_says_nothing_of_our_insides(small: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = [sys.executable, "-m", "bdn", "demo", "--work", str(work), "--model", str(small), "--no-speech",
               "--nodes", "2", "--quiet"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        while not list((work / "run" / "nodes").glob("node-*/**/*")) and process.poll() is None:
            time.sleep(0.01)  # An agent has its store, and the demo is asking whether it listens yet.
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said and "never retrieved" not in said, said


def test_a_demo_that_would_leave_nobody_alive_is_refused(small: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bdn", "demo", "--work", str(tmp_path), "--model", str(small), "--nodes", "1"]
    done = subprocess.run([*command, "--kill"], capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and "--nodes 2 or more" in done.stderr


def test_one_demo_at_a_time_in_a_directory_and_bad_input_is_one_line(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "bdn", "demo", "--work", str(work)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 1
    assert done.stderr == f"bdn demo: another demo runs in {work}: wait for it, or name another --work\n"

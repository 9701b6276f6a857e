"""The command itself, with the real small model: ready, speaks, repeats itself, drains on SIGTERM."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.bench.soak import alike
from tests.serve.harness import run

gradium = pytest.importorskip("gradium", reason="the gradium package is not installed (pip install -e '.[dev]')")
TEXT = "Hello there, this takes a while."
ENV = {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"], "PYTHONPATH": "."}


@dataclass
class Process:
    popen: subprocess.Popen[str]
    facts: dict[str, object]

    @property
    def url(self) -> str:
        return str(self.facts["url"])

    def client(self, key: str = "right") -> gradium.GradiumClient:
        return gradium.GradiumClient(base_url=f"{self.url}/api/", api_key=key)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    from runtime.make_checkpoint import make

    directory = tmp_path_factory.mktemp("served")
    make(directory / "model", "small", seed=5)
    digest = hashlib.sha256(b"right").hexdigest()
    (directory / "keys.yaml").write_text(f"keys:\n- {{name: tests, sha256: {digest}}}\n")
    command = [
        sys.executable, "-m", "runtime.cli", "serve", "--model", str(directory / "model"), "--port", "0",
        "--lanes", "2", "--streams-max", "2", "--keys", str(directory / "keys.yaml"), "--json",
    ]  # fmt: skip
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENV)
    assert popen.stdout
    line = popen.stdout.readline()  # one fact, once it is warm
    assert line, "the server ended before it was ready"
    yield Process(popen, json.loads(line))
    popen.kill()
    popen.wait()


def test_it_says_what_it_measured_once_it_is_ready(process: Process) -> None:
    assert process.facts["capacity"] == 2 and float(str(process.facts["step_fixed_ms"])) > 0


def test_the_same_request_gives_the_same_sound_alone_and_in_company(process: Process) -> None:
    async def test() -> None:
        setup = {"output_format": "pcm", "json_config": {"seed": 4}}
        alone = await process.client().tts(setup=dict(setup), text="Hello there.")
        both = await asyncio.gather(
            process.client().tts(setup=dict(setup), text="Hello there."),
            process.client().tts(setup=setup | {"json_config": {"seed": 5}}, text="Good morning."),
        )
        assert alone.raw_data and alike(alone.raw_data, both[0].raw_data)
        assert not alike(alone.raw_data, both[1].raw_data)
        assert [t.text for t in alone.text_with_timestamps] == ["Hello", "there."]

    run(test)


def test_a_wrong_key_is_told_so(process: Process) -> None:
    async def test() -> None:
        with pytest.raises(Exception, match="401"):
            await process.client("wrong").tts(setup={}, text="x")

    run(test)


def test_the_bench_measures_it(process: Process) -> None:
    command = [
        sys.executable, "-m", "runtime.cli", "bench", "ttfa", "--url", process.url, "--key", "right", "--count", "1",
        "--rate", "5", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=True)
    facts = json.loads(done.stdout)
    assert facts["heard"] == 1 and facts["first_sound_ms"]["p50"] > 0 and facts["connection"] == "warm"
    server = facts["server"]
    assert server["model_s"] > 0 and server["network_over_model"] >= 0 and server["coding_ms_per_audio_s"] > 0


def test_sigterm_lets_the_call_finish_and_then_ends_with_0(process: Process) -> None:
    async def test() -> None:
        stream = await process.client().tts_stream(setup={"output_format": "pcm"}, text=TEXT)
        sound = stream.iter_bytes()
        await anext(sound)
        process.popen.send_signal(signal.SIGTERM)
        async for _ in sound:
            pass
        assert [t.text for t in stream._text_with_timestamps] == TEXT.split(), "the call was spoken to its end"

    run(test)
    assert process.popen.wait(timeout=60) == 0


def test_without_keys_it_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runtime.cli", "serve", "--model", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=False)
    assert done.returncode == 2 and "--keys" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "runtime.cli", "serve", "--keyless", "true", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=False)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1

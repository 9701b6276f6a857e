"""Starts N agents, lets them pull at once, and reports for all of them: `together ORIGIN_URL N BYTES DIR [flags]`."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.rounds import ROOT
from benchmarks.servers import free_port


def main() -> None:
    url, count, model_bytes, out, *extra = sys.argv[1:]
    names = [f"node-{i}" for i in range(int(count))]
    specs = ",".join(f"{name}=127.0.0.1:{free_port()}" for name in names)
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ours", "agent", url, out, name, specs, *extra],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for name in names
    ]  # fmt: skip
    try:
        lines = [_ask(agent, None) for agent in agents]
        assert set(lines) == {"ready"}, lines
        for agent in agents:
            assert agent.stdin is not None
            agent.stdin.write("go\n")
            agent.stdin.flush()
        done = [json.loads(_ask(agent, None)) for agent in agents]
        cpu = [json.loads(_ask(agent, "stop\n"))["cpu_s"] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    report = {
        "wall_s": max(d["wall_s"] for d in done), "cpu_s": sum(cpu),
        "origin_copies": sum(d["origin_bytes"] for d in done) / int(model_bytes),
    }  # fmt: skip
    print(json.dumps({"measured": report}), flush=True)


def _ask(agent: subprocess.Popen[str], word: str | None) -> str:
    assert agent.stdin is not None and agent.stdout is not None
    if word is not None:
        agent.stdin.write(word)
        agent.stdin.flush()
    return agent.stdout.readline().strip()


if __name__ == "__main__":
    main()

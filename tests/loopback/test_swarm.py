"""Real processes on this machine against an origin that counts: one copy, also when some are killed mid-pull."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bdn.documents import read_manifest
from bdn.fleet import free_ports
from bdn.http.server import ServerLimits
from bdn.http.static import DirectoryServer
from bdn.mirror import MirrorPlan, mirror
from bdn.origins.directory import DirectoryOrigin
from bdn.origins.open import open_writer
from bdn.roster import Node, Roster
from bdn.upstreams.directory import DirectoryUpstream

NODE = Path(__file__).with_name("node_process.py")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    origin_copies: float
    accounts: list[dict[str, object]]
    seconds: float
    killed_copies: float
    """The share of the model that the killed nodes own: what may have been there alone, and is read again."""


def weights(where: Path, size: int) -> Path:
    where.mkdir()
    chance = random.Random(7)
    (where / "model.safetensors").write_bytes(chance.randbytes(size))
    (where / "config.json").write_text("{}")
    return where


async def swarm(tmp: Path, count: int, size: int, *, kill: int = 0, origin_bytes_per_s: int = 0) -> Result:
    """Start `count` nodes, let all pull at once, kill `kill` of them once the origin has sent a third of the model."""
    writer = open_writer(f"file://{tmp / 'origin'}")
    mirrored = await mirror(DirectoryUpstream(weights(tmp / "model", size)), writer, MirrorPlan("m", "latest"))
    manifest = await read_manifest(DirectoryOrigin(tmp / "origin"), mirrored.manifest)
    await writer.close()
    origin = DirectoryServer(tmp / "origin", ServerLimits(bytes_per_s=origin_bytes_per_s))
    port = await origin.start("127.0.0.1", 0)
    ports = free_ports(count)
    peers = [f"node-{i:02}=127.0.0.1:{p}" for i, p in enumerate(ports)]
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    nodes = [
        await asyncio.create_subprocess_exec(
            sys.executable, str(NODE), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=env
        )
        for _ in range(count)
    ]
    try:
        for i, node in enumerate(nodes):
            spec = {"name": f"node-{i:02}", "peers": peers, "origin": f"http://127.0.0.1:{port}",
                    "store": str(tmp / f"store-{i}"), "manifest": str(mirrored.manifest)}  # fmt: skip
            node.stdin.write(json.dumps(spec).encode() + b"\n")  # type: ignore[union-attr]
        for node in nodes:
            assert (await node.stdout.readline()).strip() == b"ready"  # type: ignore[union-attr]
        started = asyncio.get_running_loop().time()
        for node in nodes:
            node.stdin.write(b"go\n")  # type: ignore[union-attr]
        doomed, living = nodes[:kill], nodes[kill:]
        if doomed:
            while origin.sent_by_kind["chunks"] < size / 3:  # noqa: ASYNC110 (what a counter says, not an event)
                await asyncio.sleep(0.005)
            for node in doomed:
                node.kill()
        lines = await asyncio.gather(*(n.stdout.readline() for n in living))  # type: ignore[union-attr]
        seconds = asyncio.get_running_loop().time() - started
        copies = origin.sent_by_kind["chunks"] / mirrored.model_bytes
        roster = Roster(tuple(Node(f"node-{i:02}") for i in range(count)))
        gone = {node.name for node in roster.nodes[:kill]}
        lost = sum(c.size for c in manifest.chunks if roster.ranked(c.digest)[0].name in gone)
        return Result(copies, list(map(json.loads, lines)), seconds, lost / mirrored.model_bytes)
    finally:
        for node in nodes:
            if node.returncode is None:
                node.kill()
            await node.wait()
        await origin.stop()


def check(tmp: Path, result: Result, living: int) -> None:
    want = (tmp / "model" / "model.safetensors").read_bytes()
    assert len(result.accounts) == living
    for account in result.accounts:
        assert (Path(str(account["path"])) / "model.safetensors").read_bytes() == want
    print(f"{result.origin_copies:.4f}x, {result.seconds:.2f} s")


def test_nodes_that_start_together_read_one_copy(tmp_path: Path) -> None:
    result = asyncio.run(swarm(tmp_path, 5, 60_000_000))
    check(tmp_path, result, 5)
    assert result.origin_copies == 1.0


def test_killing_one_in_the_middle_costs_at_most_what_it_alone_had(tmp_path: Path) -> None:
    result = asyncio.run(swarm(tmp_path, 5, 80_000_000, kill=1, origin_bytes_per_s=40_000_000))
    check(tmp_path, result, 4)
    assert 0 < result.killed_copies < 0.5 and result.origin_copies <= 1 + result.killed_copies + 1e-9


@pytest.mark.slow
def test_32_processes_read_one_copy(tmp_path: Path) -> None:
    result = asyncio.run(swarm(tmp_path, 32, 256_000_000))
    check(tmp_path, result, 32)
    assert result.origin_copies == 1.0


@pytest.mark.slow
def test_32_processes_of_which_4_are_killed_read_at_most_15_percent_more(tmp_path: Path) -> None:
    result = asyncio.run(swarm(tmp_path, 32, 256_000_000, kill=4, origin_bytes_per_s=60_000_000))
    check(tmp_path, result, 28)
    assert result.origin_copies <= 1.15

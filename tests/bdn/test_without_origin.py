"""A warm cluster needs no origin for a model named by its digest; a tag is the origin's to know, and says so."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bdn.client import AgentClient
from bdn.errors import BdnError, Down
from bdn.fleet import Child, Fleet, free_ports
from bdn.roster import Node, Roster
from tests.bdn.models import Model, model
from tests.bdn.node import agent
from tests.bdn.test_agent import at_origin, metrics, pulled, status


def large() -> Model:
    """Of some 1,200 chunks: its chunk list is a document of its own, longer than goes out in one piece with a head."""
    return model(chunk_bytes=256, big_bytes=300_000)


def test_a_fresh_process_joins_a_warm_cluster_by_digest_after_the_origin_was_killed(tmp_path: Path) -> None:
    m = large()
    at_origin(tmp_path / "origin", m)
    names = ("a", "b", "fresh")
    origin_port, *ports = free_ports(1 + len(names))
    peers = ",".join(f"{n}=127.0.0.1:{p}" for n, p in zip(names, ports, strict=True))
    env = {k: v for k, v in os.environ.items() if not k.startswith("BDN_")}
    bdn = [sys.executable, "-m", "bdn"]

    def node(name: str) -> list[str]:
        port, store = str(ports[names.index(name)]), str(tmp_path / name)
        return [
            *bdn, "agent", "--name", name, "--port", port, "--store", store, "--peers", peers,
            "--origin", f"http://127.0.0.1:{origin_port}", "--origin-patience-s", "0",
        ]  # fmt: skip

    async def pull(name: str, ref: str) -> dict[str, object]:
        last: dict[str, object] = {}
        async with AgentClient(tmp_path / name / "agent.sock", wait_s=60) as client:
            async for state in client.pull(ref):
                last = state
        return last

    async def work() -> None:
        async with Fleet(tmp_path / "logs") as fleet:
            serve = [*bdn, "origin", str(tmp_path / "origin"), "--origin-port", str(origin_port)]
            origin: Child = await fleet.start("origin", serve, env=env)
            for name in ("a", "b"):
                await fleet.start(name, node(name), env=env)
            async with asyncio.timeout(60):
                while True:  # The origin may not listen yet, and nobody waits for it here.
                    try:
                        await pull("a", "voice")
                        break
                    except Down:
                        await asyncio.sleep(0.1)
            assert (await pull("b", "voice"))["state"] == "ready"
            origin.process.send_signal(signal.SIGKILL)
            origin.killed = True
            await origin.process.wait()

            await fleet.start("fresh", node("fresh"), env=env)
            with pytest.raises(Down, match="the digest needs no origin") as why:
                await pull("fresh", "voice")
            assert why.value.exit_code == 4 and "NAME@b3:" in str(why.value)
            ready = await pull("fresh", f"voice@{m.manifest.digest}")
            assert ready["state"] == "ready" and ready["manifest_from"] == "peer"
            assert ready["bytes_by_tier"] == {"peer": m.manifest.unique_bytes}
            for path, body in m.files.items():
                assert (Path(str(ready["path"])) / path).read_bytes() == body
            async with AgentClient(tmp_path / "fresh" / "agent.sock") as client:
                account = await client.status()
            assert account["documents_by_tier"] == {"peer": 2, "origin": 0}
            assert account["bytes_by_tier"]["origin"] == 0
            assert 'bdn_documents_total{tier="peer"} 2.0' in await asyncio.to_thread(metrics, ports[2])
            # Where the tag was known, it is told and not believed.
            with pytest.raises(Down, match=f"what was pulled here as voice:latest is voice@{m.manifest.digest}"):
                await pull("a", "voice")

    asyncio.run(work())


def test_who_has_a_model_is_known_to_who_coordinates_it(tmp_path: Path) -> None:
    """Of twelve nodes one has it, and it is none of those that are asked first: the origin's copy is not read again."""
    m = model()
    origin, names = at_origin(tmp_path / "origin", m), [f"n{i}" for i in range(12)]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    peers = tuple(f"{n}=127.0.0.1:{p}" for n, p in ports.items())
    ranked = [n.name for n in Roster(tuple(Node(n) for n in names)).ranked(m.manifest.digest)]
    with ExitStack() as stack:
        nodes = {
            n: stack.enter_context(agent(tmp_path / n, origin, name=n, port=ports[n], peers=peers)) for n in names
        }
        assert pulled(nodes[ranked[-1]].socket)["manifest_from"] == "origin"
        late = pulled(nodes[ranked[-2]].socket, f"voice@{m.manifest.digest}")
        assert late["manifest_from"] == "peer" and late["bytes_by_tier"] == {"peer": m.manifest.unique_bytes}


def test_a_node_that_is_still_pulling_gives_the_manifest_already(tmp_path: Path) -> None:
    """Nobody has the model's bytes to the end, and there is no origin: the manifest is not what is missing."""
    m = large()
    origin = at_origin(tmp_path / "origin", m)
    for chunk in m.chunks[1:]:
        (origin / "chunks" / chunk.digest.hex[:2] / chunk.digest.hex[2:4] / chunk.digest.hex).unlink()
    ports = free_ports(2)
    peers = (f"half=127.0.0.1:{ports[0]}", f"fresh=127.0.0.1:{ports[1]}")
    with ExitStack() as stack:
        half = stack.enter_context(
            agent(tmp_path / "half", origin, name="half", port=ports[0], peers=peers, patience_s=1.0)
        )
        with pytest.raises(BdnError):
            pulled(half.socket)
        fresh = stack.enter_context(agent(tmp_path / "fresh", name="fresh", port=ports[1], peers=peers, patience_s=1.0))
        with pytest.raises(BdnError):
            pulled(fresh.socket, f"voice@{m.manifest.digest}")
        assert status(fresh.socket)["documents_by_tier"] == {"peer": 2, "origin": 0}
        assert status(fresh.socket)["pulls"][-1]["manifest_from"] == "peer"


def test_a_lone_node_without_an_origin_says_that_nobody_has_it(tmp_path: Path) -> None:
    with agent(tmp_path / "store") as node, pytest.raises(BdnError, match="on no node that answers") as why:
        pulled(node.socket, str(model().manifest.digest))
    assert why.value.exit_code == 1

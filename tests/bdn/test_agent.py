"""One node through its control socket: asked twice it pulls once, it survives its clients, it says what is wrong."""

from __future__ import annotations

import asyncio
import os
import socket as socketlib
import stat
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bdn.cli.status import _text
from bdn.client import AgentClient
from bdn.digest import Digest
from bdn.errors import BdnError, Corrupt, Down, Invalid, Missing, Usage
from bdn.fleet import free_ports
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.origins.directory import DirectoryWriter
from bdn.origins.layout import chunk_key
from tests.bdn.models import Model, model
from tests.bdn.node import agent


def at_origin(root: Path, m: Model, name: str = "voice") -> Path:
    async def work() -> None:
        writer = DirectoryWriter(root)
        for chunk in m.chunks:
            await writer.put(chunk, m.bodies[chunk.digest])
        for body in m.manifest.documents:
            await writer.put_document(Digest.of(body), body)
        await writer.move_tag(name, "latest", m.manifest.digest, expect=None)

    asyncio.run(work())
    return root


def pulled(socket: Path, ref: str = "voice") -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        last: dict[str, Any] = {}
        async with AgentClient(socket) as client:
            async for state in client.pull(ref):
                last = state
        return last

    return asyncio.run(work())


def status(socket: Path) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with AgentClient(socket) as client:
            return await client.status()

    return asyncio.run(work())


def test_a_model_arrives_whole_and_a_second_pull_moves_nothing(tmp_path: Path) -> None:
    m = model()
    with agent(tmp_path / "store", at_origin(tmp_path / "origin", m)) as node:
        first, again = pulled(node.socket), pulled(node.socket)
        for path, body in m.files.items():
            assert (Path(first["path"]) / path).read_bytes() == body
        assert first["bytes_by_tier"] == {"origin": m.manifest.unique_bytes}
        assert again["bytes_by_tier"] == {"nvme": m.manifest.unique_bytes} and again["path"] == first["path"]
        assert status(node.socket)["bytes_by_tier"]["origin"] == m.manifest.unique_bytes


def test_a_pinned_model_that_is_here_needs_no_origin(tmp_path: Path) -> None:
    m = model()
    origin = at_origin(tmp_path / "origin", m)
    with agent(tmp_path / "store", origin) as node:
        pulled(node.socket)
    with agent(tmp_path / "store") as node:
        assert pulled(node.socket, f"voice@{m.manifest.digest}")["state"] == "ready"
        with pytest.raises(Invalid, match="no origin"):
            pulled(node.socket, "voice")


def test_many_clients_share_one_pull_and_one_that_leaves_stops_nobody(tmp_path: Path) -> None:
    m = model(big_bytes=3_000_000)

    async def work(socket: Path) -> list[dict[str, Any]]:
        async def one(leave: bool) -> dict[str, Any]:
            last: dict[str, Any] = {}
            async with AgentClient(socket) as client:
                async for state in client.pull("voice"):
                    last = state
                    if leave:
                        break
            return last

        return [r for r in await asyncio.gather(*(one(i % 2 == 0) for i in range(10)))][1::2]

    with agent(tmp_path / "store", at_origin(tmp_path / "origin", m)) as node:
        assert [r["state"] for r in asyncio.run(work(node.socket))] == ["ready"] * 5
        assert status(node.socket)["bytes_by_tier"]["origin"] == m.manifest.unique_bytes


def test_only_the_agent_s_user_may_open_the_socket_and_it_goes_with_the_agent(tmp_path: Path) -> None:
    with agent(tmp_path / "store") as node:
        assert stat.S_IMODE(os.stat(node.socket).st_mode) == 0o600
        socket = node.socket
    assert not socket.exists()
    with pytest.raises(Down, match="the agent is not running") as why:
        status(socket)
    assert why.value.exit_code == 4 and "bdn agent" in str(why.value)


def test_a_dead_agent_s_socket_is_taken_over_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    dead = tmp_path / "store" / "agent.sock"
    listener = socketlib.socket(socketlib.AF_UNIX)
    listener.bind(str(dead))
    listener.close()
    with agent(tmp_path / "store") as node:
        assert status(node.socket)["ready"]
        with pytest.raises(Invalid, match="belongs to a running agent"), agent(tmp_path / "store"):
            pass


def test_health_and_metrics_are_served_to_probes(tmp_path: Path) -> None:
    m = model()
    with agent(tmp_path / "store", at_origin(tmp_path / "origin", m)) as node:
        pulled(node.socket)
        base = f"http://127.0.0.1:{node.port}"
        for page, word in (("livez", b"ok"), ("readyz", b"ready")):
            with urllib.request.urlopen(f"{base}/{page}", timeout=10) as answer:
                assert word in answer.read()
        text = metrics(node.port)
        assert f'bdn_bytes_total{{tier="origin"}} {float(m.manifest.unique_bytes)!r}' in text
        assert 'bdn_pulls_total{outcome="ready"} 1.0' in text and 'bdn_models{state="complete"} 1.0' in text


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_member_of_a_fixed_list_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    with agent(tmp_path / "one") as one:
        peers = (f"one=127.0.0.1:{one.port}", f"gone=127.0.0.1:{free_ports(1)[0]}")
        with agent(tmp_path / "two", name="two", peers=peers) as two:
            members = {m["name"]: m for m in status(two.socket)["members"]}
            assert {n: m["ready"] for n, m in members.items()} == {"one": True, "two": True, "gone": False}
            assert members["gone"]["reached"] is False
            assert "3 members, no answer from gone\n" in _text(status(two.socket))


def test_an_origin_that_is_down_is_asked_for_a_tag_until_its_patience_is_over(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    states: list[str] = []

    async def ask(socket: Path) -> None:
        async with AgentClient(socket) as client:
            async for state in client.pull("voice"):
                states.append(state["state"])

    with agent(tmp_path / "store", nobody, origin_patience_s=2.0) as node, pytest.raises(Down, match="unreachable"):
        asyncio.run(ask(node.socket))
    assert states and set(states) == {"looking up"}, "the client hears that its agent is alive"


def failure(socket: Path, ref: str) -> BdnError:
    with pytest.raises(BdnError) as why:
        pulled(socket, ref)
    return why.value


def test_each_failure_comes_out_of_the_socket_as_itself(tmp_path: Path) -> None:
    m = model()
    origin = at_origin(tmp_path / "origin", m)
    with agent(tmp_path / "store", origin, origin_patience_s=0.0) as node:
        assert "there is no model nope:latest" in str(failure(node.socket, "nope"))
        assert "there is no manifest" in str(failure(node.socket, f"voice@{Digest.of(b'other')}"))
        assert isinstance(failure(node.socket, "../x"), Usage)
        bad = origin / chunk_key(m.chunks[0].digest)
        bad.write_bytes(bytes(bad.stat().st_size))
        corrupt = failure(node.socket, "voice")
        assert isinstance(corrupt, Corrupt) and corrupt.exit_code == 3
        assert not list((tmp_path / "store" / "models").iterdir()), "nothing half-published"
        bad.write_bytes(m.bodies[m.chunks[0].digest])
        assert pulled(node.socket)["state"] == "ready", "and the next pull heals"


def test_a_model_that_does_not_fit_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    chunk = Chunk(Digest.of(b"never read"), 64 << 20)
    count = free // chunk.size + 2
    huge = File("huge.bin", count * chunk.size, 0o644, Digest.of(b"x"), (Extent(chunk, 0, chunk.size),) * count)
    m = Model(Manifest((huge,)), {}, {})
    object.__setattr__(m.manifest, "chunks", ())  # There is nothing to store at the origin.
    origin = at_origin(tmp_path / "origin", m)
    with agent(tmp_path / "store", origin) as node:
        why = failure(node.socket, "voice")
        assert "not enough space" in str(why) and why.exit_code == 1
        assert status(node.socket)["bytes_by_tier"]["origin"] == 0


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with agent(tmp_path / "one") as node:
        refused = pytest.raises(Invalid, match=r"cannot listen.*free port")
        with refused, agent(tmp_path / "two", port=node.port):
            pass
    with agent(tmp_path / "two"):
        pass  # The failed start has given everything back.


def test_a_damaged_store_is_found_and_the_next_pull_heals_it(tmp_path: Path) -> None:
    m = model()

    async def verify(socket: Path) -> tuple[str, ...]:
        async with AgentClient(socket) as client:
            return await client.verify(m.manifest.digest)

    with agent(tmp_path / "store", at_origin(tmp_path / "origin", m)) as node:
        path = Path(pulled(node.socket)["path"]) / "model.safetensors"
        assert asyncio.run(verify(node.socket)) == ()
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"\0flipped\0")
        assert len(asyncio.run(verify(node.socket))) == 1
        assert "bdn_store_bad_chunks_total 1.0" in metrics(node.port)
        healed = Path(pulled(node.socket)["path"]) / "model.safetensors"
        assert healed.read_bytes() == m.files["model.safetensors"]
        with pytest.raises(BdnError, match="not on this node"):
            asyncio.run(_verify_other(node.socket))


def test_a_node_that_sent_a_bad_chunk_is_told_and_heals_by_itself(tmp_path: Path) -> None:
    m = model(big_bytes=4_000_000)
    origin = at_origin(tmp_path / "origin", m)
    ports = dict(zip("ab", free_ports(2), strict=True))
    peers = tuple(f"{n}=127.0.0.1:{p}" for n, p in ports.items())
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(agent(tmp_path / n, origin, name=n, port=ports[n], peers=peers)) for n in "ab"
        )  # fmt: skip
        file = Path(pulled(a.socket)["path"]) / "model.safetensors"
        with open(file, "r+b") as damaged:
            damaged.seek(2_000_000)
            damaged.write(b"XXXX")
        came = pulled(b.socket)
        bad = next(
            c for c in m.chunks for p in m.manifest.placements[c.digest]
            if p.path == file.name and p.file_offset <= 2_000_000 < p.file_offset + p.size
        )  # fmt: skip
        assert came["bytes_by_tier"] == {"peer": m.manifest.unique_bytes - bad.size, "origin": bad.size}
        assert asyncio.run(_until_ready(a.socket))["bytes_by_tier"]["peer"] == bad.size
        assert file.read_bytes() == m.files[file.name]
        assert "bdn_store_bad_chunks_total 1.0" in metrics(a.port)
        assert 'bdn_corrupt_chunks_total{source="a"} 1.0' in metrics(b.port)


async def _until_ready(socket: Path) -> dict[str, Any]:
    """The account once the second pull, which nobody asked for, is done."""
    async with AgentClient(socket) as client:
        while True:
            now = await client.status()
            if now["bytes_by_tier"]["peer"] and now["models"][0]["path"]:
                return now
            await asyncio.sleep(0.02)


async def _verify_other(socket: Path) -> None:
    async with AgentClient(socket) as client:
        await client.verify(Digest.of(b"other"))


@pytest.mark.parametrize(("by_address", "strict"), [(False, False), (True, False), (False, True)])
def test_four_nodes_asked_at_once_share_one_copy(tmp_path: Path, by_address: bool, strict: bool) -> None:
    """Named by a person, or by their addresses as members from DNS are; strict: each chunk is claimed first."""
    m = model(big_bytes=4_000_000)
    origin = at_origin(tmp_path / "origin", m)
    free = free_ports(4)
    names = [f"127.0.0.1:{p}" for p in free] if by_address else ["n1", "n2", "n3", "n4"]
    ports = dict(zip(names, free, strict=True))
    peers = tuple(f"{n}=127.0.0.1:{p}" for n, p in ports.items())

    async def all_at_once(sockets: list[Path]) -> None:
        async def one(socket: Path) -> None:
            async with AgentClient(socket) as client:
                async for _ in client.pull("voice"):
                    pass

        await asyncio.gather(*(one(s) for s in sockets))

    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                agent(tmp_path / n, origin, name=n, port=ports[n], peers=peers, strict_origin=strict)
            )
            for n in names
        ]  # fmt: skip
        asyncio.run(all_at_once([n.socket for n in nodes]))
        accounts = [status(n.socket) for n in nodes]
    size = m.manifest.unique_bytes
    came = {tier: sum(a["bytes_by_tier"][tier] for a in accounts) for tier in ("origin", "peer")}
    assert came["origin"] + came["peer"] == 4 * size
    assert came["origin"] == size, [a["misses"] for a in accounts]
    assert sum(a["served_bytes"] for a in accounts) == came["peer"]
    claimed = {p.name for p in (origin / "claims").glob("??/*")}
    assert claimed == ({c.digest.hex for c in m.chunks} if strict else set())


def test_missing_is_a_failure_not_a_usage_error() -> None:
    assert Missing("x").exit_code == 1

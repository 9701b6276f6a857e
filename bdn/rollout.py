"""Owns one wave on this machine: nodes as processes of their own, all asked for a model at the same moment.

Each node has its own store, socket and port, and knows the others from a list; nothing coordinates them from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bdn.client import AgentClient
from bdn.errors import BdnError, Down, Invalid
from bdn.fleet import Child, Fleet, free_ports
from bdn.receipt import NodeAccount, Span

READY_S = 60.0  # Four Pythons that start at once on two busy cores.
LOOK_EVERY_S = 0.01
Show = Callable[[str, int, int], None]
"""Node, bytes done, bytes in all."""


@dataclass
class Member:
    """One node of a wave."""

    name: str
    port: int
    store: Path
    host: str = "127.0.0.1"
    agent: Child | None = None
    command: Child | None = None
    path: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """Its newest status: what is known of one that was killed."""
    ready_at: float = 0.0

    @property
    def socket(self) -> Path:
        return self.store / "agent.sock"

    @property
    def spec(self) -> str:
        return f"{self.name}={self.host}:{self.port}"

    @property
    def killed(self) -> bool:
        return self.agent is not None and self.agent.killed


def make_members(prefix: str, count: int, root: Path) -> list[Member]:
    ports = free_ports(count)
    return [Member(f"{prefix}-{i}", port, root / f"{prefix}-{i}") for i, port in enumerate(ports, 1)]


@dataclass
class Wave:
    """One wave under way. `others` are members of the same cluster that are there already."""

    fleet: Fleet
    members: Sequence[Member]
    others: Sequence[Member]
    env: Mapping[str, str]
    origin_flags: Sequence[str]
    ref: str
    show: Show
    command: Callable[[Member], Sequence[str]] | None = None
    """What each node holds back until it has the model; `{}` is the model's directory."""
    kill: str = ""
    """The node to end with SIGKILL while it pulls."""
    kill_at: float = 0.25
    """How much of the model it has by then."""
    place: Callable[[Member, Sequence[str]], Sequence[str]] = lambda _, argv: argv
    """The command that runs a member's agent where it belongs, for nodes with networks of their own."""

    async def start(self) -> None:
        """Agents that listen. Raises Invalid with the last words of one that does not."""
        everyone = ",".join(m.spec for m in (*self.members, *self.others))
        for m in self.members:
            flags = ["--name", m.name, "--host", m.host, "--port", str(m.port), "--store", str(m.store)]
            flags += ["--peers", everyone, *self.origin_flags, "--drain-s", "0"]
            argv = self.place(m, [sys.executable, "-m", "bdn", "agent", *flags])
            m.agent = await self.fleet.start(m.name, argv, env=self.env)
        await asyncio.gather(*(self._listening(m) for m in self.members))

    async def _listening(self, member: Member) -> None:
        assert member.agent is not None
        async with AgentClient(member.socket, wait_s=READY_S) as agent:
            asked = asyncio.ensure_future(agent.status())
            ended = asyncio.ensure_future(member.agent.process.wait())
            try:
                await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    raise member.agent.failed()
                member.last = asked.result()
            finally:
                # Awaited here, or an interrupt would close the client under a question still on its way.
                for waiting in (asked, ended):
                    waiting.cancel()
                await asyncio.gather(asked, ended, return_exceptions=True)

    async def ask(self) -> float:
        """Ask all nodes at once; returns when each has the model (or was killed). The clock's time of the asking.

        Raises what a node that was not killed raises.
        """
        asked_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for m in self.members:
                group.create_task(self._follow(m))
            for m in self.members:
                group.create_task(self._hold_back(m))
            if self.kill:
                group.create_task(self._kill_midway(next(m for m in self.members if m.name == self.kill)))
        return asked_at

    async def _hold_back(self, member: Member) -> None:
        """The command's process exists from now on, but as `bdn run`: it becomes the command once the model is here."""
        if self.command is not None:
            run = [sys.executable, "-m", "bdn", "run", self.ref, "--quiet", "--store", str(member.store), "--"]
            argv = [*run, *self.command(member)]
            member.command = await self.fleet.start(f"{member.name}-command", argv, env=self.env, collect=True)

    async def _follow(self, member: Member) -> None:
        async with AgentClient(member.socket, wait_s=5.0) as agent:
            try:
                async for state in agent.pull(self.ref):
                    if state["state"] != "looking up":
                        self.show(member.name, state["done_bytes"], state["total_bytes"])
                        member.path = state["path"] or ""
            except Down:
                if member.killed:
                    return
                raise
        member.ready_at = time.monotonic()

    async def _kill_midway(self, member: Member) -> None:
        assert member.agent is not None
        async with AgentClient(member.socket, wait_s=5.0) as agent:
            while True:
                with contextlib.suppress(StopIteration):
                    member.last = await agent.status()
                    model = next(iter(member.last["models"]))
                    if model["path"] or model["verified_bytes"] >= self.kill_at * model["bytes"]:
                        break
                await asyncio.sleep(LOOK_EVERY_S)
        member.agent.kill()

    async def look(self) -> None:
        """Read every living node's account."""
        for m in self.members:
            if not m.killed:
                async with AgentClient(m.socket) as agent:
                    m.last = await agent.status()

    async def spoken(self, member: Member) -> dict[str, Any]:
        """The held-back command's own account, its last line on stdout as JSON; empty without a command."""
        if member.command is None or member.killed:
            return {}
        out = (await member.command.output()).decode("utf-8", "replace").strip()
        try:
            value: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            raise Invalid(f"{member.command.name} said something else than its account: {out[-200:]!r}") from None
        return value


def account(member: Member, spans: tuple[Span, ...], wav: str) -> NodeAccount:
    last = member.last
    return NodeAccount(
        member.name, last.get("bytes_by_tier", {}), last.get("bytes_by_source", {}), last.get("wasted_by_tier", {}),
        spans, "killed" if member.killed else "ready", wav,
    )  # fmt: skip


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that a person should read first."""
    flat: list[BaseException] = []
    for error in group.exceptions:
        flat.append(first_error(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((e for e in flat if isinstance(e, BdnError)), flat[0])

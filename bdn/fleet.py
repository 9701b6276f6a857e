"""Owns the child processes of one run on this machine: started, watched, and gone when the run is over, however it is.

Each child leads a session of its own, so that a Ctrl+C reaches only us and we end them in order; the kernel ends them
when we die without having had the chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bdn.errors import BdnError, Invalid

END_S = 5.0  # SIGTERM, then after this long SIGKILL.
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 2000


@dataclass
class Child:
    """One process. Its stderr goes to `log`; its stdout too, unless it is collected."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    killed: bool = False
    """By us, on purpose: its end is no failure."""

    def last_words(self) -> str:
        """The last line that it wrote to its log: what a person should read when it failed."""
        try:
            lines = self.log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").split("\n")
        except OSError:
            return "it left no log"
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def failed(self) -> BdnError:
        code = self.process.returncode
        return Invalid(f"{self.name} ended with {_reason(code)}: {self.last_words()}", hint=f"its log is {self.log}")

    async def output(self) -> bytes:
        """All of its stdout, once it has ended well. Raises Invalid, with its last words, when it ended badly."""
        out, _ = await self.process.communicate()
        if self.process.returncode != 0:
            raise self.failed()
        return out

    def kill(self) -> None:
        self.killed = True
        self.process.kill()


@dataclass
class Fleet:
    """Use as an async context manager: on leaving it, no child is left."""

    logs: Path
    children: list[Child] = field(default_factory=list)

    async def start(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], collect: bool = False
    ) -> Child:
        """A running child with exactly this environment; `collect` keeps its stdout for `Child.output`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE if collect else file,
                stderr=file, env=env, start_new_session=True, preexec_fn=_end_with(os.getpid()),
            )  # fmt: skip
        finally:
            os.close(file)
        child = Child(name, process, log)
        self.children.append(child)
        return child

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(self.children)

    async def end(self, children: Sequence[Child]) -> None:
        """SIGTERM to all at once, time to finish, then SIGKILL. Returns when none of them is left."""
        running = [c for c in children if c.process.returncode is None]
        for child in running:
            _signal(child, signal.SIGTERM)
        waits = [asyncio.ensure_future(c.process.wait()) for c in running]
        try:
            if waits:
                await asyncio.wait(waits, timeout=END_S)
        finally:
            for child in running:
                _signal(child, signal.SIGKILL)
            await asyncio.gather(*waits)


def _signal(child: Child, number: signal.Signals) -> None:
    """To its whole session: what it started itself must not stay either."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)


def _end_with(parent: int) -> Callable[[], None]:
    """Runs in the child before exec: the kernel sends SIGTERM when the parent dies. Survives the exec."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # It died between fork and prctl.
                os._exit(1)

    return prepare


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now. Another process may take one before it is used: rare, and said."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def _reason(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"

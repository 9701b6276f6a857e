"""Owns an origin on this machine as a process of its own, and reading what it has sent by its own count."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bdn.errors import Invalid, SourceDown
from bdn.fleet import Child, Fleet, free_ports

START_S = 30.0
_SENT = re.compile(r'^bdn_origin_sent_bytes_total\{kind="chunks"\} (\d+)$', re.MULTILINE)


@dataclass(frozen=True)
class OriginProcess:
    """`bdn origin DIR`, running."""

    url: str
    child: Child

    @staticmethod
    async def start(
        fleet: Fleet, root: Path, env: Mapping[str, str], *, bytes_per_s: float = 0.0, host: str = "127.0.0.1",
        place: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv,
    ) -> OriginProcess:  # fmt: skip
        """Returns once it answers. Raises Invalid with its last words when it ends instead.

        place: the command that runs it where `host` is an address.
        """
        [port] = free_ports(1)
        flags = ["--origin-host", host, "--origin-port", str(port), "--origin-bytes-per-s", str(bytes_per_s)]
        argv = place([sys.executable, "-m", "bdn", "origin", str(root), *flags])
        child = await fleet.start("origin", argv, env=env)
        origin = OriginProcess(f"http://{host}:{port}", child)
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                await origin.sent_bytes()
                return origin
            except SourceDown:
                if child.process.returncode is not None:
                    raise child.failed() from None
                if asyncio.get_running_loop().time() > deadline:
                    raise Invalid(f"the origin did not start within {START_S:g} s", hint=str(child.log)) from None
            await asyncio.sleep(0.05)

    async def sent_bytes(self) -> int:
        """Chunk bytes that it has sent to anyone. Raises SourceDown."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
                found = _SENT.search(await answer.text())
        except aiohttp.ClientError as why:
            raise SourceDown(self.url, str(why)) from None
        return int(found[1]) if found else 0

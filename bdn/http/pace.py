"""Owns how fast bytes leave: a rate over all connections together, and the congestion control of their sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from bdn.errors import Invalid


class Pace:
    """Spreads bytes over time at a fixed rate, over all connections together."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        if self.bytes_per_s <= 0:
            return
        now = asyncio.get_running_loop().time()
        start = max(self._free_at, now - 0.05)  # At most 50 ms of unused rate is kept.
        self._free_at = start + size / self.bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


def set_congestion(sock: socket.socket, name: str) -> None:
    """Accepted sockets inherit it. Worth setting where the machine's default paces a loopback (bbr: a quarter of the
    rate at three times the CPU)."""
    if not name:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as why:
        available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
        names = available.read_text(encoding="ascii").strip() if available.exists() else "unknown"
        raise Invalid(
            f"congestion control {name!r} cannot be set: {why.strerror}", hint=f"this machine has: {names}"
        ) from why

"""Owns the network of a benchmark whose nodes have links of their own.

As root (or where a user namespace makes us root) each host is a network namespace on one bridge, its link shaped by
tc in both directions; elsewhere all are on the loopback and limit their own uploads, which is said in the result. The
namespaces live in a mount namespace of ours and vanish with the process, however it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

FRAME = 1514 / 1448  # Bytes on the wire for a byte of payload: a link's rate is given in payload, as in a scenario.
QUEUE_MS = 20  # What a switch buffers: deep enough for many flows, shallow enough that a request waits little in it.
BURST_BYTES = 128 << 10
GSO_BYTES = 16 << 10  # The largest packet before the shaper: losing one of 64 KiB stops a flow for a whole timeout.
CONGESTION = "reno"  # What a network namespace may always have.
_INSIDE, _PREPARED = "BDN_BENCH_LINKS", "mount -t tmpfs none /run && ip link set lo up"
_PROBE = (
    f"{_PREPARED} && ip netns add probe && ip link add br0 type bridge"
    " && ip link add v0 type veth peer name eth0 netns probe"
    " && tc qdisc add dev v0 root tbf rate 8mbit burst 64k latency 20ms"
)


class Network(Protocol):
    kind: str
    """How it limits, in words, for the result."""

    def add(self, host: str, bytes_per_s: float) -> str:
        """A host with a link of that payload rate each way; its address."""

    def inside(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        """The command that runs `argv` on the host."""

    def own_limits(self, bytes_per_s: float) -> float:
        """What a node must limit its uploads to by itself; 0 where its link does."""


def enter() -> None:
    """Run this program again where namespaces can be made, if there is such a place. Call first of all."""
    if os.environ.get(_INSIDE) or os.environ.get("BDN_BENCH_NETNS") == "no" or not shutil.which("unshare"):
        return
    ways = (["unshare", "--net", "--mount"], ["unshare", "--user", "--map-root-user", "--net", "--mount"])
    for way in ways:
        if subprocess.run([*way, "sh", "-c", _PROBE], capture_output=True, check=False).returncode == 0:
            os.environ[_INSIDE] = "1"
            start = f'{_PREPARED} && exec "$0" "$@"'
            os.execvp(way[0], [*way, "sh", "-c", start, sys.executable, *sys.argv])


def network() -> Network:
    return Namespaces() if os.environ.get(_INSIDE) else Loopback()


@dataclass
class Loopback:
    kind: str = "loopback, uploads limited by the nodes themselves"

    def add(self, host: str, bytes_per_s: float) -> str:
        return "127.0.0.1"

    def inside(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        return argv

    def own_limits(self, bytes_per_s: float) -> float:
        return bytes_per_s


@dataclass
class Namespaces:
    kind: str = f"namespaces, links shaped by tc, {CONGESTION}"
    _hosts: dict[str, str] = field(default_factory=dict)

    def add(self, host: str, bytes_per_s: float) -> str:
        if not self._hosts:
            _do("ip link add br0 type bridge", "ip addr add 10.77.255.254/16 dev br0", "ip link set br0 up")
        if host not in self._hosts:
            number = len(self._hosts) + 1
            self._hosts[host] = f"10.77.{number // 250}.{number % 250 + 1}"
            self._plug(host, f"v{number}")
        ours = f"v{list(self._hosts).index(host) + 1}"
        rate = f"tbf rate {int(bytes_per_s * FRAME * 8)}bit burst {BURST_BYTES} latency {QUEUE_MS}ms"
        _do(f"tc qdisc replace dev {ours} root {rate}", f"ip netns exec {host} tc qdisc replace dev eth0 root {rate}")
        return self._hosts[host]

    def _plug(self, host: str, ours: str) -> None:
        within = f"ip netns exec {host}"
        _do(
            f"ip netns add {host}",
            f"ip link add {ours} type veth peer name eth0 netns {host}",
            f"ip link set {ours} gso_max_size {GSO_BYTES} master br0 up",
            f"{within} ip link set lo up",
            f"{within} ip link set eth0 gso_max_size {GSO_BYTES} up",
            f"{within} ip addr add {self._hosts[host]}/16 dev eth0",
            f"{within} sysctl -qw net.ipv4.tcp_congestion_control={CONGESTION}",
        )

    def inside(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        return ["ip", "netns", "exec", host, *argv]

    def own_limits(self, bytes_per_s: float) -> float:
        return 0.0


def _do(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr.strip()}")

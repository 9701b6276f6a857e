"""The least that receiving, hashing and writing cost here: `python -m benchmarks.bare URL OUT_FILE SIZE`, nothing
around it; with `--threads 2` from two cores at once, each thread with memory and connections of its own, with
`--unverified` without the hash.

One loop over a few connections asks for 8 MiB at a time, receives into the arena's blocks, hashes each piece while it
is hot and hands full blocks to the kernel's asynchronous writes. No manifest, no store, no protocol object, no task:
what a pull costs above this is ours to save, and what it costs up to this is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from bdn.arena import Arena
from bdn.digest import Hasher
from bdn.direct_sink import HOT_BYTES
from bdn.sinks import open_direct, reserve
from benchmarks.rounds import own_use

CHUNK_BYTES = 8 << 20
CONNECTIONS = 4
HEAD_BYTES_MAX = 4096


class _Lane:
    """One connection and the chunk that it is receiving."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.sock = socket.create_connection((host, port))
        self._path = path
        self.at = self.left = 0
        self.hasher = Hasher()
        self.block: int | None = None
        self.end = 0
        self.seconds = 0.0

    def ask(self, at: int, size: int) -> None:
        asked = f"GET {self._path} HTTP/1.1\r\nhost: x\r\nrange: bytes={at}-{at + size - 1}\r\n\r\n"
        self.sock.sendall(asked.encode())
        self.at, self.left, self.hasher = at, size, Hasher()
        self._head_left = True

    def skip_head(self) -> None:
        if self._head_left:
            head = self.sock.recv(HEAD_BYTES_MAX, socket.MSG_PEEK)
            self.sock.recv(head.index(b"\r\n\r\n") + 4)
            self._head_left = False


async def fetch(
    url: str, fd: int, direct: int, size: int, todo: list[int], connections: int, verified: bool
) -> None:
    """The chunks at `todo`. Blocks its event loop, which is there because the writes want one."""
    parts = urlsplit(url)
    arena, poll = Arena(0), select.epoll()
    lanes: dict[int, _Lane] = {}
    for _ in range(min(connections, len(todo))):
        lane = _Lane(parts.hostname or "", parts.port or 80, parts.path)
        lanes[lane.sock.fileno()] = lane
        poll.register(lane.sock.fileno(), select.EPOLLIN)
        lane.ask(todo[-1], min(CHUNK_BYTES, size - todo.pop()))
    while lanes:
        for number, _ in poll.poll():
            lane = lanes[number]
            lane.skip_head()
            _receive(lane, arena, fd, direct, verified)
            if lane.left == 0 and todo:
                lane.ask(todo[-1], min(CHUNK_BYTES, size - todo.pop()))
            elif lane.left == 0:
                poll.unregister(number)
                lanes.pop(number).sock.close()
    while arena.writes.pending:
        arena.writes.wait()


def _receive(lane: _Lane, arena: Arena, fd: int, direct: int, verified: bool) -> None:
    """One piece into the lane's block; a full block is written, the last one of the file in the plain way."""
    if lane.block is None:
        while arena.writes.hold(lambda: None):
            arena.writes.wait()
        lane.block, lane.end, lane.seconds = arena.take(), 0, 0.0
    assert lane.block is not None
    begin = lane.block + lane.end
    room = arena.memory[begin : begin + min(HOT_BYTES, arena.block_bytes - lane.end, lane.left)]
    started = time.perf_counter()
    try:
        got = lane.sock.recv_into(room, 0, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    lane.seconds += time.perf_counter() - started
    assert got, "the server hung up"
    if verified:
        lane.hasher.update(room[:got])
    lane.end, lane.left = lane.end + got, lane.left - got
    if lane.left and lane.end < arena.block_bytes:
        return
    block, size, lane.block = lane.block, lane.end, None
    if size == arena.block_bytes:
        arena.filled(block, lane.seconds)
    whole = size // 4096 * 4096 if direct >= 0 else 0
    if size > whole:
        os.pwrite(fd, arena.memory[block + whole : block + size], lane.at + whole)

    def landed(done: int, block: int = block, whole: int = whole) -> None:
        assert done == whole, f"a write ended with {done}"
        arena.give_back([block])

    if not whole or not arena.writes.submit(direct, arena.address + block, whole, lane.at, landed):
        os.pwrite(fd, arena.memory[block : block + whole], lane.at)
        arena.give_back([block])
    lane.at += size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("size", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unverified", action="store_true")
    args = parser.parse_args()
    with own_use():
        fd = os.open(args.out, os.O_RDWR | os.O_CREAT, 0o644)
        reserve(fd, args.size, str(args.out))
        direct, chunks = open_direct(str(args.out)), range(0, args.size, CHUNK_BYTES)[::-1]

        def part(number: int) -> None:
            mine = list(chunks[number :: args.threads])
            connections = CONNECTIONS // args.threads
            asyncio.run(fetch(args.url, fd, direct, args.size, mine, connections, not args.unverified))

        with ThreadPoolExecutor(args.threads) as threads:
            list(threads.map(part, range(args.threads)))
        os.fsync(fd)


if __name__ == "__main__":
    main()

"""Starts one server, draws every chunk from it over N connections, discards the bytes in the kernel (MSG_TRUNC), and
reports the server's CPU: `python -m benchmarks.discard KIND ROOT CONNECTIONS`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rounds import WORK, cpu_of
from benchmarks.servers import Server, children, nginx, python_server


def main() -> None:
    kind, root, connections = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    chunks = sorted(p.relative_to(root / "origin") for p in (root / "origin" / "chunks").rglob("*") if p.is_file())
    for path in chunks:
        (root / "origin" / path).read_bytes()  # From the page cache: the disk is not what is measured.
    with _server(kind, root) as (server, target):
        before, start = _cpu(server), time.perf_counter()
        todo = iter(chunks)
        lock = threading.Lock()
        workers = [threading.Thread(target=_draw, args=(server, target, todo, lock)) for _ in range(connections)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        report = {"wall_s": time.perf_counter() - start, "cpu_s": _cpu(server) - before}
    print(json.dumps({"measured": report}), flush=True)


@contextlib.contextmanager
def _server(kind: str, root: Path) -> Iterator[tuple[Server, str]]:
    if kind == "ours":
        with python_server("benchmarks.serving", "peer", str(root / "origin")) as server:
            yield server, "/v1/chunks/{name}"
    elif kind == "ours-origin":
        with python_server("benchmarks.serving", "origin", str(root / "origin")) as server:
            yield server, "/{path}"
    elif kind == "nginx":
        with nginx(root) as server:
            yield server, "/origin/{path}"
    else:
        with python_server("benchmarks.other_servers", kind, str(root / "origin")) as server:
            yield server, "/{path}"


def _draw(server: Server, target: str, todo: Iterator[Path], lock: threading.Lock) -> None:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    sock = socket.create_connection((host, int(port)))
    asked = f"host: x\r\nx-bdn-asker: bench\r\nx-bdn-manifest: {'0' * 64}\r\n\r\n"
    while True:
        with lock:
            path = next(todo, None)
        if path is None:
            break
        sock.sendall(f"GET {target.format(path=path, name=path.name)} HTTP/1.1\r\n{asked}".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            piece = sock.recv(1)
            assert piece, "the server hung up"
            head += piece
        assert b" 200 " in head.split(b"\r\n")[0], head
        lines = head.lower().split(b"\r\n")
        left = int(next(line.split(b":")[1] for line in lines if line.startswith(b"content-length")))
        while left:
            left -= _skip(sock, left)
    sock.close()


def _skip(sock: socket.socket, left: int) -> int:
    """The kernel drops the bytes: nothing is copied to this process, whose cost is not the question."""
    got = int(_libc.recv(sock.fileno(), None, ctypes.c_size_t(min(left, 1 << 20)), int(socket.MSG_TRUNC)))
    if got <= 0:
        raise OSError(ctypes.get_errno(), "the server hung up")
    return got


_libc = ctypes.CDLL(None, use_errno=True)


def _cpu(server: Server) -> float:
    return sum(cpu_of(pid) for pid in {*server.pids, *(c for p in server.pids for c in children(p))})


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    main()

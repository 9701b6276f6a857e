"""Owns the byte sources of the benchmarks: nginx (so that the server is not what is measured) and our own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rounds import ROOT, WORK

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NGINX = """
{user}worker_processes 2; error_log stderr crit; pid {dir}/nginx.pid; daemon off; master_process on;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; sendfile_max_chunk 1m; tcp_nopush on; keepalive_requests 100000; etag on;
  default_type application/octet-stream;
  server {{
    listen 127.0.0.1:{port} reuseport backlog=1024;
    root {root};
    location ~ ^/hub/org/model/resolve/[^/]+/(.*)$ {{
      alias {root}/bucket/$1; add_header X-Repo-Commit {commit} always;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Server:
    url: str
    pids: tuple[int, ...]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], ready_s: float = 20.0) -> None:
    until = time.monotonic() + ready_s
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"the server on port {port} did not start")


@contextlib.contextmanager
def nginx(root: Path) -> Iterator[Server]:
    """Without nginx, Python's own server: enough for a smoke run, and nothing is claimed from one.

    What it serves is read once before, so that nobody's round waits for the disk that it writes to.
    """
    for file in filter(Path.is_file, root.rglob("*")):
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 20):
                pass
    port = free_port()
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    if Path(binary).exists():
        user = "user root; " if os.geteuid() == 0 else ""
        config = WORK / "nginx.conf"
        config.write_text(NGINX.format(user=user, dir=WORK, port=port, root=root, commit=COMMIT), encoding="utf-8")
        command = [binary, "-c", str(config), "-p", str(WORK)]
    else:
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(root)]
        command += ["--protocol", "HTTP/1.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        time.sleep(0.2)
        yield Server(f"http://127.0.0.1:{port}", (process.pid, *children(process.pid)))
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def python_server(script: str, *args: str, ready_s: float = 20.0) -> Iterator[Server]:
    """A module of ours that listens on the port given as its first argument."""
    port = free_port()
    command = [sys.executable, "-m", script, str(port), *args]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(port, process, ready_s)
        yield Server(f"http://127.0.0.1:{port}", (process.pid,))
    finally:
        process.terminate()
        process.wait()


def children(pid: int) -> tuple[int, ...]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return tuple(map(int, listed.split()))

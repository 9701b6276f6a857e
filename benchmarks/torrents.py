"""The rivals of `swarm`, one swarm a process: BitTorrent from a seeder with the origin's limit, and no sharing at all.

    torrents.py make FILES_DIR OUT.torrent
    torrents.py swarm libtorrent|libtorrent_super|aria2 OUT.torrent FILES_DIR NODES BYTES BYTES_PER_S DIR
    torrents.py each ORIGIN_URL ORIGIN_DIR NODES BYTES DIR    N aria2, each downloads every chunk from the origin
    torrents.py node …                       one libtorrent client, started by `swarm`

Runs with the interpreter of the bench environment, where libtorrent is. Both are given what costs us nothing either:
libtorrent's nodes are told each other's addresses, aria2's ask a tracker in this process; no DHT, no uTP, no waiting
for a choke interval (it is as short as the library lets it be). Both check SHA-1 of every piece.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.rounds import cpu_of
from benchmarks.servers import free_port

POLL_S = 0.01
TIMEOUT_S = 240.0


def make(files: Path, out: Path) -> None:
    import libtorrent as lt

    storage = lt.file_storage()
    lt.add_files(storage, str(files))
    torrent = lt.create_torrent(storage, 0, lt.create_torrent.v1_only)
    lt.set_piece_hashes(torrent, str(files.parent))
    out.write_bytes(lt.bencode(torrent.generate()))


# libtorrent


def node(torrent: Path, save: Path, port: int, bytes_per_s: int, seeds: bool, supers: bool, others: list[int]) -> None:
    """Says "ready", starts at a line on stdin, says how long it took, serves until the next line, says what it used."""
    import libtorrent as lt

    session = lt.session({
        "listen_interfaces": f"127.0.0.1:{port}", "enable_dht": False, "enable_lsd": False, "enable_upnp": False,
        "enable_natpmp": False, "enable_incoming_utp": False, "enable_outgoing_utp": False,
        "allow_multiple_connections_per_ip": True, "alert_mask": 0, "unchoke_interval": 1, "connections_limit": 500,
        "unchoke_slots_limit": -1,
    })  # fmt: skip
    params = lt.add_torrent_params()
    params.ti, params.save_path = lt.torrent_info(str(torrent)), str(save)
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    if seeds:
        params.flags |= lt.torrent_flags.seed_mode
        if supers:
            params.flags |= lt.torrent_flags.super_seeding
        handle = session.add_torrent(params)
        handle.set_upload_limit(bytes_per_s)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    if not seeds:
        handle = session.add_torrent(params)
        for other in others:
            handle.connect_peer(("127.0.0.1", other))
        while not handle.status().is_seeding:
            time.sleep(POLL_S)
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    sys.stdin.readline()
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = handle.status()
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "sent": status.total_payload_upload}), flush=True)


def libtorrent(torrent: Path, files: Path, count: int, bytes_per_s: int, out: Path, supers: bool) -> dict[str, float]:
    ports = [free_port() for _ in range(count + 1)]

    def start(i: int) -> subprocess.Popen[str]:
        seeds = i == 0
        save = files.parent if seeds else out / f"node-{i}"
        save.mkdir(exist_ok=True)
        words = [str(torrent), str(save), str(ports[i]), str(bytes_per_s if seeds else 0), str(int(seeds))]
        words += [str(int(supers)), *(str(p) for p in ports[:i])]
        return subprocess.Popen(
            [sys.executable, __file__, "node", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    clients = [start(i) for i in range(count + 1)]
    try:
        assert {_line(c) for c in clients} == {"ready"}
        idle = [cpu_of(c.pid) for c in clients]
        for client in clients:
            _say(client)
        seconds = [json.loads(_line(c))["seconds"] for c in clients[1:]]
        for client in clients:
            _say(client)
        ends = [json.loads(_line(c)) for c in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    used = [end["cpu_s"] - before for end, before in zip(ends, idle, strict=True)]
    return {"wall_s": max(seconds), "cpu_s": sum(used[1:]), "seeder_cpu_s": used[0], "origin_bytes": ends[0]["sent"]}


def _say(client: subprocess.Popen[str]) -> None:
    assert client.stdin is not None
    client.stdin.write("go\n")
    client.stdin.flush()


def _line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


# aria2


@contextlib.contextmanager
def tracker() -> Iterator[str]:
    """Who asks is told of all who asked before, and to come back in a second."""
    members: set[bytes] = set()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            members.add(socket.inet_aton("127.0.0.1") + struct.pack(">H", int(query["port"][0])))
            peers = b"".join(sorted(members))
            body = b"d8:intervali1e12:min intervali1e5:peers%d:%se" % (len(peers), peers)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/announce"
    server.shutdown()


def aria2(torrent: Path, files: Path, count: int, bytes_per_s: int, out: Path) -> dict[str, float]:
    """Clients are whole processes from "go" on: they start in a few milliseconds."""
    mark = out / "complete.sh"
    mark.write_text('#!/bin/sh\n: > "$(dirname "$(dirname "$3")")/complete"\n', encoding="utf-8")
    mark.chmod(0o755)
    rpc = free_port()
    with tracker() as url:
        common = [
            "aria2c", "-q", "--no-conf", "--enable-dht=false", "--seed-ratio=0", "--file-allocation=falloc",
            f"--bt-tracker={url}", "--bt-tracker-interval=1", "--bt-max-peers=0", "--bt-request-peer-speed-limit=1000M",
        ]  # fmt: skip
        listen = f"--listen-port={free_port()}"
        limit = [f"--max-overall-upload-limit={bytes_per_s}", "--bt-seed-unverified=true", "--check-integrity=false"]
        seeder = subprocess.Popen(
            [*common, listen, *limit, "--enable-rpc", f"--rpc-listen-port={rpc}", "-d", str(files.parent), str(torrent)]
        )
        clients: list[subprocess.Popen[bytes]] = []
        try:
            time.sleep(1.0)  # Until it has announced itself; no client is running yet.
            began = time.time()
            for i in range(count):
                save = out / f"node-{i}"
                save.mkdir()
                words = [f"--listen-port={free_port()}", f"--on-bt-download-complete={mark}", "-d", str(save)]
                clients.append(subprocess.Popen([*common, *words, str(torrent)]))
            marks = [out / f"node-{i}" / "complete" for i in range(count)]
            while not all(m.exists() for m in marks):
                if time.time() - began > TIMEOUT_S:
                    raise TimeoutError(f"aria2: {sum(m.exists() for m in marks)} of {count} after {TIMEOUT_S:g} s")
                time.sleep(POLL_S)
            wall = max(m.stat().st_mtime for m in marks) - began
            used = [cpu_of(c.pid) for c in (seeder, *clients)]
            sent = _rpc(rpc, "aria2.tellActive")[0]["uploadLength"]
        finally:
            for process in (seeder, *clients):
                process.kill()
                process.wait()
    return {"wall_s": wall, "cpu_s": sum(used[1:]), "seeder_cpu_s": used[0], "origin_bytes": float(sent)}


def each(url: str, origin: Path, count: int, out: Path) -> dict[str, float]:
    """Every node a plain download of its own, as when nothing is shared."""
    listed = out / "urls.txt"
    chunks = sorted(p.relative_to(origin) for p in (origin / "chunks").rglob("*") if p.is_file())
    listed.write_text("".join(f"{url}/{c}\n" for c in chunks), encoding="utf-8")
    words = ["aria2c", "-q", "--no-conf", "--file-allocation=falloc", "-j", "8", "-x", "1", "-i", str(listed)]
    began = time.perf_counter()
    nodes = [subprocess.Popen([*words, "-d", str(out / f"node-{i}")]) for i in range(count)]
    ends = [node.wait() for node in nodes]
    assert not any(ends), f"aria2 ended with {ends}"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    got = sum(p.stat().st_size for i in range(count) for p in (out / f"node-{i}").iterdir())
    return {
        "wall_s": time.perf_counter() - began, "cpu_s": used.ru_utime + used.ru_stime, "origin_bytes": float(got),
    }  # fmt: skip


def _rpc(port: int, method: str) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": "1", "method": method}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsonrpc", body, timeout=10) as answer:
        return json.load(answer)["result"]


def swarm(kind: str, torrent: str, files: str, nodes: str, size: str, bytes_per_s: str, out: str) -> None:
    where, count, limit = (Path(torrent), Path(files)), int(nodes), int(float(bytes_per_s))
    if kind == "aria2":
        report = aria2(*where, count, limit, Path(out))
    else:
        report = libtorrent(*where, count, limit, Path(out), kind == "libtorrent_super")
    report["server_cpu_s"] = report.pop("seeder_cpu_s")
    _tell(report, int(size))


def _tell(report: dict[str, float], model_bytes: int) -> None:
    report["origin_copies"] = report.pop("origin_bytes") / model_bytes
    print(json.dumps({"measured": report}), flush=True)


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "make":
        make(Path(words[0]), Path(words[1]))
    elif verb == "node":
        torrent, save, *numbers = words
        port, limit, seeds, supers, *others = map(int, numbers)
        node(Path(torrent), Path(save), port, limit, bool(seeds), bool(supers), others)
    elif verb == "each":
        url, origin, count, size, out = words
        _tell(each(url, Path(origin), int(count), Path(out)), int(size))
    else:
        swarm(*words)


if __name__ == "__main__":
    main()

"""flatness: what a GB costs as models grow and as more nodes send at once; peak memory; how long others' reads wait."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import ours
from benchmarks.rounds import WORK, Contestant, Measured, about, arguments, in_own_network, measure, tell
from benchmarks.servers import Server, python_server

PROBE_BYTES, PROBE_EVERY_S = 256 << 20, 0.005


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    sizes = (0.05, 0.1) if args.smoke else (1.0, 4.0, 20.0)
    results: dict[str, tuple[float, Measured]] = {}
    with contextlib.ExitStack() as stack:
        runs: list[tuple[str, float, Contestant, Server]] = []
        for size in sizes:
            server = stack.enter_context(python_server("benchmarks.stamped", f"{size}", "0", ready_s=120))
            for name, extra in ((f"{size:g} GB", ()), (f"{size:g} GB, buffered", ("--write", "buffered"))):
                if size < 20 or not extra:
                    runs.append((name, size, ours(server.url, *extra, verified=True), server))
        server = stack.enter_context(python_server("benchmarks.stamped", f"{sizes[1] / 2}", "16", ready_s=120))
        first = int(server.url.rpartition(":")[2]) + 1
        for count in (1, 2, 4, 8, 16):
            ports = ",".join(str(first + i) for i in range(count))
            plain = ours(server.url, "--peers", ports, "--in-flight", str(max(2, count)))
            runs.append((f"{count} peers", sizes[1] / 2, plain, server))
        rng = random.Random(args.seed)
        probe = Probe(WORK / "probe.bin")
        with probe.watching("idle"):
            time.sleep(0.2 if args.smoke else 3.0)
        for _ in range(1 if args.smoke else args.rounds):
            rng.shuffle(runs)
            for name, size, contestant, server in runs:
                measured = results.setdefault(name, (size, Measured(verified=True)))[1]
                with probe.watching(name):
                    measure(contestant, measured, server.pids, lambda c, out: "", 300.0)
                shutil.rmtree(WORK / "out", ignore_errors=True)
                print(f"  {name}: {measured.failed or measured.cpu_s[-1] / size}", file=sys.stderr, flush=True)
    rows = {name: {**m.summary(size), **probe.row(name)} for name, (size, m) in results.items()}
    largest = rows.pop(f"{sizes[-1]:g} GB")
    variants = {f"ours ({name})": row for name, row in sorted(rows.items())}
    line = {
        **about("flatness", sizes[-1], args), "ours": largest, "variants": variants, "peers": {},
        "idle": probe.row("idle"), "ratio_wall_to_best_peer": None, "ratio_cpu_to_best_peer": None,
    }  # fmt: skip
    tell({"ours": largest, **variants, "idle": probe.row("idle")}, line, args)


class Probe:
    """Another process's reads: one random page past the cache every few ms, and how long each took."""

    def __init__(self, path: Path) -> None:
        with path.open("wb") as file:
            for _ in range(PROBE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        path.unlink()
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._took: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[None]:
        took, ended, rng = self._took.setdefault(name, []), threading.Event(), random.Random(1)

        def watch() -> None:
            while not ended.wait(PROBE_EVERY_S):
                start = time.perf_counter()
                os.preadv(self._fd, [self._page], rng.randrange(PROBE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
                took.append(time.perf_counter() - start)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def row(self, name: str) -> dict[str, object]:
        took = sorted(self._took.get(name) or [0.0])
        return {"read_p50_ms": _ms(took, 0.5), "read_p99_ms": _ms(took, 0.99), "reads": len(took)}


def _ms(took: list[float], share: float) -> float:
    return round(took[min(len(took) - 1, int(len(took) * share))] * 1e3, 2)


if __name__ == "__main__":
    main()

"""The least that a model of many small files costs here: `python -m benchmarks.bare_files SOURCE OUT` makes files of
the same names and sizes and syncs them. No network, no digest: the bytes are in memory already."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bdn.sinks import sync_file_system
from benchmarks.rounds import own_use


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    sizes = [(entry.name, entry.stat().st_size) for entry in os.scandir(source)]
    memory = memoryview(os.urandom(max(size for _, size in sizes)))
    with own_use() as report:
        begun = time.perf_counter()
        for name, size in sizes:
            fd = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(fd, memory[:size])
            os.close(fd)
        report["unsynced_s"] = time.perf_counter() - begun
        sync_file_system(str(out))


if __name__ == "__main__":
    main()

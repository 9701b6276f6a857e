"""Weights file -> tensors in memory, each page used once: our loader beside safetensors and the streaming loaders.

    python benchmarks/bench_load.py [--smoke] [--json] [--gb 2.0] [--rounds 5]

Every contestant reads the same file in shuffled rounds, hot (in the page cache) and cold (dropped from it by
posix_fadvise, checked by the disk's own read counter). A round is a forked child, so imports are not measured and
nobody inherits another's memory. "total" runs until one byte of every 4 KiB page has been read through the tensors:
a mapping pays then, a copying loader paid before. Peers: `pip install --no-deps runai-model-streamer humanize
fastsafetensors`; one that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.rounds import ROOT, commit, machine
from runtime import weights

PAGE = 4096
Loader = Callable[[Path], tuple[Mapping[str, Tensor], object]]


def ours(path: Path) -> tuple[Mapping[str, Tensor], object]:
    return weights.read(path), None


def safetensors_load_file(path: Path) -> tuple[Mapping[str, Tensor], object]:
    from safetensors.torch import load_file

    return load_file(path), None


def safetensors_load_bytes(path: Path) -> tuple[Mapping[str, Tensor], object]:
    from safetensors.torch import load

    return load(path.read_bytes()), None


def runai_streamer(path: Path) -> tuple[Mapping[str, Tensor], object]:
    from runai_model_streamer import SafetensorsStreamer  # type: ignore[import-not-found]

    streamer = SafetensorsStreamer().__enter__()
    streamer.stream_file(str(path))
    return {name: tensor.clone() for name, tensor in streamer.get_tensors()}, streamer


def fastsafetensors(path: Path) -> tuple[Mapping[str, Tensor], object]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup  # type: ignore[import-not-found]

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [str(path)]})
    buffers = loader.copy_files_to_device()
    return {name: buffers.get_tensor(name) for name in buffers.key_to_rank_lidx}, (loader, buffers)


LOADERS: dict[str, tuple[Loader, str]] = {
    "ours": (ours, "safetensors"),
    "safetensors load_file": (safetensors_load_file, "safetensors"),
    "safetensors load(bytes)": (safetensors_load_bytes, "safetensors"),
    "runai-model-streamer": (runai_streamer, "runai_model_streamer"),
    "fastsafetensors": (fastsafetensors, "fastsafetensors"),
}


def make_file(path: Path, gigabytes: float) -> None:
    """Random float32 tensors of about 2.8 MB, the size of a layer's in a small speech model."""
    noise = torch.randint(-(2**30), 2**30, (700_000,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    count = max(1, round(gigabytes * 1e9 / (4 * noise.numel())))
    weights.write(path, {f"layer.{i}.weight": noise.roll(i).float() for i in range(count)})


def use(tensors: Iterable[Tensor]) -> int:
    """One byte of every page: what reading the weights once costs a loader that only maps them."""
    return sum(int(t.reshape(-1).view(torch.uint8)[::PAGE].sum()) for t in tensors)


def measured(loader: Loader, path: Path) -> dict[str, float]:
    """One load in a forked child: wall to the tensors and to their use, CPU, peak memory grown, bytes from disk."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write_end, json.dumps(_load_once(loader, path)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise RuntimeError("the loader's process died")
    return dict(json.loads(answer))


def _load_once(loader: Loader, path: Path) -> dict[str, float]:
    disk, before = _disk_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    tensors, keep = loader(path)
    loaded = time.perf_counter()
    checksum = use(tensors.values())
    used = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    del keep
    return {
        "load_s": loaded - began, "wall_s": used - began, "cpu_s": cpu, "rss_mb": after.ru_maxrss / 1024,
        "disk_mb": (_disk_bytes() - disk) / 1e6, "checksum": checksum,
    }  # fmt: skip


def _disk_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def set_cache(path: Path, state: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if state == "cold":
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while os.read(descriptor, 1 << 20):
                pass
    finally:
        os.close(descriptor)


def rounds(path: Path, count: int, seed: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    present = {n: load for n, (load, module) in LOADERS.items() if importlib.util.find_spec(module) is not None}
    for name in present:
        importlib.import_module(LOADERS[name][1])  # before the children are forked: imports are not measured
    found: dict[str, dict[str, list[dict[str, float]]]] = {s: {n: [] for n in present} for s in ("hot", "cold")}
    rng = random.Random(seed)
    for number in range(count):
        for state in ("hot", "cold"):
            for name in rng.sample(sorted(present), len(present)):
                set_cache(path, state)
                found[state][name].append(measured(present[name], path))
                print(f"round {number + 1} {state} {name}: {found[state][name][-1]['wall_s']:.3f} s", file=sys.stderr)
    checksums = {run["checksum"] for by_name in found.values() for runs in by_name.values() for run in runs}
    assert len(checksums) == 1, f"the loaders disagree about the bytes: {checksums}"
    return found


def summary(runs: list[dict[str, float]], gigabytes: float) -> dict[str, float]:
    def median(key: str) -> float:
        return statistics.median(run[key] for run in runs)

    return {
        "load_s": round(median("load_s"), 4), "wall_s": round(median("wall_s"), 4),
        "core_s_per_gb": round(median("cpu_s") / gigabytes, 3), "rss_mb": round(max(r["rss_mb"] for r in runs), 1),
        "disk_gb": round(median("disk_mb") / 1e3, 3),
    }  # fmt: skip


def result(path: Path, count: int, seed: int) -> dict[str, Any]:
    gigabytes = path.stat().st_size / 1e9
    table = {
        state: {name: summary(runs, gigabytes) for name, runs in by_name.items()}
        for state, by_name in rounds(path, count, seed).items()
    }
    out: dict[str, Any] = {"workload": "load", "machine": machine(), "commit": commit(), "seed": seed}
    out |= {"gb": round(gigabytes, 3), "rounds": count, "missing": [n for n in LOADERS if n not in table["hot"]]}
    # The cold run is the line's own: there the disk's speed is to be reached. The hot one stands beside it.
    return out | compared(table["cold"]) | {"hot": compared(table["hot"])}


def compared(by_name: dict[str, dict[str, float]]) -> dict[str, Any]:
    mine, peers = by_name["ours"], {n: s for n, s in by_name.items() if n != "ours"}
    best_cpu = max(1e-9, min(p["core_s_per_gb"] for p in peers.values()))
    return {
        "ours": mine, "peers": peers,
        "ratio_wall_to_best_peer": round(mine["wall_s"] / min(p["wall_s"] for p in peers.values()), 3),
        "ratio_cpu_to_best_peer": round(mine["core_s_per_gb"] / best_cpu, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="20 MB, one round")
    parser.add_argument("--json", action="store_true", help="only the last line, the JSON object")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-load-", dir=os.environ.get("BENCH_DIR")) as directory:
        path = Path(directory) / "model.safetensors"
        make_file(path, 0.02 if args.smoke else args.gb)
        found = result(path, 1 if args.smoke else args.rounds, args.seed)
    if not args.json:
        for state, part in (("cold", found), ("hot", found["hot"])):
            for name, row in {"ours": part["ours"], **part["peers"]}.items():
                print(f"{state:5} {name:24} {row}", file=sys.stderr)
    if not args.smoke:
        results = ROOT / "benchmarks" / "results" / "load.json"
        results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

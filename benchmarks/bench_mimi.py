"""Mimi, one frame after another on the CPU: our decoder beside the public package's, in one process, by turns.

    python benchmarks/bench_mimi.py [--smoke] [--json] [--lanes 1] [--frames 40]

Random weights in the published shapes (`--smoke`: the small ones). Needs `pip install --no-deps moshi==0.2.13` and
einops; without it only ours is measured. CPU seconds of this thread; the two alternate, so load hits both alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from runtime.model.codec import load_codec
from runtime.model.mimi_config import parse_mimi_config
from tests.golden.make_mimi_golden import reference
from tests.golden.mimi_random import SMALL, random_mimi


def cpu_ms(work: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    began = time.thread_time()
    result = work()
    return (time.thread_time() - began) * 1e3, result


@torch.no_grad()
def result(lanes: int, frames: int, *, small: bool, n_q: int) -> dict[str, Any]:
    raw = SMALL if small else None
    config = parse_mimi_config(raw)
    tensors = random_mimi(config, 7)
    ours = load_codec(tensors, raw, n_q=n_q)
    theirs = reference(raw, tensors, n_q) if importlib.util.find_spec("moshi") else None
    codes = torch.randint(0, config.card, (lanes, n_q, frames), generator=torch.Generator().manual_seed(0))
    state, moving = ours.initial_state(lanes), torch.ones(lanes, dtype=torch.bool)
    mine: list[float] = []
    other: list[float] = []
    furthest = 0.0
    if theirs is not None:
        theirs.streaming_forever(lanes)
    for i in range(frames):
        took, pcm = cpu_ms(lambda i=i: ours.decode_step(codes[:, :, i], state, moving))
        mine.append(took)
        if theirs is not None:
            took, expected = cpu_ms(lambda i=i: theirs.decode(codes[:, :, i : i + 1])[:, 0])
            other.append(took)
            furthest = max(furthest, float((pcm - expected).abs().max()))
    out: dict[str, Any] = {
        "workload": "mimi_decode", "machine": f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "date": time.strftime("%Y-%m-%d"), "commit": commit(), "shapes": "small" if small else "published",
        "lanes": lanes, "codebooks": n_q, "frames": frames,
        "ours": {"cpu_ms_per_frame": round(statistics.median(mine), 2)},
    }  # fmt: skip
    if other:
        median = statistics.median(other)
        out["peers"] = {"moshi": {"cpu_ms_per_frame": round(median, 2)}}
        out |= {"ratio_cpu_to_best_peer": round(statistics.median(mine) / median, 3), "largest_difference": furthest}
    return out


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small shapes, 4 frames")
    parser.add_argument("--json", action="store_true", help="the JSON object only (there is nothing else)")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--codebooks", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    small = args.smoke
    print(json.dumps(result(args.lanes, 4 if small else args.frames, small=small, n_q=8 if small else args.codebooks)))


if __name__ == "__main__":
    main()

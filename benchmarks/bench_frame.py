"""Workload `frame`: one 80 ms frame (temporal + depth + codec) of one stream or several, ours beside the reference.

Both speak the same checkpoint with the same settings in one process, in turns of a few frames, so that a busy machine
slows both alike; processor time is what counts. The reference is moshi 0.2.13 as installed, torch.compile off; where it
is not installed our figures stand alone. The last line on stdout is one JSON object.

    python benchmarks/bench_frame.py --json [--checkpoint DIR] [--frames 60] [--lanes 1] [--step eager]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.reference_loop import conditions_of, reference_model
from runtime import checkpoint
from runtime.config import ModelSettings
from runtime.make_checkpoint import make
from runtime.port import Entry, LaneState, StreamSpec

TURN = 5  # frames of one model before the other's
WARMUP = 4


def ours(directory: Path, args: argparse.Namespace) -> tuple[Callable[[], None], list[float]]:
    """A function that makes one whole step, and the processor seconds of the lead steps."""
    engine = checkpoint.start(
        ModelSettings(
            model=directory, dtype=args.dtype, threads=args.threads, step=args.step, codebooks=args.codebooks,
            check_values=False, lanes=args.lanes,
        )
    )  # fmt: skip
    lanes = [engine.open(StreamSpec(temp=0.6, text_temp=0.6, seed=1 + n)) for n in range(args.lanes)]
    # A word a step at most, and the lead: text enough for every frame, whatever the model asks for.
    steps = engine.first_frame_step + WARMUP + max(args.frames, TURN) + engine.lookahead_words + 1
    for lane in lanes:
        engine.feed(lane, [Entry((5 + n % 200, 6), str(n), 2) for n in range(steps)])
    leads = []
    while engine.state(lanes[0]) is LaneState.LEAD:
        began = time.process_time()
        engine.step(lanes, lead=True)
        leads.append(time.process_time() - began)
    return lambda: (engine.step(lanes), None)[1], leads


def reference(directory: Path, args: argparse.Namespace) -> Callable[[], None]:
    """The same for the public package: its language model's step and its codec's."""
    from moshi.models.lm import LMGen

    model = reference_model(directory, codebooks=args.codebooks, dtype=args.dtype)
    conditions = conditions_of(model, directory, args.lanes)
    generate = LMGen(model.lm, temp=0.6, temp_text=0.6, condition_tensors=conditions)
    missing = torch.full((args.lanes, model.lm.n_q - model.lm.dep_q, 1), -1, dtype=torch.long)
    generate.streaming_forever(args.lanes)
    model.mimi.streaming_forever(args.lanes)

    def frame() -> None:
        with torch.no_grad():
            codes = generate.step(missing)
            if codes is not None:
                model.mimi.decode(codes[:, 1:].clamp(min=0))

    return frame


def measure(work: dict[str, Callable[[], None]], frames: int) -> dict[str, list[float]]:
    """Processor seconds of each frame, the models in turns."""
    for one in work.values():
        for _ in range(WARMUP):
            one()
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(max(1, frames // TURN)):
        for name, one in work.items():
            for _ in range(TURN):
                began = time.process_time()
                one()
                times[name].append(time.process_time() - began)
    return times


def machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "torch": torch.__version__, "date": str(datetime.date.today())}


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few frames of a small checkpoint, to see that it runs")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--checkpoint", type=Path, help="default: a small random one, made for the run")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--lanes", type=int, default=1, help="streams in a frame, of both")
    parser.add_argument("--codebooks", type=int, default=0)
    parser.add_argument("--dtype", default="float32", choices=sorted(checkpoint.DTYPES))
    parser.add_argument("--step", default="eager", choices=sorted(checkpoint.RUNNERS))
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.smoke:
        args.frames = TURN
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.checkpoint or Path(scratch)
        if args.checkpoint is None:
            make(directory, "small", seed=1)
        mine, leads = ours(directory, args)
        work = {"ours": mine}
        if importlib.util.find_spec("moshi") is not None and not args.smoke:
            work["reference"] = reference(directory, args)
        times = measure(work, args.frames)
    figures: dict[str, object] = {"lead_ms_p50": round(float(np.median(leads)) * 1e3, 3)}
    for who, values in times.items():
        figures[f"{who}_ms_p50"] = round(float(np.median(values)) * 1e3, 3)
        figures[f"{who}_ms_min"] = round(min(values) * 1e3, 3)
    if "reference" in times:
        figures["speedup_p50"] = round(float(np.median(times["reference"]) / np.median(times["ours"])), 2)
        figures["speedup_min"] = round(min(times["reference"]) / min(times["ours"]), 2)
    line = {
        "workload": "frame", "checkpoint": args.checkpoint.name if args.checkpoint else "small", "dtype": args.dtype,
        "step": args.step, "threads": args.threads, "lanes": args.lanes, "frames": len(times["ours"]),
        "clock": "processor time", "seed": 1,
        "commit": commit(), **machine(), **figures,
    }  # fmt: skip
    if not args.json:
        for key, value in figures.items():
            print(f"{key:20} {value}")
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Workload `long`: one stream of 10,000 frames (13 minutes of sound), with the codec and all codebooks.

Prints, for each tenth, the processor time of a step, that of a young stream's in the same moments, the process's
memory, and how far a word's time lay from the step at which it began; samples are counted against frames. The last line
on stdout is one JSON object; exit code 1 where the sound is not as long as its frames, or a word's time has moved.

    python benchmarks/bench_long.py [--smoke] [--json] [--checkpoint DIR] [--frames 10000]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import psutil

from benchmarks.bench_frame import commit, machine
from runtime import checkpoint
from runtime.config import ModelSettings
from runtime.delays import FRAME_S
from runtime.make_checkpoint import make
from runtime.port import Engine, Entry, LaneState, StreamSpec

PARTS = 10
TURN = 5  # steps of one stream before the other's, where it is compared with a young one
DRIFT_MS_MAX = 1.0  # times are rounded to a millisecond


@dataclass
class Talker:
    """A stream that never ends, and what has come of it."""

    engine: Engine
    lane: int
    fed: int = 0
    frames: int = 0
    samples: int = 0
    drift_ms: float = 0.0
    spent_ms: list[float] = field(default_factory=list)

    def step(self) -> None:
        while self.engine.state(self.lane) is LaneState.STARVED:
            self.engine.feed(self.lane, [Entry((5 + self.fed % 200, 7), str(self.fed), 1)])
            self.fed += 1
        began = time.process_time()
        out = self.engine.step([self.lane], lead=self.engine.state(self.lane) is LaneState.LEAD)
        self.spent_ms.append((time.process_time() - began) * 1e3)
        for frame in out:
            if frame.pcm is not None:
                self.frames += 1
                self.samples += len(frame.pcm)
            for word in frame.started:
                self.drift_ms = max(self.drift_ms, abs(word.start_s - frame.step * FRAME_S) * 1e3)


def opened(engine: Engine, seed: int) -> Talker:
    """A stream past its lead."""
    talker = Talker(engine, engine.open(StreamSpec(temp=0.8, text_temp=0.8, seed=seed)))
    while not talker.frames:
        talker.step()
    return talker


def over_young(old: Talker, turns: int) -> float:
    """What its step costs over that of a stream which has just begun, by turns."""
    young = opened(old.engine, 3)
    first = len(old.spent_ms), len(young.spent_ms)
    for _ in range(turns):
        for talker in (old, young):
            for _ in range(TURN):
                talker.step()
    old.engine.close(young.lane)
    return round(statistics.median(old.spent_ms[first[0] :]) / statistics.median(young.spent_ms[first[1] :]), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="100 frames")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--checkpoint", type=Path, help="default: a small random one, made for the run")
    parser.add_argument("--frames", type=int, default=10_000)
    args = parser.parse_args()
    frames = 100 if args.smoke else args.frames
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.checkpoint or Path(scratch)
        if args.checkpoint is None:
            make(directory, "small", seed=1)
        engine = checkpoint.start(ModelSettings(model=directory, lanes=2))
        talker = opened(engine, 2)
        for part in range(1, PARTS + 1):
            talker.spent_ms.clear()
            while talker.frames < frames * part // PARTS:
                talker.step()
            gc.collect()
            rows.append({
                "frames": talker.frames, "step_ms": round(statistics.median(talker.spent_ms), 3),
                "over_young": over_young(talker, max(1, frames // PARTS // (10 * TURN))),
                "rss_mib": round(psutil.Process().memory_info().rss / 2**20, 1),
            })  # fmt: skip
            if not args.json:
                print(*(f"{key} {value}" for key, value in rows[-1].items()), sep="  ", flush=True)
    series = {key: [row[key] for row in rows] for key in ("step_ms", "over_young", "rss_mib")}
    # The first part also warms up: what a long stream adds is counted from the second.
    print(json.dumps({
        "workload": "long", "checkpoint": args.checkpoint.name if args.checkpoint else "small",
        "frames": talker.frames, "samples": talker.samples, "words": talker.fed,
        "drift_ms_max": round(talker.drift_ms, 3), "clock": "processor time, one thread", **series,
        "rss_grown_mib": round(series["rss_mib"][-1] - series["rss_mib"][1], 1), "commit": commit(), **machine(),
    }))  # fmt: skip
    return int(talker.samples != talker.frames * engine.frame_samples or talker.drift_ms > DRIFT_MS_MAX)


if __name__ == "__main__":
    sys.exit(main())

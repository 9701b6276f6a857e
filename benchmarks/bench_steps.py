"""Workload `steps`: a whole step of the small checkpoint, eager beside compiled, for several numbers of lanes.

Both speak in one process in turns of a few steps, so that a busy machine slows both alike; processor time is what
counts. Getting ready is timed apart, in wall time since the compiler works in processes of its own: first with nothing
compiled before, then anew with what the first has left on disk. Graphs traced after that are counted: there must be
none. The last line on stdout is one JSON object.

    python benchmarks/bench_steps.py [--smoke] [--lanes 1 4 8] [--steps 100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache

from benchmarks.bench_frame import commit, machine
from runtime import checkpoint
from runtime.config import ModelSettings
from runtime.make_checkpoint import make
from runtime.port import Engine, Entry, LaneState, StreamSpec

TURN, WARMUP = 5, 4


def started(directory: Path, step: str, lanes: int, codebooks: int) -> tuple[Engine, float]:
    """An engine, and the seconds until it was ready: loaded and compiled."""
    began = time.perf_counter()
    engine = checkpoint.start(ModelSettings(model=directory, step=step, lanes=lanes, codebooks=codebooks))
    return engine, time.perf_counter() - began


def stepping(engine: Engine, lanes: int, steps: int) -> Callable[[], float]:
    """Milliseconds of processor of one whole step of so many streams, past their lead; former streams are closed."""
    for lane in range(engine.lanes):
        engine.close(lane)
    held = [engine.open(StreamSpec(temp=0.6, text_temp=0.6, seed=n)) for n in range(lanes)]
    for lane in held:
        words = engine.first_frame_step + steps + engine.lookahead_words + 1
        engine.feed(lane, [Entry((5 + n % 200, 6), str(n), 2) for n in range(words)])
    while engine.state(held[0]) is LaneState.LEAD:
        engine.step(held, lead=True)

    def step() -> float:
        began = time.process_time()
        engine.step(held)
        return (time.process_time() - began) * 1e3

    return step


def traced() -> int:
    return int(counters["stats"]["unique_graphs"])


def by_turns(engines: dict[str, Engine], lanes: int, steps: int) -> dict[str, float]:
    """The median step of each, and compiled over eager."""
    work = {name: stepping(engine, lanes, steps) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(steps // TURN):
        for name, step in work.items():
            times[name] += [step() for _ in range(TURN)]
    medians = {f"{name}_ms": round(statistics.median(values[WARMUP:]), 3) for name, values in times.items()}
    return {"lanes": lanes, **medians, "ratio": round(medians["compiled_ms"] / medians["eager_ms"], 3)}


def measure(directory: Path, lanes: Sequence[int], steps: int, codebooks: int) -> dict[str, object]:
    eager, eager_s = started(directory, "eager", max(lanes), codebooks)
    with fresh_inductor_cache():
        before = traced()
        _, cold_s = started(directory, "compiled", max(lanes), codebooks)
        graphs = traced() - before
        torch._dynamo.reset()
        compiled, again_s = started(directory, "compiled", max(lanes), codebooks)
    before = traced()
    medians = [by_turns({"eager": eager, "compiled": compiled}, number, steps) for number in lanes]
    return {
        "workload": "steps", "checkpoint": "small", "codebooks": codebooks or "all", "steps": steps,
        "clock": "processor time, one thread", "eager_ready_s": round(eager_s, 2),
        "compiled_ready_s": round(cold_s, 1), "compiled_ready_again_s": round(again_s, 1), "graphs": graphs,
        "traced_later": traced() - before, "medians": medians, "commit": commit(), **machine(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one lane, two codebooks, ten steps")
    parser.add_argument("--json", action="store_true", help="the JSON object only (there is nothing else)")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--codebooks", type=int, default=0)
    args = parser.parse_args()
    lanes, steps, codebooks = ([1], 2 * TURN, 2) if args.smoke else (args.lanes, args.steps, args.codebooks)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch), "small", seed=1)
        print(json.dumps(measure(Path(scratch), lanes, steps, codebooks)))


if __name__ == "__main__":
    main()

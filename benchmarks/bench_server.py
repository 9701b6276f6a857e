"""Workload `server`: the speech server's scheduling around the real engine, on a clock of processor seconds.

On a shared machine wall time measures the neighbours. Here the conductor, the scheduler, admission and the real engine
run in one thread whose clock is that thread's own processor time; waiting moves the clock without waiting. What is
reported is what this machine would give undisturbed: time to first sound alone and at 70 % of the measured capacity,
underruns at 85 % of a frame, the refusal of call N+1, and what scheduling adds to the model. The network is not in it:
`tts bench` measures that from outside. The last line on stdout is one JSON object.

    python benchmarks/bench_server.py --json [--checkpoint DIR] [--seconds 40] [--lanes 8] [--smoke]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runtime import checkpoint
from runtime.admission import Admission, KeyLimits, capacity
from runtime.bench.arrivals import PROMPTS, Call, calls
from runtime.bench.meter import quantile, spread
from runtime.config import ModelSettings
from runtime.make_checkpoint import make
from runtime.port import Engine, StreamSpec
from runtime.scheduler import Costs
from runtime.serve.conductor import Conductor
from runtime.serve.traffic import Command, End, Feed, Finished, Open, Sound
from runtime.serve.warmup import warm_up

LOAD_MAX = 0.85
SPEECH_S = 5.0  # about what a prompt takes to speak; how many of them make a long text


class Clock(Protocol):
    """Seconds, and a way to be later without waiting."""

    def __call__(self) -> float: ...

    def skip_to(self, when: float) -> None: ...


class CpuClock:
    """This thread's processor time, plus the waits that were skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.thread_time() + self._skipped

    def skip_to(self, when: float) -> None:
        self._skipped += max(0.0, when - self())


@dataclass
class Play:
    """One run of calls through a conductor."""

    first_sound_s: list[float] = field(default_factory=list)
    heard_s: float = 0.0  # of sound, over all streams
    late_streams: set[int] = field(default_factory=set)
    underruns: int = 0
    refused: int = 0
    finished: int = 0
    active_max: int = 0


def play(
    engine: Engine, costs: Costs, clock: Clock, plan: Sequence[Call], limit: int, *, settled_s: float = 0.0
) -> tuple[Play, Conductor]:
    """Runs the calls to their ends. A call beyond `limit` streams is refused by admission.

    Waits are those of the calls that come once the load is there, `settled_s` after the first.
    """
    conductor = Conductor(engine, costs, clock)
    gate, key = Admission(capacity=limit, warm=True), KeyLimits("bench")
    out, start = Play(), clock()
    due: dict[int, float] = {}
    began: set[int] = set()
    waiting = list(enumerate(plan))
    while waiting or conductor.seated:
        commands: list[Command] = []
        while waiting and start + waiting[0][1].due_s <= clock():
            sid, call = waiting.pop(0)
            if gate.ask(key, clock()):
                out.refused += 1
                continue
            out.active_max = max(out.active_max, gate.active)
            due[sid] = start + call.due_s
            commands += open_call(engine, sid, call, due[sid])
        happenings = conductor.obey(commands)
        more, wake_at = conductor.turn()
        for happening in (*happenings, *more):
            if isinstance(happening, Sound):
                out.heard_s += len(happening.pcm) / engine.sample_rate
                if happening.sid not in began:
                    began.add(happening.sid)
                    if due[happening.sid] >= start + settled_s:
                        out.first_sound_s.append(clock() - due[happening.sid])
                if happening.late_s:
                    out.underruns += 1
                    out.late_streams.add(happening.sid)
            elif isinstance(happening, Finished):
                out.finished += 1
                gate.release(key, clock() - due[happening.sid])
        if wake_at > clock():
            clock.skip_to(min(wake_at, start + waiting[0][1].due_s if waiting else math.inf))
    return out, conductor


def open_call(engine: Engine, sid: int, call: Call, at: float) -> list[Command]:
    spec = StreamSpec(seed=call.seed)
    feed = engine.text_feed(spec)
    return [Open(sid, spec, 4.0), Feed(sid, (*feed.push(call.text), *feed.end()), at), End(sid, at)]


def at_capacity(n: int, seconds: float) -> list[Call]:
    """n streams that speak for all the time, joining over two seconds, and one more that finds the door shut."""
    text = " ".join(PROMPTS * math.ceil(seconds / (SPEECH_S * len(PROMPTS)) + 1))
    words = text.split()[: int(seconds * 2.5)]
    return [Call(2.0 * k / n, " ".join(words), k) for k in range(n)] + [Call(2.1, PROMPTS[0], n)]


def reference_frame_s(directory: Path, batch: int, frames: int) -> float | None:
    """Processor seconds of one frame of the public reference for `batch` streams: its language model and its codec.

    That is all its server's loop does for a frame, so a comparison with it leaves the reference's own queues out.
    None where it is not installed.
    """
    if importlib.util.find_spec("moshi") is None:
        return None
    os.environ.setdefault("NO_TORCH_COMPILE", "1")
    import torch
    from moshi.models import loaders
    from moshi.models.lm import LMGen
    from moshi.models.tts import TTSModel

    raw = json.loads((directory / "config.json").read_text())
    info = loaders.CheckpointInfo.from_hf_repo(
        "local/none", moshi_weights=directory / raw["moshi_name"], mimi_weights=directory / raw["mimi_name"],
        tokenizer=directory / raw["tokenizer_name"], config_path=directory / "config.json",
        mimi_config_path=directory / raw["mimi_config_name"] if raw.get("mimi_config_name") else None,
    )  # fmt: skip
    model: Any = TTSModel.from_checkpoint_info(info, n_q=raw["n_q"], device="cpu", dtype=torch.float32)
    voices = sorted(directory.glob(f"*{model.voice_suffix}"))[:1] if model.multi_speaker else []
    given = [model.make_condition_attributes(voices, cfg_coef=2.0) for _ in range(batch)]
    conditions = model.lm.condition_provider.prepare_and_provide(given)
    generate = LMGen(model.lm, temp=0.6, temp_text=0.6, condition_tensors=conditions)
    missing = torch.full((batch, raw["n_q"] - model.lm.dep_q, 1), -1, dtype=torch.long)
    generate.streaming_forever(batch)
    model.mimi.streaming_forever(batch)
    spent = []
    with torch.no_grad():
        for _ in range(frames + 4):
            began = time.process_time()
            codes = generate.step(missing)
            if codes is not None:
                model.mimi.decode(codes[:, 1:].clamp(min=0))
                spent.append(time.process_time() - began)
    return quantile(spent[2:], 0.5)


def measure(engine: Engine, seconds: float) -> dict[str, Any]:
    clock = CpuClock()
    costs = warm_up(engine, clock)
    fits = capacity(costs.full, frame_s=costs.frame_s, load_max=LOAD_MAX, lanes=engine.lanes, joining_s=costs.turn_s)
    least_s = costs.first_sound_s(engine.delay_steps, engine.first_frame_step)

    alone, _ = play(engine, costs, clock, calls(math.ceil(seconds / 2), rate=0.1, seed=1, even=True), fits)
    # As many at a time as 70 % of what fits, by the length that this model really gives the prompts.
    speech_s = alone.heard_s / max(1, alone.finished)
    busy_rate = 0.7 * fits / max(0.1, speech_s)
    settled_s = 2.0 * speech_s
    plan = calls(math.ceil((settled_s + seconds) * busy_rate), rate=busy_rate, seed=2)
    busy, crew = play(engine, costs, clock, plan, fits, settled_s=settled_s)
    full, crowd = play(engine, costs, clock, at_capacity(fits, seconds), fits)
    tally = crew.tally
    heard_s = crowd.tally.lane_steps * costs.frame_s
    return {
        "lanes": engine.lanes, "capacity": fits,
        "step_ms": {"full_fixed": ms(costs.full.fixed_s), "full_lane": ms(costs.full.lane_s),
                    "lead_fixed": ms(costs.lead.fixed_s), "lead_lane": ms(costs.lead.lane_s)},
        "first_sound_least_ms": ms(least_s),
        "alone": {"n": len(alone.first_sound_s), "speech_s": round(speech_s, 2),
                  "first_sound_ms": spread(alone.first_sound_s),
                  "over_least": ratio(quantile(alone.first_sound_s, 0.5), least_s)},
        "at_70_percent": {"n": len(busy.first_sound_s), "rate": round(busy_rate, 2),
                          "refused": busy.refused, "active_max": busy.active_max,
                          "first_sound_ms": spread(busy.first_sound_s), "underruns": busy.underruns,
                          "iqr_over_median": ratio(quantile(busy.first_sound_s, 0.75)
                                                   - quantile(busy.first_sound_s, 0.25),
                                                   quantile(busy.first_sound_s, 0.5)),
                          "p99_over_median": ratio(quantile(busy.first_sound_s, 0.99),
                                                   quantile(busy.first_sound_s, 0.5))},
        "at_85_percent": {"streams": fits, "load": ratio(costs.full.of(fits), costs.frame_s), "refused": full.refused,
                          "underruns": full.underruns, "streams_with_underruns": len(full.late_streams)},
        "scheduling_over_model": ratio(tally.plan_s, tally.model_s),
        "cost_per_stream": ratio(crowd.tally.model_s + crowd.tally.plan_s, heard_s),
    }  # fmt: skip


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def ratio(a: float, b: float) -> float:
    return round(a / b, 4) if b else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description="scheduling around the real engine, on processor time")
    parser.add_argument("--checkpoint", type=Path, help="default: a small random one, made for the run")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each part, on the clock")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--step", default="eager", choices=("eager", "compiled", "captured"))
    parser.add_argument("--smoke", action="store_true", help="two lanes, without the reference: does it run at all")
    parser.add_argument("--json", action="store_true", help="only the last line matters; kept for symmetry")
    args = parser.parse_args()
    args.seconds = 1.0 if args.smoke else args.seconds
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.checkpoint or Path(scratch)
        if args.checkpoint is None:
            make(directory, "small", seed=0)
        engine = checkpoint.start(
            ModelSettings(model=directory, lanes=2 if args.smoke else args.lanes, step=args.step, check_values=False)
        )
        facts = measure(engine, args.seconds)
        frame_s = None if args.smoke else reference_frame_s(directory, facts["capacity"], 20)
        if frame_s:
            theirs = frame_s / facts["capacity"] / 0.08
            facts |= {"reference_cost_per_stream": round(theirs, 4),
                      "cost_over_reference": ratio(facts["cost_per_stream"], theirs)}  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(json.dumps({
        "workload": "server", **facts, "step": args.step, "seconds": args.seconds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

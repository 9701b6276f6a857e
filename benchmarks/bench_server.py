"""Workload `server`: the speech server's scheduling around the real engine, on a clock of processor seconds.

On a shared machine wall time measures the neighbours. Here the conductor, the scheduler, admission and the real engine
run in one thread whose clock is that thread's own processor time; waiting moves the clock without waiting. What is
reported is what this machine would give undisturbed: time to first sound alone and at 70 % of the measured capacity,
underruns at 85 % of a frame, the refusal of call N+1, and what scheduling adds to the model. The network is not in it:
`tts bench` measures that from outside.

A processor changes its speed within a run as well, so what a figure is held against is measured by turns with it, on a
stopped clock. Beside the waits stands a yardstick: the steps of one first sound, on a lane of their own with nobody
else. Its spread is the machine's own; `steadied` is each wait over the yardstick of its second.

What a second of sound costs is compared with the public package, in processor and in wall time, under traffic that
keeps as many listeners as fit, and 70 % of them: calls of half a minute that come evenly, those at the start cut short
at random. `cost` has, each in turns of a few frames: `frame`, its language model and codec alone for just so many
streams; `steady`, the loop of its server (`reference_loop.py`) for as many who never end; `loop`, that loop with
callers who come and go. The number of its slots is a setting: what the full house needs, so that with 70 % some are
computed for nobody. Texts are read and tokenised before, since both servers do that outside of the loop. The last line
on stdout is one JSON object.

    python benchmarks/bench_server.py --json [--checkpoint DIR] [--seconds 40] [--lanes 8] [--smoke]
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.server_cost import CALL_WORDS, Theirs, Turns, entries, references, traffic
from runtime import checkpoint
from runtime.admission import Admission, KeyLimits, capacity
from runtime.bench.arrivals import PROMPTS, Call, calls, longer
from runtime.bench.meter import quantile, spread
from runtime.config import ModelSettings
from runtime.make_checkpoint import make
from runtime.port import Engine, Entry, LaneState, StreamSpec
from runtime.scheduler import Costs
from runtime.serve.conductor import Conductor
from runtime.serve.traffic import Command, End, Feed, Finished, Open, Sound
from runtime.serve.warmup import warm_up
from runtime.serving import leave_to_live

LOAD_MAX = 0.85
SPEECH_S = 5.0  # about what a prompt takes to speak; how many of them make a long text
# Seconds on the clock from one turn of what a figure is held against to the next.
YARD_EVERY_S, REFERENCE_EVERY_S = 0.5, 2.0


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

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done meanwhile takes no time on this clock."""
        began = time.thread_time()
        yield
        self._skipped -= time.thread_time() - began


Turn = Callable[[float, Conductor], None]  # something done every so often, at that time on the clock


@dataclass
class Play:
    """One run of calls through a conductor."""

    first_sound_s: list[float] = field(default_factory=list)
    first_sound_at: list[float] = field(default_factory=list)  # when each of them was heard
    heard_s: float = 0.0  # of sound, over all streams
    late_streams: set[int] = field(default_factory=set)
    underruns: int = 0
    refused: int = 0
    finished: int = 0
    active_max: int = 0


def play(
    engine: Engine,
    costs: Costs,
    clock: Clock,
    plan: Sequence[Call],
    limit: int,
    *,
    settled_s: float = 0.0,
    turn: Turn | None = None,
    every_s: float = math.inf,
    turns_s: float = math.inf,
) -> tuple[Play, Conductor]:
    """Runs the calls to their ends. A call beyond `limit` streams is refused by admission.

    Waits are those of the calls that come once the load is there, `settled_s` after the first. From then on, and for
    `turns_s`, a turn is taken every so many seconds.
    """
    conductor = Conductor(engine, costs, clock)
    texts = {call.text: entries(engine, call.text) for call in plan}
    gate, key = Admission(capacity=limit, warm=True), KeyLimits("bench")
    out, start = Play(), clock()
    due: dict[int, float] = {}
    began: set[int] = set()
    waiting = list(enumerate(plan))
    next_turn = start + settled_s
    while waiting or conductor.seated:
        if turn and next_turn <= clock() <= start + settled_s + turns_s:
            turn(clock(), conductor)
            next_turn = clock() + every_s
        commands: list[Command] = []
        while waiting and start + waiting[0][1].due_s <= clock():
            sid, call = waiting.pop(0)
            if gate.ask(key, clock()):
                out.refused += 1
                continue
            out.active_max = max(out.active_max, gate.active)
            due[sid] = start + call.due_s
            spec = StreamSpec(seed=call.seed)
            commands += (Open(sid, spec, 4.0), Feed(sid, texts[call.text], due[sid]), End(sid, due[sid]))
        happenings = conductor.obey(commands)
        more, wake_at = conductor.turn()
        for happening in (*happenings, *more):
            if isinstance(happening, Sound):
                out.heard_s += happening.samples / engine.sample_rate
                if happening.sid not in began:
                    began.add(happening.sid)
                    if due[happening.sid] >= start + settled_s:
                        out.first_sound_s.append(clock() - due[happening.sid])
                        out.first_sound_at.append(clock())
                if happening.late_s:
                    out.underruns += 1
                    out.late_streams.add(happening.sid)
            elif isinstance(happening, Finished):
                out.finished += 1
                gate.release(key, clock() - due[happening.sid])
        if wake_at > clock():
            clock.skip_to(min(wake_at, start + waiting[0][1].due_s if waiting else math.inf))
    return out, conductor


def at_capacity(n: int, seconds: float) -> list[Call]:
    """n streams that speak for all the time, joining over two seconds, and one more that finds the door shut."""
    text = " ".join(PROMPTS * math.ceil(seconds / (SPEECH_S * len(PROMPTS)) + 1))
    words = text.split()[: int(seconds * 2.5)]
    return [Call(2.0 * k / n, " ".join(words), k) for k in range(n)] + [Call(2.1, PROMPTS[0], n)]


class Yardstick:
    """The steps of one first sound, on a lane with nobody else; None of them are the server's."""

    def __init__(self, engine: Engine, clock: CpuClock) -> None:
        self._engine, self._clock = engine, clock
        self.at: list[float] = []
        self.seconds: list[float] = []

    def take(self, now: float, _: Conductor) -> None:
        engine = self._engine
        with self._clock.stopped():
            lane = engine.open(StreamSpec(seed=1))
            engine.feed(lane, [Entry((5 + n, 6), str(n), 2) for n in range(engine.first_frame_step + 8)])
            began = time.thread_time()
            for _step in range(engine.first_frame_step + 1):
                engine.step([lane], lead=engine.state(lane) is LaneState.LEAD)
            self.seconds.append(time.thread_time() - began)
            self.at.append(now)
            engine.close(lane)

    def steadied(self, play: Play) -> list[float]:
        """Each wait over the middle of the three yardsticks nearest to it."""
        out = []
        for at, wait_s in zip(play.first_sound_at, play.first_sound_s, strict=True):
            k = bisect.bisect(self.at, at)
            out.append(wait_s / quantile(self.seconds[max(0, k - 2) : k + 1], 0.5))
        return out


def measure(engine: Engine, seconds: float, references_of: Callable[[int, int], Theirs]) -> dict[str, Any]:
    clock = CpuClock()
    costs = warm_up(engine, clock)
    # A lane is the yardstick's.
    lanes = max(1, engine.lanes - 1)
    fits = streams_that_fit(costs, engine, lanes, seconds)
    least_s = costs.first_sound_s(engine.delay_steps, engine.first_frame_step)

    yard = Yardstick(engine, clock)
    even = calls(math.ceil(seconds / 2), rate=0.1, seed=1, even=True)
    alone, _ = play(engine, costs, clock, even, fits, turn=yard.take, every_s=YARD_EVERY_S)
    # As many at a time as 70 % of what fits, by the length that this model really gives the prompts.
    speech_s = alone.heard_s / max(1, alone.finished)
    short = streams_that_fit(costs, engine, lanes, speech_s)
    busy_rate = 0.7 * short / max(0.1, speech_s)
    settled_s = 2.0 * speech_s
    plan = calls(math.ceil((settled_s + seconds) * busy_rate), rate=busy_rate, seed=2)
    beside = Yardstick(engine, clock)
    busy, crew = play(engine, costs, clock, plan, short, settled_s=settled_s, turn=beside.take, every_s=YARD_EVERY_S)
    full, _ = play(engine, costs, clock, at_capacity(fits, seconds), fits)
    tally = crew.tally
    words = sum(len(call.text.split()) for call in even)
    call_s = alone.heard_s / words * len(" ".join(longer(PROMPTS, CALL_WORDS)).split()) / len(PROMPTS)
    house = streams_that_fit(costs, engine, lanes, call_s)
    some = max(1, round(0.7 * house))
    return {
        "lanes": engine.lanes, "capacity": fits, "capacity_of_short_calls": short,
        "step_ms": {"full_fixed": ms(costs.full.fixed_s), "full_lane": ms(costs.full.lane_s),
                    "lead_fixed": ms(costs.lead.fixed_s), "lead_lane": ms(costs.lead.lane_s)},
        "first_sound_least_ms": ms(least_s),
        "alone": {"n": len(alone.first_sound_s), "speech_s": round(speech_s, 2), **waits(alone, yard),
                  "over_least": ratio(quantile(alone.first_sound_s, 0.5), least_s),
                  "over_yardstick": round(quantile(yard.steadied(alone), 0.5), 3)},
        "at_70_percent": {"n": len(busy.first_sound_s), "rate": round(busy_rate, 2), "refused": busy.refused,
                          "active_max": busy.active_max, "underruns": busy.underruns, **waits(busy, beside)},
        "at_85_percent": {"streams": fits, "load": ratio(costs.full.of(fits), costs.frame_s), "refused": full.refused,
                          "underruns": full.underruns, "streams_with_underruns": len(full.late_streams)},
        "scheduling_over_model": ratio(tally.plan_s, tally.model_s),
        "cost": [cost(engine, costs, clock, traffic(listeners, call_s, seconds), references_of(house, listeners))
                 | {"listeners": listeners, "slots": house, "call_s": round(call_s, 1)} for listeners in (house, some)],
    }  # fmt: skip


def cost(engine: Engine, costs: Costs, clock: CpuClock, plan: Sequence[Call], theirs: Theirs) -> dict[str, Any]:
    """What a second of sound costs while calls still come, ours and theirs by turns."""
    turns = Turns(theirs, clock, costs.frame_s)
    last_s = max(call.due_s for call in plan)
    out, _ = play(
        engine, costs, clock, plan, engine.lanes, settled_s=4.0, turn=turns.take, every_s=REFERENCE_EVERY_S,
        turns_s=last_s - 4.0,
    )  # fmt: skip
    return {"underruns": out.underruns, **turns.facts()}


def streams_that_fit(costs: Costs, engine: Engine, lanes: int, stream_s: float) -> int:
    """The capacity that is promised where streams live so long."""
    joining_s = costs.joining_s(engine.delay_steps, engine.first_frame_step, stream_s)
    return capacity(costs.full, frame_s=costs.frame_s, load_max=LOAD_MAX, lanes=lanes, joining_s=joining_s)


def waits(play: Play, yard: Yardstick) -> dict[str, Any]:
    """The waits, the yardstick beside them, and the waits in its measure."""
    return {
        "first_sound_ms": spread(play.first_sound_s), **shape(play.first_sound_s),
        "yardstick": {"n": len(yard.seconds), "p50_ms": ms(quantile(yard.seconds, 0.5)), **shape(yard.seconds)},
        "steadied": shape(yard.steadied(play)),
    }  # fmt: skip


def shape(values: Sequence[float]) -> dict[str, float]:
    median = quantile(values, 0.5)
    return {"iqr_over_median": ratio(quantile(values, 0.75) - quantile(values, 0.25), median),
            "p99_over_median": ratio(quantile(values, 0.99), median)}  # fmt: skip


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
        leave_to_live()  # as the server does: a full collection stops it for as long as two steps
        facts = measure(
            engine, args.seconds,
            lambda slots, callers: {} if args.smoke else references(directory, engine, slots, callers),
        )  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(json.dumps({
        "workload": "server", **facts, "step": args.step, "seconds": args.seconds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

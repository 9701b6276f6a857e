"""What a second of sound costs the server, and the public package in three ways, by turns in one process.

Owns the traffic under which both are measured, the turns and their account; the server's side of a turn is whoever
calls `Turns.take`. The package's own server loop is in `reference_loop.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from runtime.bench.arrivals import PROMPTS, Call, calls, longer
from runtime.bench.meter import quantile
from runtime.port import Engine, Entry, StreamSpec
from runtime.serve.conductor import Conductor

CALL_WORDS = 40  # of a call whose cost is compared: half a minute of the small checkpoint's noise
FRAMES = 8  # of the reference's in a turn


class Stoppable(Protocol):
    def stopped(self) -> AbstractContextManager[None]:
        """What is done meanwhile takes no time on this clock."""


def entries(engine: Engine, text: str) -> tuple[Entry, ...]:
    feed = engine.text_feed(StreamSpec())
    return (*feed.push(text), *feed.end())


def traffic(listeners: int, call_s: float, seconds: float) -> list[Call]:
    """Calls that keep so many listening, from two seconds on: what has begun is cut short, what comes is whole."""
    rng, texts = random.Random(5), longer(PROMPTS, CALL_WORDS)
    begun = [Call(2.0 * k / listeners, cut(rng, texts[k % len(texts)]), k) for k in range(listeners)]
    coming = calls(math.ceil(seconds * listeners / call_s), rate=listeners / call_s, seed=3, even=True, prompts=texts)
    return begun + [Call(2.0 + call.due_s, call.text, call.seed) for call in coming]


def cut(rng: random.Random, text: str) -> str:
    words = text.split()
    return " ".join(words[rng.randrange(len(words)) :])


class Spent(NamedTuple):
    """Processor and wall seconds, and the seconds of sound that came of them."""

    cpu_s: float
    wall_s: float
    sound_s: float


Theirs = dict[str, Callable[[], Spent]]


@dataclass
class Turns:
    """The reference's ways of doing it by turns with stretches of the server."""

    theirs: Theirs
    clock: Stoppable
    frame_s: float
    ours: list[Spent] = field(default_factory=list)
    spent: dict[str, list[Spent]] = field(default_factory=dict)
    _from: Spent | None = None  # as a stretch began

    def take(self, now: float, conductor: Conductor) -> None:
        if self._from:
            until = self._now(conductor)
            self.ours.append(Spent(*(b - a for a, b in zip(self._from, until, strict=True))))
            with self.clock.stopped():
                for name, turn in self.theirs.items():
                    self.spent.setdefault(name, []).append(turn())
        self._from = self._now(conductor)

    def _now(self, conductor: Conductor) -> Spent:
        return Spent(time.process_time(), time.perf_counter(), conductor.tally.frames * self.frame_s)

    def facts(self) -> dict[str, Any]:
        """Each one's processor seconds a second of sound, and ours over it: in all, and by turns."""
        out: dict[str, Any] = {"turns": len(self.ours), "ours": {"cpu_a_second": round(a_second(self.ours), 5)}}
        for name, theirs in self.spent.items():
            turns = [mine.cpu_s / mine.sound_s * each.sound_s / each.cpu_s
                     for mine, each in zip(self.ours, theirs, strict=True)]  # fmt: skip
            out[name] = {
                "cpu_a_second": round(a_second(theirs), 5),
                "cpu_ratio": round(a_second(self.ours) / a_second(theirs), 4),
                "wall_ratio": round(a_second(self.ours, wall=True) / a_second(theirs, wall=True), 4),
                "by_turns": {q: round(quantile(turns, float(q)), 4) for q in ("0.1", "0.5", "0.9")},
            }
        return out


def a_second(spent: Sequence[Spent], *, wall: bool = False) -> float:
    return sum(s.wall_s if wall else s.cpu_s for s in spent) / sum(s.sound_s for s in spent)


def references(directory: Path, engine: Engine, slots: int, callers: int) -> Theirs:
    """A turn of each way in which the public package makes the sound of so many callers; none where it is missing."""
    if importlib.util.find_spec("moshi") is None:
        return {}
    from benchmarks.bench_frame import reference as frame_of
    from benchmarks.reference_loop import ReferenceLoop, conditions_of, reference_model

    frame = frame_of(directory, argparse.Namespace(lanes=callers, codebooks=0, dtype="float32"))

    def bare() -> Spent:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(FRAMES):
            frame()
        sound_s = FRAMES * callers * engine.frame_samples / engine.sample_rate
        return Spent(time.process_time() - cpu, time.perf_counter() - wall, sound_s)

    def loop(scripts: Iterator[tuple[Entry, ...]]) -> Callable[[], Spent]:
        model = reference_model(directory)
        server = ReferenceLoop(model, conditions_of(model, directory, slots), slots, callers, scripts)
        server.frames(engine.first_frame_step + 8)  # all are heard by then
        return lambda: Spent(*server.frames(FRAMES))

    for _ in range(4):
        frame()
    rng, texts = random.Random(6), longer(PROMPTS, CALL_WORDS)
    begun = (cut(rng, texts[k % len(texts)]) for k in range(callers))
    coming = itertools.chain(begun, itertools.cycle(texts))
    endless = entries(engine, " ".join(texts))
    return {"frame": bare, "steady": loop(itertools.repeat(endless)), "loop": loop(entries(engine, t) for t in coming)}

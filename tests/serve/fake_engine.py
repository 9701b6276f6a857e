"""A small Engine that follows the port to the letter, without a model: what every server test runs on.

Each frame carries its stream's seed in its samples, so that a test can tell whose sound it hears; the cost of a step
is written on a simulated clock. Each word takes two steps; its text is heard at the place the port promises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.entries import EntryMaker
from runtime.errors import CannotClone, NameUnknown, NoFreeLane, StreamClosed
from runtime.port import Entry, FrameOut, LaneState, Pcm, StreamSpec, TextFeed, WordTime
from runtime.text import TextFrontEnd
from runtime.text_feed import ProseFeed

FRAME_S = 0.08
WORD_STEPS = 2


@dataclass
class SimClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class FakeFeed:
    """Words at spaces; punctuation alone and emoji are no words."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> tuple[Entry, ...]:
        *whole, self._held = (self._held + piece).split(" ")
        return tuple(e for w in whole for e in self._entry(w))

    def flush(self) -> tuple[Entry, ...]:
        held, self._held = self._held, ""
        return tuple(self._entry(held))

    end = flush

    def _entry(self, word: str) -> list[Entry]:
        return [Entry((len(word),), word)] if any(c.isalnum() for c in word) else []


@dataclass
class _Lane:
    spec: StreamSpec
    pending: deque[Entry] = field(default_factory=deque)
    step: int = 0
    ended: bool = False
    flushing: bool = False
    busy: int = 0  # steps left of the word being spoken
    word: WordTime | None = None
    drain: int = 0  # steps left that only carry sound out
    spoke: bool = False


@dataclass
class FakeEngine:
    lanes: int = 4
    delay_steps: int = 4
    first_frame_step: int = 6
    lookahead_words: int = 2
    initial_padding: int = 2  # steps before the first word, which need no text
    voices: tuple[str, ...] = ("anna", "ben")
    clock: SimClock | None = None
    full_fixed_s: float = 0.0
    full_lane_s: float = 0.0
    lead_share: float = 0.3
    silent_frames: int = 0  # of leading silence
    fail_seed: int | None = None  # the step of this stream raises
    bad_seed: int | None = None  # whose frames hold `bad`, from this one of them on
    bad: float = np.nan
    bad_from: int = 0
    sample_rate: int = 24_000
    frame_samples: int = 1_920
    steps: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    held: dict[int, _Lane] = field(default_factory=dict)
    opened: int = 0
    closed: int = 0
    can_clone: bool = False
    clones: dict[str, float] = field(default_factory=dict)  # seconds of each one's clip

    def text_feed(self, spec: StreamSpec) -> TextFeed:
        """The real front end where a stream asks for rules or brings a dictionary."""
        if spec.text_rules or spec.pronunciations:
            maker = EntryMaker(lambda word: [len(word)], marks_speakers=False)
            return ProseFeed(TextFrontEnd(spec.text_rules or (), spec.pronunciations), maker)
        return FakeFeed()

    def clone(self, name: str, clip: Pcm) -> None:
        if not self.can_clone:
            raise CannotClone("this engine is a fake")
        self.clones[name] = len(clip) / self.sample_rate

    def forget(self, name: str) -> None:
        self.clones.pop(name, None)

    def open(self, spec: StreamSpec) -> int:
        for voice in spec.voices:
            for part in voice.split("+"):
                if part.split(":")[0] not in (*self.voices, *self.clones):
                    raise NameUnknown("voice", voice, self.voices)
        free = [n for n in range(self.lanes) if n not in self.held]
        if not free:
            raise NoFreeLane(self.lanes)
        self.opened += 1
        self.held[free[0]] = _Lane(spec)
        return free[0]

    def feed(self, lane: int, entries: Sequence[Entry]) -> None:
        if self.held[lane].ended:
            raise StreamClosed(lane)
        self.held[lane].pending.extend(entries)

    def flush(self, lane: int) -> None:
        it = self.held[lane]
        it.flushing = bool(it.pending or it.busy or it.drain)

    def end(self, lane: int) -> None:
        self.held[lane].ended = True

    def close(self, lane: int) -> None:
        if self.held.pop(lane, None):
            self.closed += 1

    def state(self, lane: int) -> LaneState:
        it = self.held.get(lane)
        if it is None:
            return LaneState.FREE
        goes = it.step < self.initial_padding or it.busy or len(it.pending) > self.lookahead_words
        if not (goes or (it.pending and (it.ended or it.flushing))):
            if it.ended and not it.drain:
                return LaneState.ENDED
            if not (it.drain and (it.ended or it.flushing)):
                return LaneState.STARVED
        return LaneState.LEAD if it.step < self.delay_steps else LaneState.FULL

    def step(self, lanes: Sequence[int], *, lead: bool = False) -> list[FrameOut]:
        allowed = (LaneState.LEAD,) if lead else (LaneState.LEAD, LaneState.FULL)
        for lane in lanes:
            if self.state(lane) not in allowed:
                raise ValueError(f"lane {lane} is {self.state(lane)}")
        if any(self.held[n].spec.seed == self.fail_seed for n in lanes):
            raise RuntimeError("planted fault")
        self.steps.append((tuple(lanes), lead))
        if self.clock:
            cost = self.full_fixed_s + self.full_lane_s * len(lanes)
            self.clock.now += cost * (self.lead_share if lead else 1.0)
        return [self._advance(n) for n in lanes]

    def _advance(self, lane: int) -> FrameOut:
        it = self.held[lane]
        started: tuple[WordTime, ...] = ()
        finished: tuple[WordTime, ...] = ()
        if it.step < self.initial_padding:
            pass
        elif not it.busy and it.pending:
            it.word = WordTime(it.pending.popleft().text, it.step * FRAME_S, it.step * FRAME_S)
            started, it.busy, it.drain = (it.word,), WORD_STEPS, self.first_frame_step
        elif not it.busy and it.drain:
            it.drain -= 1
            it.flushing = it.flushing and bool(it.drain or it.pending)
        if it.busy:
            it.busy -= 1
            if not it.busy and it.word:
                finished = (WordTime(it.word.text, it.word.start_s, (it.step + 1) * FRAME_S),)
        pcm = self._pcm(it.spec.seed, it.step - self.first_frame_step) if it.step >= self.first_frame_step else None
        it.step += 1
        return FrameOut(lane, it.step - 1, pcm, started, finished, self.state(lane))

    def _pcm(self, seed: int, frame: int) -> np.ndarray:
        """+k, -k, +k, ... with k = planted(seed): loud for the silence gate, exact in 16 bits, nobody else's."""
        pcm = np.zeros(self.frame_samples, np.float32)
        if frame >= self.silent_frames:
            pcm[0::2], pcm[1::2] = planted(seed) / 32767.0, -planted(seed) / 32767.0
        if seed == self.bad_seed and frame >= self.bad_from:
            pcm[7] = self.bad
        return pcm


def planted(seed: int) -> int:
    return 2_000 + seed % 20_000

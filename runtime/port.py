"""The engine port: everything `serve/` and `say` may know of the model. No torch, no clock, no thread, no policy.

One thread owns an Engine and calls all its methods; none of them waits for anything but the model's own arithmetic.
Text becomes entries outside that thread, through a TextFeed; only entries cross over.

Words used here: a *lane* is one batch slot, held by one stream from open to close. A *step* moves a lane by one 80 ms
position of the text stream. The sound lags the text: the steps before `Engine.first_frame_step` make none. The first
`Engine.delay_steps` of them, the *lead*, need only the temporal half of the model, about a third of a whole step: a
scheduler shortens the time to first sound by running lead steps between whole ones. Sound and text share one time
line: the word that begins at text step s is heard s * frame_s after the start of the stream's sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.float32]
SPEAKERS_MAX = 5  # Speakers of one stream, and the places for voices in the source that the model attends to.


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """One entry of a user's dictionary: wherever `original` is written, say `rewrite`."""

    original: str
    rewrite: str
    case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What one stream asks for. None means: the checkpoint's own value. A value out of bounds is refused by `open`.

    `voices` holds one to five speakers of a dialogue in their turn's order; most streams have one. Each is a voice's
    name or a mix of names with weights, "anna:0.7+ben:0.3". Empty means the engine's first voice. Equal specs and
    equal entries give equal sound, whoever else is being served.
    """

    voices: tuple[str, ...] = ()
    seed: int = 0
    temp: float | None = None  # of the audio codes; 0 takes the likeliest
    text_temp: float | None = None  # of the word-ready signal
    top_k: int | None = None
    text_top_k: int | None = None
    cfg: float | None = None  # how strictly the voice is followed
    padding_bonus: float = 0.0  # added to the logit of "not yet the next word": above 0 speaks slower
    max_padding: int | None = None  # steps without a new word after which one is forced
    initial_padding: int | None = None  # steps before the first word
    final_padding: int | None = None  # steps after the last one
    text_rules: tuple[str, ...] | None = None  # how written things are read out; () as they stand
    pronunciations: tuple[Pronunciation, ...] = ()  # before all rules; of two that match, the first
    padding_between: int = 1  # least steps between words beyond their own tokens; articulates better than 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing for the word feed: a word (`tokens` not empty) or a pause of `padding` steps (`tokens` empty).

    After a word, `padding` is the number of steps before the next word may begin. `text` is reported back in
    WordTime, so it holds what the user wrote, not what was read out for it.
    """

    tokens: tuple[int, ...]
    text: str = ""
    padding: int = 0


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word and the span of the stream's sound in which it is heard, in seconds from the first sample."""

    text: str
    start_s: float
    stop_s: float


class LaneState(Enum):
    """What a lane's next step would be."""

    LEAD = "lead"  # it can advance, and a lead step is enough
    FULL = "full"  # it can advance by a whole step
    STARVED = "starved"  # it needs entries, a flush or the end; stepping it would invent sound, so it is refused
    ENDED = "ended"  # all its sound is out: close it
    FREE = "free"  # nobody holds it


@dataclass(frozen=True, slots=True)
class FrameOut:
    """What one step did for one lane."""

    lane: int
    step: int  # index of the step just made, from 0
    pcm: Pcm | None  # [frame_samples], the caller's own copy, not clipped; None while the stream has no sound yet
    started: tuple[WordTime, ...]  # the word whose place became known by this step; its stop_s is still its start_s
    finished: tuple[WordTime, ...]  # words whose end became known by this step, in order; each exactly once
    state: LaneState  # for the next step

    @property
    def starved(self) -> bool:
        return self.state is LaneState.STARVED

    @property
    def ended(self) -> bool:
        return self.state is LaneState.ENDED


class TextFeed(Protocol):
    """Text of one stream, in pieces of any size, to entries. Cheap, without torch, and used by one thread at a time.

    Pieces are joined as they come: "Hel" and "lo " are one word, and a word is complete at the next space, at `flush`
    or at `end`. However the text is cut into pieces, the entries are the same.
    """

    def push(self, piece: str) -> tuple[Entry, ...]:
        """The entries that became certain by this piece, perhaps none. Takes any Unicode."""

    def flush(self) -> tuple[Entry, ...]:
        """What is still held back, as if the text ended here; the next piece begins a new word."""

    def end(self) -> tuple[Entry, ...]:
        """As `flush`; nothing may be pushed after it."""


class Engine(Protocol):
    """The model with a fixed number of lanes. Lanes never affect one another."""

    @property
    def lanes(self) -> int: ...

    @property
    def sample_rate(self) -> int:
        """Samples per second of every pcm, 24000."""

    @property
    def frame_samples(self) -> int:
        """Samples in one frame, 1920."""

    @property
    def delay_steps(self) -> int:
        """Number of lead steps at the start of a stream (16 for the published models)."""

    @property
    def first_frame_step(self) -> int:
        """Index of the first step that yields pcm: delay_steps plus the codebooks' own delay (18)."""

    @property
    def lookahead_words(self) -> int:
        """Words that must be waiting besides the next one before that one is spoken, unless flushed or ended (2)."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of all voices, sorted."""

    def text_feed(self, spec: StreamSpec) -> TextFeed:
        """A fresh feed for one stream. May be called from any thread."""

    def clone(self, name: str, clip: Pcm) -> None:
        """Makes a voice of that name from a clip at `sample_rate`. May be called from any thread; takes a second.

        Raises SpecInvalid for a clip too short, CannotClone where this checkpoint lacks what it takes.
        """

    def forget(self, name: str) -> None:
        """Drops a cloned voice; streams that speak with it are not disturbed. May be called from any thread."""

    def open(self, spec: StreamSpec) -> int:
        """The lane that now holds a fresh stream. Raises NoFreeLane; NameUnknown for a voice; SpecInvalid."""

    def feed(self, lane: int, entries: Sequence[Entry]) -> None:
        """Appends entries. Raises StreamClosed after `end`."""

    def flush(self, lane: int) -> None:
        """Speaks every entry fed so far without waiting for more, sound included; then the lane starves again.

        The steps that carry the last word's sound out are padding; entries fed meanwhile are taken up as soon as
        they could be without it.
        """

    def end(self, lane: int) -> None:
        """No more entries: the lane runs to its last sound, then its state is ENDED. Twice is once."""

    def close(self, lane: int) -> None:
        """Frees the lane at once, whatever it was doing; its remaining sound is lost. Twice is once."""

    def state(self, lane: int) -> LaneState:
        """What the lane's next step would be. Costs nothing."""

    def step(self, lanes: Sequence[int], *, lead: bool = False) -> list[FrameOut]:
        """One step for the given lanes, in their order; the others do not move and are not changed.

        `lead` runs the temporal half only; every lane must then be in LEAD. A whole step takes lanes in LEAD and FULL.
        Asking for any other lane is a bug of the caller (ValueError), made before any lane moved.
        """

"""What crosses between the event loop and the device thread: commands one way, happenings the other. Values only.

A stream is known by its `sid`, a number that is never used twice; lanes are the conductor's own business. A
happening for a sid that the loop has dropped is dropped there too, so a lane's next holder can never be heard by the
last one.

`at` is when the client asked, on the clock that both share: a command may lie through a whole step, and what a caller
waits for begins before it is read. inf: as it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.port import Entry, Pcm, StreamSpec, WordTime


@dataclass(frozen=True, slots=True)
class Open:
    sid: int
    spec: StreamSpec
    ahead_max_s: float
    priority: int = 1


@dataclass(frozen=True, slots=True)
class Feed:
    sid: int
    entries: Sequence[Entry]
    at: float = math.inf


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak all that was fed; answered by Flushed(mark) once its last sound is out."""

    sid: int
    mark: int
    at: float = math.inf


@dataclass(frozen=True, slots=True)
class End:
    sid: int
    at: float = math.inf


@dataclass(frozen=True, slots=True)
class Close:
    sid: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The stream's reader does not keep up: no steps for it until Hold(on=False)."""

    sid: int
    on: bool


Command = Open | Feed | Flush | End | Close | Hold


@dataclass(frozen=True, slots=True)
class Sound:
    """Samples to hear next, without leading silence. `late_s` > 0: the listener has run dry for so long.

    `parts` as the model made them, at least one. They are joined where they are read, while they are in that
    processor's cache. `at_ease`: the listener has enough in hand that this may wait for more to go with it.
    """

    sid: int
    parts: Sequence[Pcm]
    late_s: float = 0.0
    at_ease: bool = False

    @property
    def samples(self) -> int:
        return sum(map(len, self.parts))

    @property
    def pcm(self) -> Pcm:
        """All of them in one piece."""
        return np.concatenate(self.parts) if len(self.parts) > 1 else self.parts[0]


@dataclass(frozen=True, slots=True)
class Words:
    """Words whose place in the sound that is sent is known, in order, each once."""

    sid: int
    words: tuple[WordTime, ...]
    at_ease: bool = False


@dataclass(frozen=True, slots=True)
class Paused:
    """The text ran dry; no sound is made until more comes."""

    sid: int


@dataclass(frozen=True, slots=True)
class Flushed:
    sid: int
    mark: int


@dataclass(frozen=True, slots=True)
class Finished:
    sid: int
    silence_s: float  # leading silence that was cut
    steps: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream is over. `code` as in Refusal: voice_unknown, invalid or internal."""

    sid: int
    code: str
    message: str


Happening = Sound | Words | Paused | Flushed | Finished | Broken

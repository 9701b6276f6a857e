"""Words to entries: tokens, speaker marks, pauses. No torch. It owns what a word costs, not how text is read out.

Whole words come from a front end (text.py for prose); this module turns each into what the word feed takes. Where the
front end is the plain one here, the result equals the reference's script_to_entries on the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from runtime.delays import FRAME_RATE
from runtime.port import Entry
from runtime.wordfeed import MAIN, OTHER

Encode = Callable[[str], Sequence[int]]

PAUSE_S_MAX = 10.0  # a longer pause is cut to this: a lane must not be held by a typing error
HELD_CHARS_MAX = 48  # no tag is longer: an open "<" is waited for no further than this
EVENT = re.compile(r'<break\s+time="([0-9]+(?:\.[0-9]*)?)s"\s*/?>|<speaker\s+([1-5])\s*/?>|\s+')
# Of the words that any stream said last, what `keeping` keeps: some thousand are most of what is said. Longer ones are
# no words, and would let a stream fill the memory: these take 7 MB at most.
WORDS_KEPT, KEPT_CHARS_MAX = 4096, 32
# Controls of terminals and of the direction of writing: whoever shows a word must not be led by it.
HIDDEN = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F),
                        *range(0x2066, 0x206A)])  # fmt: skip
FOLDED = str.maketrans({"’": "'", ":": " ", "(": None, ")": None})


def keeping(encode: Encode) -> Encode:
    """`encode`, which must depend on nothing but the word, without doing it again for words of late."""
    kept = lru_cache(maxsize=WORDS_KEPT)(lambda word: tuple(encode(word)))
    return lambda word: kept(word) if len(word) <= KEPT_CHARS_MAX else encode(word)


@dataclass(slots=True)
class EntryMaker:
    """What one stream's words cost. `marks_speakers`: the model was trained with turns of two speakers."""

    encode: Encode
    padding_between: int = 1
    marks_speakers: bool = True
    _turn: int = field(default=0, init=False)
    _marked: int | None = field(default=None, init=False)
    _fresh: bool = field(default=True, init=False)

    def word(self, spoken: str, shown: str | None = None) -> tuple[Entry, ...]:
        """The entry of one word, or none if it has no tokens. `spoken` is read out, `shown` is reported."""
        tokens = self.encode(spoken)
        if not tokens:
            return ()
        speaker = self._turn % 2
        if self._fresh and self.marks_speakers and self._marked != speaker:
            self._marked = speaker
            tokens = [(MAIN, OTHER)[speaker], *tokens]
        self._fresh = False
        padding = max(0, self.padding_between + len(tokens) - 1) if self.padding_between > 0 else 0
        text = spoken if shown is None else shown
        return (Entry(tuple(tokens), text if text.isprintable() else text.translate(HIDDEN), padding),)

    def pause(self, seconds: float) -> tuple[Entry, ...]:
        return (Entry((), "", round(min(seconds, PAUSE_S_MAX) * FRAME_RATE)),)

    def turn(self, to: int | None = None) -> None:
        """The speaker at `to` begins, counted from 0; the other one where it is None."""
        self._turn = self._turn + 1 if to is None else to
        self._fresh = True


class PlainFeed:
    """A TextFeed that splits at white space and knows `<break time="0.5s"/>` and `<speaker 2>`, nothing else."""

    def __init__(self, maker: EntryMaker) -> None:
        self._maker = maker
        self._held = ""

    def push(self, piece: str) -> tuple[Entry, ...]:
        self._held += piece.translate(FOLDED)
        return self._drain(len(self._held) - self._unsure())

    def flush(self) -> tuple[Entry, ...]:
        entries = self._drain(len(self._held))
        if self._held:
            entries += self._maker.word(self._held)
            self._held = ""
        return entries

    def end(self) -> tuple[Entry, ...]:
        return self.flush()

    def _unsure(self) -> int:
        """How many characters at the end may still become a tag."""
        at = self._held.rfind("<")
        tail = len(self._held) - at
        return tail if at >= 0 and tail < HELD_CHARS_MAX and ">" not in self._held[at:] else 0

    def _drain(self, limit: int) -> tuple[Entry, ...]:
        entries: tuple[Entry, ...] = ()
        done = 0
        for event in EVENT.finditer(self._held, 0, limit):
            if event.start() > done:
                entries += self._maker.word(self._held[done : event.start()])
            if event[1]:
                entries += self._maker.pause(float(event[1]))
            if event[2]:
                self._maker.turn(int(event[2]) - 1)
            done = event.end()
        self._held = self._held[done:]
        return entries

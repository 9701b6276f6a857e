"""The streams that our model and the reference must speak alike: one list for makers of vectors and for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.port import Entry, StreamSpec

TEXT = (
    "The clerk said that order forty two will leave on Monday at half past nine and that nobody needs to sign for it, "
    "which is kind of them. Please call again if the parcel is late, or if anything inside is broken. Thank you very "
    "much for waiting; we know that the line was long this morning. Goodbye then, and have a pleasant day. "
)
WORDS = tuple(TEXT.split())


@dataclass(frozen=True)
class Case:
    """One stream. `steps` is where it is cut, if it has not ended before."""

    name: str
    size: str
    spec: StreamSpec
    words: int
    steps: int
    turns: bool = False
    prompt_frames: int = 0
    codebooks: int | None = None

    def entries(self, encode: object) -> list[Entry]:
        """Words with pauses among them, and two speakers if `turns`, as the front end would have made them."""
        from runtime.entries import EntryMaker

        maker = EntryMaker(encode, self.spec.padding_between, self.size == "small")  # type: ignore[arg-type]
        draws, entries = random.Random(len(self.name)), []
        for n in range(self.words):
            if n and draws.random() < 0.05:
                entries += maker.pause(draws.choice((0.2, 0.4, 0.9)))
            if self.turns and n and n % 7 == 0:
                maker.turn()
            entries += maker.word(WORDS[n % len(WORDS)])
        return entries

    def prompt(self, codebooks: int, card: int) -> np.ndarray | None:
        """Random codes [P, K] to continue."""
        if not self.prompt_frames:
            return None
        return np.random.default_rng(1).integers(0, card, (self.prompt_frames, codebooks), dtype=np.int64)


CASES = (
    Case("greedy", "small", StreamSpec(temp=0, text_temp=0, cfg=2.0), 85, 520),
    Case("drawn", "small", StreamSpec(temp=0.6, text_temp=0.6, cfg=3.0, seed=17, padding_bonus=0.5), 85, 520),
    Case("turns", "small", StreamSpec(voices=("voice1", "voice0"), temp=0, text_temp=0, cfg=1.0), 20, 160, turns=True),
    Case("coarse", "small", StreamSpec(temp=0.8, text_temp=0.8, cfg=1.5, seed=3), 12, 100, codebooks=5),
    Case("guided", "small-prompted", StreamSpec(temp=0.6, text_temp=0.6, cfg=2.0, seed=5), 20, 180),
    Case("prompted", "small-prompted", StreamSpec(temp=0, text_temp=0, cfg=3.0), 20, 180, prompt_frames=25),
)
SEED = 21  # of the checkpoints' weights
SOUND_FRAMES = (5, 8)  # of the sound, which frames are kept as a vector


def voice_files(case: Case, directory: Path, suffix: str) -> list[Path]:
    if case.size != "small":
        return []
    return [directory / f"{name}.wav{suffix}" for name in case.spec.voices or ("voice0",)]

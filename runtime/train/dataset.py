"""Stage 4 of the demo voice: shards to training rows in the order in which the engine would have lived them.

A row is one stream of exactly `steps` steps. Several utterances follow one another, so that pauses, sentence ends and
long texts are seen; the word feed of the engine is simulated on the teacher's word times, so that training and serving
meet the same token sequences. Owns no arithmetic of the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.train.codec_fit import LATENT, SLOTS, SlotCodec
from runtime.train.spectra import RATE

NEW_WORD, PAD = 0, 3
MAX_PADDING, INITIAL_PADDING = 8, 2
FRAME_S = 0.08
GAP_FRAMES = 1  # of the teacher's leading silence, kept between two sentences
TAIL_FRAMES = 8  # of silence learnt after the last word
# The teacher's phoneme ids that occur in English, as small numbers for the auxiliary head.
SOUNDS = [
    0, 1, 2, 3, 4, 5, 6, 9, 16, 24, 25, 31, 36, 39, 41, 42, 43, 44, 46, 47, 48, 50, 51, 52,
    53, 54, 55, 56, 57, 58, 60, 61, 62, 63, 64, 65, 66, 68, 69, 70, 72, 76, 81, 82, 83, 86, 87, 92,
    102, 112, 119, 123, 125, 131, 133, 135, 138, 147, 148, 156, 157, 158, 177,
]  # fmt: skip  # fmt: skip
SOUND_NUMBER = np.full(256, len(SOUNDS), np.uint8)
SOUND_NUMBER[SOUNDS] = np.arange(len(SOUNDS))


@dataclass(frozen=True)
class Utterance:
    text: str
    words: list[list[int]]  # pieces of each word
    onsets: list[int]  # frame of each word's first sound
    codes: torch.Tensor  # [frames, 8] int16; all in the host's memory
    latents: torch.Tensor  # [frames, 4, LATENT] float16
    spoken: torch.Tensor  # [frames, 4] uint8, the phoneme in the middle of each slot


@dataclass(frozen=True)
class Rows:
    """B streams of S steps. `text` and `codes` are what each step emits; masks are over steps."""

    text: torch.Tensor  # [B, S]
    wants: torch.Tensor  # [B, S] 1 where the word feed should ask for a word
    free: torch.Tensor  # [B, S] bool: the text head decides here
    codes: torch.Tensor  # [B, S, 8], -1 before the first frame
    latents: torch.Tensor  # [B, S, 4 * LATENT]
    spoken: torch.Tensor  # [B, S, 4]
    heard: torch.Tensor  # [B, S] bool: a frame to learn

    def to(self, device: torch.device) -> Rows:
        return Rows(*(getattr(self, f.name).to(device) for f in fields(self)))


def load_shard(path: Path, codec: SlotCodec, tokenizer: Any) -> list[Utterance]:
    shard, out, at = np.load(path), [], 0
    rows, spoken = shard["rows"], SOUND_NUMBER[shard["spoken"]]
    for meta in json.loads(str(shard["meta"])):
        end = at + meta["rows"]
        latents = codec.latents(rows[at:end].astype(np.float32))
        middle = np.minimum(np.arange(len(latents) * SLOTS) * 2 + 1, meta["rows"] - 1)
        out.append(Utterance(
            meta["text"],
            [tokenizer.encode(word) for word, _ in meta["words"]],
            [int(start / FRAME_S) for _, start in meta["words"]],
            codec.codes(latents).to(torch.int16).cpu(),
            latents.half().cpu(),
            torch.from_numpy(spoken[at:end][middle].reshape(-1, SLOTS).copy()),
        ))
        at = end
    return [u for u in out if u.words]


def join(parts: list[Utterance]) -> tuple[list[list[int]], list[int], list[tuple[Utterance, int]], int]:
    """Words, onsets, (utterance, first frame kept) and total frames of utterances said one after another."""
    words: list[list[int]] = []
    onsets: list[int] = []
    cuts, at = [], 0
    for i, part in enumerate(parts):
        cut = max(0, part.onsets[0] - (GAP_FRAMES if i else INITIAL_PADDING))
        words += part.words
        onsets += [at + o - cut for o in part.onsets]
        cuts.append((part, cut))
        at += len(part.codes) - cut
    return words, onsets, cuts, at


def feed(words: list[list[int]], onsets: list[int], end: int, steps: int) -> tuple[list[int], list[int], list[bool]]:
    """The engine's word feed, asking for a word at its onset: (tokens, asks, free to choose) of each step.

    The same rules as `runtime.wordfeed`: queued pieces first, then at most MAX_PADDING pads, and a request past the
    last word is answered with a pad.
    """
    tokens, wants, free = [], [], []
    queue: list[int] = []
    left, hold, word = INITIAL_PADDING, INITIAL_PADDING, 0
    for step in range(steps):
        due = step >= (onsets[word] if word < len(words) else end)
        bound = bool(queue) or hold > 0
        ask = not bound and (due or left <= 0)
        free.append(not bound and left > 0)
        wants.append(int(ask))
        if ask and word < len(words):
            queue, left, word = list(words[word]), MAX_PADDING, word + 1
            tokens.append(NEW_WORD)
            continue
        left, hold = max(0, left - 1), max(0, hold - 1)
        tokens.append(queue.pop(0) if queue else PAD)
    return tokens, wants, free


class RowMaker:
    """Draws rows; the sequence of rows is a function of the seed alone."""

    def __init__(self, utterances: list[Utterance], delay: int, steps: int, seed: int) -> None:
        self.utterances, self.delay, self.steps = utterances, delay, steps
        self.draw = np.random.default_rng(seed)

    def pick(self) -> tuple[list[Utterance], bool]:
        """Utterances for one row, and whether it runs over the end of the row."""
        room = self.steps - self.delay
        over = self.draw.random() < 0.5
        parts: list[Utterance] = []
        used = 0
        while True:
            options = [self.utterances[i] for i in self.draw.integers(len(self.utterances), size=8)]
            fits = [u for u in options if used + len(u.codes) + TAIL_FRAMES <= room]
            if fits and (not over or len(fits) == len(options)):
                # A row that must end takes the longest that fits once it is nearly full.
                parts.append(max(fits, key=lambda u: len(u.codes)) if len(fits) < 6 else fits[0])
            elif over:
                return [*parts, options[0]], True
            elif parts:
                return parts, False
            used = sum(len(p.codes) for p in parts)

    def batch(self, size: int) -> Rows:
        rows = [self.row(*self.pick()) for _ in range(size)]
        return Rows(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def row(self, parts: list[Utterance], over: bool) -> tuple[torch.Tensor, ...]:
        """The seven tensors of `Rows` for one stream."""
        steps, delay = self.steps, self.delay
        words, onsets, cuts, frames = join(parts)
        tokens, wants, free = feed(words, onsets, frames + 1, steps)
        codes = torch.full((steps, 2 * SLOTS), -1)
        latents = torch.zeros(steps, SLOTS * LATENT)
        spoken = torch.zeros(steps, SLOTS, dtype=torch.long)
        at = delay
        for part, cut in cuts:
            many = min(len(part.codes) - cut, steps - at)
            if many <= 0:
                break
            codes[at : at + many] = part.codes[cut : cut + many].long()
            latents[at : at + many] = part.latents[cut : cut + many].flatten(1).float()
            spoken[at : at + many] = part.spoken[cut : cut + many].long()
            at += many
        tail = min(steps, at + TAIL_FRAMES)
        codes[at:] = codes[at - 1]
        latents[at:] = latents[at - 1]
        heard = torch.zeros(steps, dtype=torch.bool)
        heard[delay:tail] = True
        gate = torch.tensor(free)
        gate[min(steps, frames + 1 + 2) :] = False
        return torch.tensor(tokens), torch.tensor(wants), gate, codes, latents, spoken, heard


def seconds(utterance: dict[str, Any]) -> float:
    return float(utterance["rows"]) / RATE

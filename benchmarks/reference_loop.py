"""The loop of the published server (moshi-server's batched TTS module) around the public package, to compare with.

Written anew from the package's own parts, after what that module does: a fixed number of slots, all of which are
computed at every step, whoever uses them; the language model out of step between slots, by execution masks for it and
for the codec; text handed over a word a step; the word state machine of each caller run on tokens taken out of the
tensor and put back; codes of a delay masked; up to two text-only steps between whole ones while somebody leads; sound
and codes of all slots copied out; slots reset by a mask when the next caller takes them.

Where it differs, it is cheaper than the published one: its network part and encoders, which are written in Rust, are
left out, as ours are where the two are compared; so are tokenising, the copy of a voice into a slot (everybody has the
same), the padding bonus, the copy of each slot's sound to its caller, and the sleep when nothing is to do. It never
waits, so it has no empty step; the next caller takes a slot at the step after the last one left it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime import checkpoint
from runtime.port import Entry

FINAL_PADDING, TEXT_ONLY_BETWEEN = 4, 2


def reference_model(directory: Path, *, codebooks: int = 0, dtype: str = "float32") -> Any:
    """The public package's model of this checkpoint, on the processor and without torch.compile, which fails there."""
    from tests.golden import oracle  # It switches torch.compile off.

    model: Any = oracle.load(directory, dtype=checkpoint.DTYPES[dtype], n_q=codebooks or None)
    model.lm.dep_q = model.n_q
    return model


def conditions_of(model: Any, directory: Path, streams: int) -> Any:
    """The voice and the settings of so many streams, as the language model takes them."""
    voices = sorted(directory.glob(f"*{model.voice_suffix}"))[:1] if model.multi_speaker else []
    conditioned = streams if model.valid_cfg_conditionings else 0
    given = [model.make_condition_attributes(voices, cfg_coef=2.0) for _ in range(conditioned)]
    return model.lm.condition_provider.prepare_and_provide(given)


@dataclass
class Caller:
    """Who is on a slot: the words it has not handed over, the state machine's state, and the steps made."""

    words: deque[Entry]
    state: Any
    offset: int = 0

    def ready(self, lookahead: int) -> bool:
        """Whether it has as many words as a step may ask for."""
        if not self.words:
            return True
        entries = self.state.entries
        if not entries:
            return False
        return not lookahead or not entries[0].tokens or sum(1 for e in entries if e.tokens) > lookahead


@dataclass
class ReferenceLoop:
    """So many callers on so many slots; who has ended is followed by a caller with the next script, for ever."""

    model: Any
    conditions: Any
    slots: int
    callers: int
    scripts: Iterator[Sequence[Entry]]
    sound_s: float = 0.0
    whole_steps: int = 0
    text_only_steps: int = 0
    _seats: list[Caller | None] = field(init=False)
    _moving: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        from moshi.models.lm import LMGen
        from moshi.models.tts import Entry as TheirEntry

        model, slots = self.model, self.slots
        self._entry = TheirEntry
        self._generate = LMGen(
            model.lm, temp=0.6, temp_text=0.6, condition_tensors=self.conditions, support_out_of_sync=True,
            on_text_hook=self._put_words, on_audio_hook=self._mask_delayed,
        )  # fmt: skip
        self._generate.streaming_forever(slots)
        model.mimi.streaming_forever(slots)
        zero = model.machine.token_ids.zero
        self._others = torch.full((slots, model.lm.n_q - model.lm.dep_q, 1), zero, dtype=torch.long)
        self._no_codes = torch.full((slots, model.lm.dep_q, 1), zero, dtype=torch.long)
        self._text_only_left = TEXT_ONLY_BETWEEN
        self._pcm = np.zeros((slots, model.mimi.frame_size), np.float32)
        self._codes = np.zeros((slots, model.lm.dep_q + 1), np.int32)
        self._seats, self._moving = [None] * slots, [False] * slots
        self._frame_s = 1.0 / model.mimi.frame_rate

    def _put_words(self, tokens: torch.Tensor) -> None:
        """What the model drew, replaced by what each caller's state machine makes of it."""
        process = self.model.machine.process
        out = tokens.tolist()
        for slot, caller in enumerate(self._seats):
            if caller and self._moving[slot]:
                out[slot], _ = process(caller.offset, caller.state, out[slot])
        tokens[:] = torch.tensor(out, dtype=torch.long)

    def _mask_delayed(self, codes: torch.Tensor) -> None:
        """A codebook gives nothing before its delay and the text's are over."""
        delays = self._generate.delays_cuda[1 : 1 + self.model.lm.dep_q]
        offsets = self._generate._streaming_state.offsets
        codes.masked_fill_(
            offsets[:, None] < delays + self.model.delay_steps, self.model.machine.token_ids.zero
        )

    def _join(self) -> None:
        """The callers who come take free slots, and everybody hands over one word."""
        machine, missing = self.model.machine, self.callers - sum(1 for c in self._seats if c)
        fresh = torch.zeros(self.slots, dtype=torch.bool)
        for slot, caller in enumerate(self._seats):
            if caller is None and missing > 0:
                missing -= 1
                caller = self._seats[slot] = Caller(deque(next(self.scripts)), machine.new_state([]))
                fresh[slot] = True
            if caller and caller.words:
                word = caller.words.popleft()
                caller.state.entries.append(self._entry(list(word.tokens), word.text, word.padding))
        if fresh.any():
            self._generate.reset_streaming(reset_mask=fresh)
            self.model.mimi.reset_streaming(reset_mask=fresh)

    @torch.no_grad()
    def step(self) -> bool:
        """One step of every slot; whether it was a whole one."""
        model, delay = self.model, self.model.delay_steps
        self._join()
        lookahead = model.machine.second_stream_ahead
        ready = [c is not None and c.ready(lookahead) for c in self._seats]
        leads = [r and c is not None and c.offset < delay for r, c in zip(ready, self._seats, strict=True)]
        sounds_from = delay + self._generate.max_delay
        sounds = [r and c is not None and c.offset >= sounds_from for r, c in zip(ready, self._seats, strict=True)]
        leading, moving = sum(leads), sum(ready)
        text_only = (self._text_only_left > 0 and leading > 0) or leading == moving
        self._text_only_left = self._text_only_left - 1 if text_only else TEXT_ONLY_BETWEEN
        self._moving = leads if text_only else ready
        if not any(self._moving):
            return False
        self._generate.set_exec_mask(torch.tensor(self._moving))
        model.mimi.set_exec_mask(torch.tensor([False] * self.slots if text_only else sounds))
        codes = self._generate.step(
            self._others, depformer_replace_tokens=self._no_codes if text_only else None
        )
        codes_of_frame = codes[:, 1:]
        codes_of_frame.clamp_(min=0)
        if not text_only:
            pcm = model.mimi.decode(codes_of_frame)
            pcm.clamp_(-0.99, 0.99)
            self._pcm[:] = pcm[:, 0].numpy()
            self.sound_s += sum(sounds) * self._frame_s
        self._codes[:] = codes[:, :, 0].int().numpy()
        self._leave(sounds_from + FINAL_PADDING)
        self.text_only_steps += text_only
        self.whole_steps += not text_only
        return not text_only

    def _leave(self, after: int) -> None:
        """Moves everybody on; who has come so many steps past the last word is gone."""
        for slot, caller in enumerate(self._seats):
            if caller and self._moving[slot]:
                caller.offset += 1
                end = caller.state.end_step
                if not caller.words and end is not None and caller.offset >= end + after:
                    self._seats[slot] = None

    def frames(self, count: int) -> tuple[float, float, float]:
        """So many whole steps and what goes between: processor and wall seconds, and seconds of sound."""
        cpu, wall, sound_s = time.process_time(), time.perf_counter(), self.sound_s
        until = self.whole_steps + count
        while self.whole_steps < until:
            self.step()
        return time.process_time() - cpu, time.perf_counter() - wall, self.sound_s - sound_s

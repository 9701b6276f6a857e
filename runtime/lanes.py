"""Everything the lanes carry from step to step, allocated once: inputs, state, outputs, all at fixed addresses.

A *span* of lanes is a view of the same memory: a step over few lanes costs little, a stream never moves, and a captured
graph of any *bucket*, the span from lane 0 on, finds its state where it was captured. Lanes that are no span can be
taken out as a copy and put back.
Shapes: B lanes, W rows per lane (1; 2 with guidance: own row, null row), R = B W rows, K codebooks, C context,
H heads, E head width, D width, P samples per frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.model.codec import Codec, CodecState
from runtime.model.hearing import Hearing, OwnVoices, shared_voices
from runtime.model.rows import Rows
from runtime.model_config import ModelConfig

NOT_FORCED = -2  # in `forced`: the model chooses this code
NOTHING = -1  # no token: embedded as zeros
INTS_BEFORE_FORCED = 3
# Tensors with a row a lane: those a step only reads, and those it writes.
INPUTS = ("noise_text", "noise_audio", "temp", "text_temp", "bonus", "guidance", "masked_until", "ints")
MOVED = ("offset", "text", "audio", "history", "asked", "token", "codes", "pcm")


@dataclass(slots=True)
class LaneTensors:
    """One set of buffers, or the first lanes of it."""

    ways: int
    # In: written by the host before a step.
    ints: Tensor  # [B, 3 + K] int64: advance, token if no word, token if word, forced codes
    noise_text: Tensor  # [B, k_text] float32
    noise_audio: Tensor  # [B, K, k_audio]
    # Set when a stream opens.
    temp: Tensor  # [B, 1]
    text_temp: Tensor  # [B, 1]
    bonus: Tensor  # [B, 1]
    guidance: Tensor  # [B, 1]
    masked_until: Tensor  # [B]: null rows hear nothing of a voice prompt up to here; -1: they hear all
    condition: Tensor  # [R, D]
    hearing: Hearing  # of the R rows
    # State: read and written by a step.
    offset: Tensor  # [B] int64
    text: Tensor  # [B]: the last text token
    audio: Tensor  # [B, n_q]: the last codes
    history: Tensor  # [B, K, max_delay + 1]: codes of the last steps, this one last
    rows: Rows  # which rows of the caches are these lanes'
    caches: list[Tensor]  # per layer [all R, C, 2, H, E]: every lane's, whichever these are
    codec: CodecState
    # Out: valid until the next step.
    asked: Tensor  # [B] bool: the model asked for the next word
    token: Tensor  # [B]: the text token that was fed
    codes: Tensor  # [B, K]: this step's codes, -1 where there is none
    pcm: Tensor  # [B, P] float32: of the frame completed by this step; NaN where it did not think in numbers

    @property
    def lanes(self) -> int:
        return self.offset.shape[0]

    @property
    def advance(self) -> Tensor:
        return self.ints[:, 0] != 0

    def span(self, start: int, stop: int) -> LaneTensors:
        """Lanes start .. stop - 1, sharing memory."""
        rows = slice(start * self.ways, stop * self.ways)
        return replace(
            self,
            **{name: getattr(self, name)[start:stop] for name in (*INPUTS, *MOVED)},
            condition=self.condition[rows],
            hearing=self.hearing.span(rows.start, rows.stop),
            rows=self.rows.span(rows.start, rows.stop),
            codec=self.codec.span(start, stop),
        )

    def room(self, lanes: int) -> LaneTensors:
        """Memory for a gathering of so many lanes; what it holds means nothing."""
        rows = lanes * self.ways
        like: dict[str, Any] = {name: _like(getattr(self, name), lanes) for name in (*INPUTS, *MOVED)}
        return replace(
            self,
            **like,
            condition=_like(self.condition, rows),
            hearing=self.hearing.room(rows),
            rows=Rows.of(range(rows), self.offset.device),
            codec=self.codec.room(lanes),
        )

    def gathered(self, lanes: Rows, source: LaneTensors, *, lead: bool) -> LaneTensors:
        """Some lanes of `source`, in this memory but for what is large: that stays where it is.

        What a lead step does not touch is left out.
        """
        rows = lanes.each_way(self.ways)
        for name in (*INPUTS, *MOVED):
            torch.index_select(getattr(source, name), 0, lanes.index, out=getattr(self, name))
        torch.index_select(source.condition, 0, rows.index, out=self.condition)
        hearing = self.hearing.gathered(rows, source.hearing)
        codec = self.codec if lead else self.codec.gathered(lanes, source.codec)
        return replace(self, hearing=hearing, rows=rows, codec=codec)

    def put(self, lanes: Tensor, moved: LaneTensors, *, lead: bool) -> None:
        """Takes back what a step has changed in such a gathering."""
        for name in MOVED:
            getattr(self, name).index_copy_(0, lanes, getattr(moved, name))
        if not lead:
            self.codec.put(lanes, moved.codec)


def _like(tensor: Tensor, count: int) -> Tensor:
    """Memory for a tensor of that kind, with so many rows."""
    return tensor.new_empty((count, *tensor.shape[1:]))


def allocate(
    config: ModelConfig,
    codec: Codec,
    *,
    lanes: int,
    ways: int,
    codebooks: int,
    top_k: int,
    text_top_k: int,
    voice_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    shares_voices: bool = False,
) -> LaneTensors:
    """Fresh buffers for `lanes` lanes. shares_voices: rows that hear one voice share it; see hearing.py."""
    rows, stack = lanes * ways, config.temporal
    head = stack.dim // stack.heads

    def whole(*shape: int, fill: int = 0) -> Tensor:
        return torch.full(shape, fill, dtype=torch.int64, device=device)

    def single(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    layers = range(stack.layers)
    hearing: Hearing
    if shares_voices and config.cross_attention:
        hearing = shared_voices(rows, heads=stack.heads, positions=voice_positions, width=head, dtype=dtype)
    else:
        voice = (2, rows, stack.heads, voice_positions, head)
        attending = layers if config.cross_attention else ()
        hearing = OwnVoices([torch.zeros(voice, dtype=dtype, device=device) for _ in attending])
    return LaneTensors(
        ways=ways,
        ints=whole(lanes, INTS_BEFORE_FORCED + codebooks),
        noise_text=single(lanes, min(text_top_k, config.text_card_out)),
        noise_audio=single(lanes, codebooks, min(top_k, config.card)),
        temp=single(lanes, 1), text_temp=single(lanes, 1), bonus=single(lanes, 1), guidance=single(lanes, 1),
        masked_until=whole(lanes, fill=-1),
        condition=torch.zeros(rows, stack.dim, dtype=dtype, device=device),
        hearing=hearing,
        offset=whole(lanes), text=whole(lanes), audio=whole(lanes, config.n_q),
        history=whole(lanes, codebooks, config.delays.max_delay + 1, fill=NOTHING),
        rows=Rows.of(range(rows), device),
        caches=[torch.zeros(rows, config.context, 2, stack.heads, head, dtype=dtype, device=device) for _ in layers],
        codec=codec.initial_state(lanes),
        asked=torch.zeros(lanes, dtype=torch.bool, device=device), token=whole(lanes),
        codes=whole(lanes, codebooks, fill=NOTHING), pcm=single(lanes, codec.frame_samples),
    )  # fmt: skip


def restart(state: LaneTensors, config: ModelConfig, lane: int) -> None:
    """Puts one lane at the start of a stream, in place. Its caches need no clearing: positions not yet reached are
    masked, and what a former stream left there is overwritten before it is seen."""
    state.offset[lane] = 0
    state.text[lane] = config.text_card
    state.audio[lane] = config.card
    state.history[lane] = NOTHING
    chosen = torch.zeros(state.lanes, dtype=torch.bool, device=state.offset.device)
    chosen[lane] = True
    state.codec.reset(chosen)


def forget(state: LaneTensors, lane: int, steps: int) -> None:
    """Clears what so many steps of a stream left in a lane's caches. Masked positions weigh nothing, but nothing times
    what is no number is none either: the lane's next stream would attend to it."""
    rows = slice(lane * state.ways, (lane + 1) * state.ways)
    for cache in state.caches:
        cache[rows, :steps] = 0


class HostInputs:
    """The host's side of a step's inputs: numpy arrays that are the device's own memory on a CPU, and one pinned
    copy each on a GPU, sent by `push`."""

    def __init__(self, state: LaneTensors) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self.ints: NDArray[np.int64] = self._mirror(state.ints).numpy()
        self.noise_text: NDArray[np.float32] = self._mirror(state.noise_text).numpy()
        self.noise_audio: NDArray[np.float32] = self._mirror(state.noise_audio).numpy()
        self.ints[:, INTS_BEFORE_FORCED:] = NOT_FORCED
        self.noise_text[:] = 1.0
        self.noise_audio[:] = 1.0

    def _mirror(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._pairs.append((tensor, host))
        return host

    def push(self) -> None:
        for device, host in self._pairs:
            device.copy_(host, non_blocking=True)


def set_rows(target: Tensor, lane: int, ways: int, rows: Sequence[Tensor]) -> None:
    """Writes one lane's rows (own, and null with guidance) into a buffer of rows."""
    for way in range(ways):
        target[lane * ways + way].copy_(rows[way])

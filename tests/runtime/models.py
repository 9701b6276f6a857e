"""Small models for the tests, made in memory, and a codec that only counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime import model_config as configs
from runtime import weights
from runtime.engine import SpeechEngine, Trace
from runtime.entries import EntryMaker, PlainFeed
from runtime.graphs import EagerStep, MakeRunner
from runtime.make_checkpoint import random_tensors, raw_config
from runtime.model import layout
from runtime.model.codec import CodecState
from runtime.model.rows import Rows
from runtime.port import Entry, FrameOut, LaneState, StreamSpec
from runtime.voices import Voices


@dataclass
class CountingState:
    frames: Tensor

    def reset(self, lanes: Tensor) -> None:
        self.frames.masked_fill_(lanes, 0)

    def tensors(self) -> Iterator[Tensor]:
        yield self.frames

    def span(self, start: int, stop: int) -> CountingState:
        return CountingState(self.frames[start:stop])

    def room(self, lanes: int) -> CountingState:
        return CountingState(self.frames.new_empty(lanes))

    def gathered(self, lanes: Rows, source: CodecState) -> CountingState:
        torch.index_select(next(source.tensors()), 0, lanes.index, out=self.frames)
        return self

    def put(self, lanes: Tensor, taken: CodecState) -> None:
        self.frames.index_copy_(0, lanes, next(taken.tensors()))


class CountingCodec:
    """Sound that tells how many frames its lane has decoded (sample 0) and what the codes were (samples 1 to K)."""

    sample_rate, frame_samples, card = 24000, 1920, 256

    def __init__(self, n_q: int = 8, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008
        self.n_q, self.device = n_q, device

    def initial_state(self, lanes: int) -> CountingState:
        return CountingState(torch.zeros(lanes, dtype=torch.int64, device=self.device))

    def make_ready(self, state: CodecState) -> None: ...

    def decode_step(self, codes: Tensor, state: CountingState, exec_mask: Tensor) -> Tensor:
        state.frames.add_(exec_mask)
        head = torch.cat((state.frames.unsqueeze(1), codes), dim=1).float()
        return torch.nn.functional.pad(head, (0, self.frame_samples - head.shape[1]))


def encode(word: str) -> list[int]:
    return [4 + (ord(c) * 7) % 500 for c in word[:3]]


@cache
def small_tensors(size: str, seed: int) -> dict[str, Tensor]:
    return dict(random_tensors(layout.expected(configs.parse(raw_config(size))), seed))


def voice_files(directory: Path, size: str = "small", count: int = 2) -> None:
    config = configs.parse(raw_config(size))
    spec = config.conditioner("speaker_wavs")
    draws = torch.Generator().manual_seed(7)
    for n in range(count if spec else 0):
        assert spec is not None
        tensor = torch.randn(1, spec.dim, 16, generator=draws)
        weights.write(directory / f"voice{n}.wav{config.voice_suffix}", {"speaker_wavs": tensor})


def small_engine(
    directory: Path,
    *,
    size: str = "small",
    seed: int = 3,
    lanes: int = 1,
    codebooks: int | None = None,
    runner: MakeRunner = EagerStep,
    dtype: torch.dtype = torch.float32,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    trace: Trace | None = None,
    raw: dict[str, Any] | None = None,
    **more: Any,
) -> SpeechEngine:
    torch.set_num_threads(1)
    voice_files(directory, size)
    config = configs.parse(raw or raw_config(size))
    model = layout.assemble(
        config, small_tensors(size, seed), dtype=dtype, device=device, codebooks=codebooks,
        is_steady=runner is EagerStep and device.type == "cpu",
    )  # fmt: skip

    def make_feed(spec: StreamSpec) -> PlainFeed:
        return PlainFeed(EntryMaker(encode, spec.padding_between, config.speaks_by_embedding))

    codec = CountingCodec(model.depth.codebooks, device)
    return SpeechEngine(model, codec, Voices(directory, config), make_feed, runner, lanes=lanes, trace=trace, **more)


TEXT = "the quick brown fox jumps over the dog"


def entries_of(engine: SpeechEngine, text: str, spec: StreamSpec = StreamSpec()) -> list[Entry]:  # noqa: B008
    feed = engine.text_feed(spec)
    return [*feed.push(text), *feed.end()]


def speak(engine: SpeechEngine, spec: StreamSpec, text: str = TEXT) -> list[FrameOut]:
    """The whole of one stream, alone, lead steps first."""
    lane = engine.open(spec)
    engine.feed(lane, entries_of(engine, text, spec))
    engine.end(lane)
    out = run_out(engine, [lane])
    engine.close(lane)
    return out


def run_out(engine: SpeechEngine, lanes: Sequence[int]) -> list[FrameOut]:
    out: list[FrameOut] = []
    while True:
        states = {lane: engine.state(lane) for lane in lanes}
        moving = [lane for lane, state in states.items() if state in (LaneState.LEAD, LaneState.FULL)]
        if not moving:
            return out
        lead = all(states[lane] is LaneState.LEAD for lane in moving)
        out += engine.step(moving, lead=lead)


def sound(out: Sequence[FrameOut]) -> np.ndarray:
    return np.stack([frame.pcm for frame in out if frame.pcm is not None])

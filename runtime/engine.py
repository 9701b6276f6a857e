"""The engine: streams on lanes, one step at a time. It owns each stream's word feed and noise, and the hand-over.

A step has one hand-over in each direction: the word feed's two possible tokens and the noise go in, the model's answer
and the sound come out. It owns no policy: which lanes step when is the scheduler's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.delays import FRAME_S
from runtime.errors import CannotClone, NoFreeLane, SpecInvalid, StreamClosed
from runtime.graphs import MakeRunner
from runtime.lanes import INTS_BEFORE_FORCED, NOT_FORCED, HostInputs, allocate, forget, restart, set_rows
from runtime.model.codec import Codec
from runtime.model.frame import FrameStep
from runtime.model.hearing import Voice
from runtime.model.layout import SpeechModel
from runtime.model.sampling import Noise, limit_top_k
from runtime.model_config import CFG_MAX, TEMP_MAX
from runtime.port import SPEAKERS_MAX, Entry, FrameOut, LaneState, Pcm, StreamSpec, TextFeed, WordTime
from runtime.voices import Part, Voices
from runtime.wordfeed import FeedRules, Placed, WordFeed

TOP_K, TEXT_TOP_K = 250, 25  # the reference's own, and the most that a stream may ask for
CFG_GUIDED = 2.0  # strength of guidance by a second pass where neither stream nor checkpoint names one
MAX_PADDING, INITIAL_PADDING, FINAL_PADDING = 8, 2, 4
BONUS_MAX, PADDING_MAX = 20.0, 1000

# Called after each step with (lane, step, text token, codes [K]): what `tts say --dump` records.
Trace = Callable[[int, int, int, NDArray[np.int64]], None]
Prompt = NDArray[np.int64]  # [P, K]: the codes of a voice prompt
Mixes = tuple[tuple[Part, ...], ...]  # what a stream speaks with; of nobody, what it is guided away from


class Prompts(Protocol):
    """The voices that are sounds; see cloning.py."""

    def __call__(self, mix: Sequence[Part]) -> Prompt | None: ...

    def add(self, name: str, clip: Pcm) -> None: ...

    def drop(self, name: str) -> None: ...


@dataclass(slots=True)
class _Stream:
    """What one lane is doing."""

    feed: WordFeed
    noise: Noise
    greedy: bool
    top_k: int
    text_top_k: int
    final_padding: int
    prompt: Prompt | None
    is_finite: bool = False  # the last step was a whole one of numbers, and so all that its keys and values hold

    @property
    def prompt_steps(self) -> int:
        return 0 if self.prompt is None else self.prompt.shape[0]


class SpeechEngine:
    """The port's Engine over a model, a codec and a step runner."""

    def __init__(
        self,
        model: SpeechModel,
        codec: Codec,
        voices: Voices,
        make_feed: Callable[[StreamSpec], TextFeed],
        make_runner: MakeRunner,
        *,
        lanes: int = 1,
        patience: int | None = None,
        prompts: Prompts | None = None,
        trace: Trace | None = None,
    ) -> None:
        config = model.config
        self.config, self._model, self._codec = config, model, codec
        self._voices, self._make_feed, self._prompts, self._trace = voices, make_feed, prompts, trace
        self._ways = 2 if config.guided else 1
        state = allocate(
            config, codec, lanes=lanes, ways=self._ways, codebooks=model.depth.codebooks, top_k=TOP_K,
            text_top_k=TEXT_TOP_K, voice_positions=SPEAKERS_MAX * voices.positions, dtype=model.dtype,
            device=model.device, shares_voices=model.is_steady,
        )  # fmt: skip
        self._runner = make_runner(FrameStep(model, codec), state)
        self._state, self._host = state, HostInputs(state)
        self._patience = config.lookahead if patience is None else min(patience, config.lookahead)
        self._streams: list[_Stream | None] = [None] * lanes
        self._heard: WeakValueDictionary[Mixes, Voice] = WeakValueDictionary()  # each voice that is kept or spoken with
        self._kept: dict[Mixes, Voice] = {}

    # What there is

    @property
    def lanes(self) -> int:
        return len(self._streams)

    @property
    def sample_rate(self) -> int:
        return self._codec.sample_rate

    @property
    def frame_samples(self) -> int:
        return self._codec.frame_samples

    @property
    def delay_steps(self) -> int:
        return self.config.delays.delay_steps

    @property
    def first_frame_step(self) -> int:
        return self.config.delays.first_frame_step

    @property
    def lookahead_words(self) -> int:
        return self._patience

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices.names

    def prepare(self) -> None:
        """Compiles and captures all there is to; afterwards no step is slower than its like."""
        self._runner.prepare()

    # Streams

    def text_feed(self, spec: StreamSpec) -> TextFeed:
        return self._make_feed(spec)

    def clone(self, name: str, clip: Pcm) -> None:
        if self.config.speaks_by_embedding:
            raise CannotClone("this checkpoint's voices are embeddings, and what makes them was never published")
        if self._prompts is None:
            raise CannotClone("this checkpoint's codec has no encoder")
        self._prompts.add(name, clip)

    def forget(self, name: str) -> None:
        if self._prompts is not None:
            self._prompts.drop(name)

    def open(self, spec: StreamSpec) -> int:
        mixes = self._voices.check(spec.voices)
        if len(mixes) > 1 and not self.config.speaks_by_embedding:
            raise SpecInvalid("voices", f"this checkpoint speaks with one voice a stream, {len(mixes)} are named")
        stream = self._stream(spec, mixes)
        if None not in self._streams:
            raise NoFreeLane(self.lanes)
        lane = self._streams.index(None)
        with torch.inference_mode():
            restart(self._state, self.config, lane)
            self._condition(lane, spec, mixes, stream)
        self._streams[lane] = stream
        return lane

    def feed(self, lane: int, entries: Sequence[Entry]) -> None:
        stream = self._held(lane)
        if stream.feed.ended:
            raise StreamClosed(lane)
        stream.feed.push(entries)

    def flush(self, lane: int) -> None:
        self._held(lane).feed.flush()

    def end(self, lane: int) -> None:
        self._held(lane).feed.end()

    def close(self, lane: int) -> None:
        stream, self._streams[lane] = self._streams[lane], None
        if stream is not None and not stream.is_finite:
            with torch.inference_mode():
                forget(self._state, lane, stream.feed.step + 1)  # a step that failed may have written
        self._host.ints[lane, 0] = 0
        for way in range(self._ways):
            self._state.hearing.hear(lane * self._ways + way, None)

    def state(self, lane: int) -> LaneState:
        stream = self._streams[lane]
        if stream is None:
            return LaneState.FREE
        feed = stream.feed
        over = feed.end_step is not None and feed.step >= self.config.delays.steps_in_all(
            feed.end_step, stream.final_padding
        )
        if over or feed.silent:
            return LaneState.ENDED
        if not feed.ready:
            return LaneState.STARVED
        return LaneState.LEAD if self.config.delays.is_lead(feed.step) else LaneState.FULL

    # One step

    def step(self, lanes: Sequence[int], *, lead: bool = False) -> list[FrameOut]:
        allowed = (LaneState.LEAD,) if lead else (LaneState.LEAD, LaneState.FULL)
        for lane in lanes:
            if self.state(lane) not in allowed:
                raise ValueError(f"lane {lane} is {self.state(lane).value}: it cannot make a step")
        if not lanes:
            return []
        greedy = all(self._held(lane).greedy for lane in lanes)
        self._host.ints[:, 0] = 0
        for lane in lanes:
            self._prepare(lane, lead=lead, greedy=greedy)
        self._host.push()
        self._runner.run(lanes, lead=lead, greedy=greedy)
        asked = self._state.asked.tolist()
        pcm = None if lead else self._state.pcm[: max(lanes) + 1].cpu().numpy()
        return [self._outcome(lane, asked[lane], pcm) for lane in lanes]

    def _prepare(self, lane: int, *, lead: bool, greedy: bool) -> None:
        """Writes one lane's inputs: what it may be told, what is forced on it, its noise."""
        stream, row = self._held(lane), self._host.ints[lane]
        stream.is_finite = False
        row[0] = 1
        row[1], row[2] = stream.feed.peek()
        if stream.prompt is not None and not lead:
            self._force(row[INTS_BEFORE_FORCED:], stream.prompt, stream.feed.step)
        if greedy:
            return
        text, audio = self._host.noise_text[lane], self._host.noise_audio[lane]
        stream.noise.fill(stream.feed.step, text, None if lead else audio)
        limit_top_k(text, stream.text_top_k)
        limit_top_k(audio, stream.top_k)

    def _force(self, row: NDArray[np.int64], prompt: Prompt, step: int) -> None:
        """The prompt's codes that belong to this step; each codebook has its own delay."""
        for k in range(row.shape[0]):
            frame = step - self.delay_steps - self.config.delays.codebook_delays[k]
            row[k] = prompt[frame, k] if 0 <= frame < prompt.shape[0] else NOT_FORCED

    def _outcome(self, lane: int, asked: bool, pcm: NDArray[np.float32] | None) -> FrameOut:
        stream = self._held(lane)
        step, skipped = stream.feed.step, stream.prompt_steps
        stream.is_finite = pcm is not None and math.isfinite(pcm[lane, -1])
        commit = stream.feed.commit(asked)
        if self._trace is not None:
            self._trace(lane, step, commit.token, self._state.codes[lane].cpu().numpy().copy())
        sounding = pcm is not None and step >= self.first_frame_step + skipped
        return FrameOut(
            lane, step, pcm[lane].copy() if sounding and pcm is not None else None,
            tuple(self._time(word, skipped) for word in commit.started),
            tuple(self._time(word, skipped) for word in commit.finished), self.state(lane),
        )  # fmt: skip

    def _time(self, word: Placed, skipped: int) -> WordTime:
        start = (word.start - skipped) * FRAME_S
        stop = start if word.stop is None else (word.stop - skipped) * FRAME_S
        return WordTime(word.text, round(start, 3), round(stop, 3))

    def _held(self, lane: int) -> _Stream:
        stream = self._streams[lane]
        if stream is None:
            raise StreamClosed(lane)
        return stream

    # Opening

    def _stream(self, spec: StreamSpec, mixes: Sequence[Sequence[Part]]) -> _Stream:
        config = self.config
        temp = _bounded("temp", config.temp if spec.temp is None else spec.temp, 0, TEMP_MAX)
        text_temp = _bounded("text_temp", config.text_temp if spec.text_temp is None else spec.text_temp, 0, TEMP_MAX)
        final = _whole("final_padding", spec.final_padding, FINAL_PADDING, PADDING_MAX)
        prompt = None
        if not config.speaks_by_embedding and self._prompts is not None:
            prompt = self._prompts(mixes[0])
        rules = FeedRules(
            card=config.text_card + 1, lookahead=config.lookahead, patience=self._patience,
            max_padding=_whole("max_padding", spec.max_padding, MAX_PADDING, PADDING_MAX),
            initial_padding=_whole("initial_padding", spec.initial_padding, INITIAL_PADDING, PADDING_MAX),
            tail_steps=config.delays.tail_steps(final), prefix_steps=0 if prompt is None else prompt.shape[0],
        )  # fmt: skip
        return _Stream(
            WordFeed(rules), Noise(spec.seed), temp == 0 and text_temp == 0,
            max(1, _whole("top_k", spec.top_k, TOP_K, TOP_K)),
            max(1, _whole("text_top_k", spec.text_top_k, TEXT_TOP_K, TEXT_TOP_K)), final, prompt,
        )  # fmt: skip

    def _condition(self, lane: int, spec: StreamSpec, mixes: Sequence[tuple[Part, ...]], stream: _Stream) -> None:
        """Writes what holds for the whole stream into the lane's buffers."""
        config, state = self.config, self._state
        state.temp[lane] = config.temp if spec.temp is None else spec.temp
        state.text_temp[lane] = config.text_temp if spec.text_temp is None else spec.text_temp
        state.bonus[lane] = _bounded("padding_bonus", spec.padding_bonus, -BONUS_MAX, BONUS_MAX)
        state.masked_until[lane] = -1 if stream.prompt is None else stream.prompt_steps + self.delay_steps
        cfg, given = self._strength(spec.cfg)
        state.guidance[lane] = cfg
        conditioning = self._model.conditioning
        added = [conditioning.added(given), conditioning.added({})]
        set_rows(state.condition, lane, self._ways, [torch.zeros(()) if a is None else a for a in added])
        if config.cross_attention:
            heard = [self._voice(source) for source in (tuple(mixes), ())[: self._ways]]
            for way, voice in enumerate(heard):
                state.hearing.hear(lane * self._ways + way, voice)
        self._host.ints[lane, INTS_BEFORE_FORCED:] = NOT_FORCED

    def _strength(self, asked: float | None) -> tuple[float, dict[str, str]]:
        """The guidance by a second pass, and the conditions given by name."""
        given = {"control": "ok"}
        values = self.config.cfg_values
        if not values and not self.config.guided:
            if asked not in (None, 1.0):
                raise SpecInvalid("cfg", f"must be 1, is {asked}: this model was trained without guidance")
            return 1.0, given
        if not values:
            default = CFG_GUIDED if self.config.cfg is None else self.config.cfg
            return _bounded("cfg", default if asked is None else asked, 0, CFG_MAX), given
        cfg = (2.0 if 2.0 in values else values[0]) if asked is None else asked
        if cfg not in values:
            raise SpecInvalid("cfg", f"must be one of {', '.join(str(v) for v in values)}, is {cfg}")
        return 1.0, {**given, "cfg": format(cfg, ".1f")}

    def _voice(self, mixes: Mixes) -> Voice:
        """What rows attend to who hear these voices. One that is spoken with is never made a second time."""
        voice = self._heard.get(mixes) or self._attended(mixes)
        self._heard[mixes] = voice
        self._kept.pop(mixes, None)
        self._kept[mixes] = voice
        if len(self._kept) > VOICES_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return voice

    def _attended(self, mixes: Mixes) -> Voice:
        voices = [self._voices.embedding(mix) for mix in mixes]
        source = self._model.conditioning.attended(voices, self._voices.positions)
        assert source is not None
        source = source.to(self._model.dtype)
        heads, layers = self.config.temporal.heads, self._model.temporal.layers
        return self._state.hearing.voice([at.cross.keys_values(source, heads) for at in layers if at.cross])


# Voices whose keys and values are kept though nobody speaks with them: 164 MB each at full size in float32.
VOICES_KEPT = 4


def _bounded(setting: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise SpecInvalid(setting, f"must lie between {low:g} and {high:g}, is {value:g}")
    return value


def _whole(setting: str, asked: int | None, default: int, high: int) -> int:
    return int(_bounded(setting, default if asked is None else asked, 0, high))

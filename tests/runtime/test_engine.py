"""The engine: a stream's sound is its own, whoever else is being served and however the text came."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime import checkpoint, weights
from runtime.config import ModelSettings
from runtime.engine import VOICES_KEPT, SpeechEngine
from runtime.errors import NameUnknown, NoFreeLane, SpecInvalid, StreamClosed
from runtime.make_checkpoint import raw_config
from runtime.model.depth_placed import FramePlan
from runtime.model.mimi_placed import FrameCalls
from runtime.port import FrameOut, LaneState, StreamSpec
from tests.runtime.models import TEXT, entries_of, run_out, small_engine, sound, speak

DEMO = Path(__file__).resolve().parents[2] / "voices" / "demo"
Voices = tuple[str, ...]  # of one stream
GREEDY = StreamSpec(temp=0, text_temp=0)
DRAWN = StreamSpec(temp=0.7, text_temp=0.7, seed=11)


@pytest.mark.parametrize("spec", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_stream_repeats_itself_exactly(tmp_path: Path, spec: StreamSpec) -> None:
    engine = small_engine(tmp_path)
    first, second = speak(engine, spec), speak(engine, spec)
    assert np.array_equal(sound(first), sound(second))
    assert [f.finished for f in first] == [f.finished for f in second]


def test_lead_steps_and_whole_steps_give_the_same_sound(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    quick = speak(engine, DRAWN)
    lane = engine.open(DRAWN)
    engine.feed(lane, entries_of(engine, TEXT))
    engine.end(lane)
    slow = []
    while engine.state(lane) is not LaneState.ENDED:
        slow += engine.step([lane])
    assert np.array_equal(sound(quick), sound(slow))
    assert next(f.step for f in slow if f.pcm is not None) == engine.first_frame_step == 18


def test_text_word_by_word_gives_the_same_sound_as_whole(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    whole = speak(engine, DRAWN, TEXT)
    lane, feed, pieces = engine.open(DRAWN), engine.text_feed(DRAWN), []
    for char in TEXT:
        engine.feed(lane, feed.push(char))
        pieces += run_out(engine, [lane])
        assert engine.state(lane) is LaneState.STARVED
    engine.feed(lane, feed.end())
    engine.end(lane)
    pieces += run_out(engine, [lane])
    assert np.array_equal(sound(whole), sound(pieces))


def test_neighbours_joining_and_leaving_change_nothing_in_a_lane(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, lanes=4)
    other = StreamSpec(temp=0.9, text_temp=0.9, seed=5, voices=("voice1",))
    top = engine.open(other), engine.open(other), engine.open(other)
    mine = engine.open(DRAWN)
    engine.close(top[0])
    engine.feed(mine, entries_of(engine, TEXT))
    engine.end(mine)
    alone = sound(run_out(engine, [mine]))
    engine.close(mine)
    engine.close(top[1])
    engine.close(top[2])

    lanes = [engine.open(replace(other, seed=n)) for n in range(3)]
    mine = engine.open(DRAWN)
    for lane in (*lanes, mine):
        engine.feed(lane, entries_of(engine, TEXT[lane * 4 :]))
        if lane != mine:
            engine.end(lane)
    engine.close(mine)
    mine = engine.open(DRAWN)
    engine.feed(mine, entries_of(engine, TEXT))
    engine.end(mine)
    frames, n = [], 0
    while engine.state(mine) is not LaneState.ENDED:
        n += 1
        if n == 30:  # one leaves, another takes its lane
            engine.close(lanes[0])
            lanes[0] = engine.open(replace(other, seed=99))
            engine.feed(lanes[0], entries_of(engine, "something else entirely now"))
            engine.end(lanes[0])
        moving = [i for i in (lanes[n % 3], lanes[1]) if engine.state(i) in (LaneState.LEAD, LaneState.FULL)]
        frames += [f for f in engine.step([*dict.fromkeys(moving), mine]) if f.lane == mine]
    assert np.array_equal(alone, sound(frames))


def test_scattered_lanes_step_as_neighbours_do_and_leave_those_between_alone(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, lanes=7)
    seeds = range(7)
    together: dict[int, list[FrameOut]] = {n: [] for n in seeds}
    for _ in range(2):  # first all in one span, then in two combs that take turns
        lanes = [engine.open(replace(DRAWN, seed=n)) for n in seeds]
        for lane in lanes:
            engine.feed(lane, entries_of(engine, TEXT))
            engine.end(lane)
        groups = [lanes] if not together[0] else [lanes[::3], lanes[1::3], lanes[2::3]]
        heard: dict[int, list[FrameOut]] = {n: [] for n in seeds}
        while any(engine.state(n) is not LaneState.ENDED for n in lanes):
            for group in groups:
                moving = [n for n in group if engine.state(n) is not LaneState.ENDED]
                lead = all(engine.state(n) is LaneState.LEAD for n in moving)
                for frame in engine.step(moving, lead=lead) if moving else ():
                    heard[frame.lane].append(frame)
        for lane in lanes:
            engine.close(lane)
            if together[lane]:
                assert np.array_equal(sound(together[lane]), sound(heard[lane]))
            together[lane] = heard[lane]


def test_the_first_step_of_no_number_of_lanes_makes_calls_ready(small_checkpoint: Path) -> None:
    """It took 3 ms more than the next ones, and a house that filled up met every number once."""

    def ready() -> int:
        gc.collect()
        return sum(type(held) in (FrameCalls, FramePlan) for held in gc.get_objects())

    others = ready()
    engine = checkpoint.start(ModelSettings(model=small_checkpoint, lanes=5, check_values=False))
    assert isinstance(engine, SpeechEngine)
    at_start = ready()
    assert at_start - others == 2 * 5 + 4, "each number of lanes has both; each lane by itself has its own of one kind"
    lanes = [engine.open(replace(DRAWN, seed=n)) for n in range(5)]
    for lane in lanes:
        engine.feed(lane, entries_of(engine, TEXT))
    for count in range(1, 6):
        engine.step(lanes[:count])
        engine.step(lanes[-count:])
    assert ready() == at_start


@pytest.mark.parametrize("size", ["small", "small-prompted"])
@pytest.mark.parametrize("spec", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_any_lane_and_batch_size_give_the_same_codes(tmp_path: Path, spec: StreamSpec, size: str) -> None:
    expected = sound(speak(small_engine(tmp_path, size=size, lanes=1), spec))
    engine = small_engine(tmp_path, size=size, lanes=5)
    for busy in range(1, 5):
        lanes = [engine.open(replace(DRAWN, seed=n)) for n in range(busy)]
        assert np.array_equal(sound(speak(engine, spec)), expected)
        for lane in lanes:
            engine.close(lane)


def said_in_company(
    engine: SpeechEngine, neighbours: int, seed: int, spec: StreamSpec = DRAWN, others: Sequence[Voices] = ((),)
) -> np.ndarray:
    """The bits of one stream's sound while others speak beside it, some of them leaving before it ends.

    others: the voices that they speak with, in turns.
    """
    draws = random.Random(seed)
    before = draws.randint(0, neighbours)
    specs = [replace(DRAWN, seed=n, voices=others[n % len(others)]) for n in range(neighbours)]
    lanes = [engine.open(spec) for spec in specs[:before]]
    mine = engine.open(spec)
    lanes += [engine.open(spec) for spec in specs[before:]]
    for lane in (*lanes, mine):
        engine.feed(lane, entries_of(engine, TEXT if lane == mine else TEXT[lane:]))
        engine.end(lane)
    frames: list[FrameOut] = []
    while engine.state(mine) is not LaneState.ENDED:
        if lanes and draws.random() < 0.05:
            engine.close(lanes.pop(draws.randrange(len(lanes))))
        moving = [lane for lane in lanes if engine.state(lane) in (LaneState.LEAD, LaneState.FULL)]
        order = draws.sample([mine, *moving], len(moving) + 1)
        lead = all(engine.state(lane) is LaneState.LEAD for lane in order)
        frames += [frame for frame in engine.step(order, lead=lead) if frame.lane == mine]
    for lane in (*lanes, mine):
        engine.close(lane)
    return sound(frames)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("voice", ["small", "demo"])
def test_a_lane_has_the_same_bits_in_any_company(small_checkpoint: Path, voice: str, dtype: str) -> None:
    """Real codecs and the shipped voice: any batch size, any order of joining and leaving, every kind of numbers."""
    directory = small_checkpoint if voice == "small" else DEMO
    engine = checkpoint.start(ModelSettings(model=directory, dtype=dtype, lanes=9, check_values=False))
    alone = said_in_company(engine, 0, 0)
    for seed, neighbours in enumerate((1, 2, 3, 4, 8)):
        assert np.array_equal(alone, said_in_company(engine, neighbours, seed)), f"seed {seed}: {neighbours} neighbours"


MANY: tuple[Voices, ...] = (("voice0",), ("voice1",), ("voice0:0.7+voice1:0.3",), ("voice1", "voice0"), ("voice1",) * 5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whoever_else_speaks_with_whatever_voices_a_lane_has_the_same_bits(small_checkpoint: Path, dtype: str) -> None:
    """Others with the same voice, all with another, several among each other, a voice that nobody else has."""
    engine = checkpoint.start(ModelSettings(model=small_checkpoint, dtype=dtype, lanes=9, check_values=False))
    for mine in MANY[:4]:
        spec = replace(DRAWN, voices=mine)
        alone = said_in_company(engine, 0, 0, spec)
        for seed, others in enumerate(((mine,), MANY[1:2], MANY, MANY[4:])):
            assert np.array_equal(alone, said_in_company(engine, 8 - seed, seed, spec, others)), (mine, others)


@pytest.mark.parametrize("size", ["small", "small-prompted"])
def test_a_model_of_wide_matrices_alone_speaks_in_any_company(
    tmp_path: Path, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the published models are: their products take fewer rows than a small matrix, or a voice, wants at least."""
    monkeypatch.setattr("runtime.model.matrices.PACKED_MIN", 0)
    engine = small_engine(tmp_path, size=size, lanes=5)
    voices: tuple[Voices, ...] = MANY[:2] if size == "small" else ((),)
    spec = replace(DRAWN, voices=voices[0])
    alone = said_in_company(engine, 0, 0, spec)
    for count, others in itertools.product(range(1, 5), (voices[:1], voices)):
        assert np.array_equal(alone, said_in_company(engine, count, count, spec, others)), (count, others)


def guided_by_two_ways(directory: Path, lanes: int) -> SpeechEngine:
    """A model that attends to voices and was not trained with guidance: each step is also thought without a voice."""
    raw = raw_config("small")
    raw["conditioners"] = {name: raw["conditioners"][name] for name in raw["conditioners"] if name != "cfg"}
    raw["fuser"] = {**raw["fuser"], "sum": ["control"]}
    return small_engine(directory, lanes=lanes, raw=raw)


def test_a_lane_that_is_guided_hears_its_voice_and_none_in_any_company(tmp_path: Path) -> None:
    engine = guided_by_two_ways(tmp_path, lanes=9)
    for mine, cfg in itertools.product(MANY[:3], (1.0, 2.5)):
        spec = replace(DRAWN, voices=mine, cfg=cfg)
        alone = said_in_company(engine, 0, 0, spec)
        for seed, others in enumerate(((mine,), MANY, MANY[1:2])):
            assert np.array_equal(alone, said_in_company(engine, 8 - seed, seed, spec, others)), (mine, cfg, others)
    own, other = (sound(speak(engine, replace(GREEDY, voices=voices, cfg=2.5))) for voices in MANY[:2])
    assert not np.array_equal(own, other)


def test_a_voice_that_others_drove_out_goes_on_and_is_there_once(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, lanes=9)
    spec = replace(DRAWN, voices=("voice0:0.9+voice1:0.1",))
    alone = sound(speak(engine, spec))
    lanes = [engine.open(spec)]
    for share in range(2, 2 + 2 * VOICES_KEPT):
        engine.close(engine.open(replace(spec, voices=(f"voice0:{share}+voice1:1.5",))))
    assert len(engine._heard) == VOICES_KEPT + 1
    heard = engine._heard[engine._voices.check(spec.voices)]
    lanes.append(engine.open(spec))
    assert engine._heard[engine._voices.check(spec.voices)] is heard
    for lane in lanes:
        engine.feed(lane, entries_of(engine, TEXT))
        engine.end(lane)
    frames = run_out(engine, lanes)
    assert all(np.array_equal(alone, sound([f for f in frames if f.lane == lane])) for lane in lanes)


def test_a_closed_lane_keeps_no_voice(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, lanes=7)
    lanes = [engine.open(replace(DRAWN, voices=(f"voice0:{n + 1}+voice1:1.5",))) for n in range(7)]
    for lane in lanes:
        engine.feed(lane, entries_of(engine, TEXT))
    for moving in (lanes, lanes[::3], lanes[2:5]):  # all, a copy of some, and a span
        engine.step(moving, lead=True)
    assert len(engine._heard) == 7
    for lane in lanes:
        engine.close(lane)
    assert len(engine._heard) == VOICES_KEPT


def test_the_noise_of_a_step_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    assert not np.array_equal(sound(speak(engine, DRAWN))[:5], sound(speak(engine, replace(DRAWN, seed=12)))[:5])


def test_a_reopened_lane_remembers_nothing(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    fresh = sound(speak(engine, GREEDY))
    speak(engine, replace(DRAWN, voices=("voice1",)), "words of another caller")
    assert np.array_equal(fresh, sound(speak(engine, GREEDY)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [5, 16, 17, 30])
def test_a_stream_that_overflows_is_not_heard_and_does_nothing_to_others(
    tmp_path: Path, steps: int, dtype: torch.dtype
) -> None:
    """Finite weights, a finite voice, keys that are none. Its codes sounded like any others, and the lane's next
    streams were its like: a masked position weighs nothing, and nothing times no number is no number."""
    config = small_engine(tmp_path).config
    wide = torch.full((1, config.conditioner("speaker_wavs").dim, 16), 1e20)
    weights.write(tmp_path / f"loud.wav{config.voice_suffix}", {"speaker_wavs": wide})
    engine = small_engine(tmp_path, lanes=4, dtype=dtype)
    spec = replace(DRAWN, voices=("voice0.wav",))
    alone = sound(speak(engine, spec))
    bad, beside, other = (engine.open(replace(spec, voices=(name,))) for name in ("loud.wav", *spec.voices * 2))
    heard: list[FrameOut] = []
    for lane in (bad, beside, other):
        engine.feed(lane, entries_of(engine, TEXT))
        engine.end(lane)
    for n in range(steps):
        heard += engine.step([other, bad, beside], lead=n < engine.delay_steps)
    assert all(np.isnan(f.pcm).all() for f in heard if f.lane == bad and f.pcm is not None)
    engine.close(bad)
    after = engine.open(spec)
    assert after == bad
    engine.feed(after, entries_of(engine, TEXT))
    engine.end(after)
    heard = [f for f in heard if f.lane != bad] + run_out(engine, [beside, after, other])
    assert all(np.array_equal(alone, sound([f for f in heard if f.lane == n])) for n in (beside, after, other))


def test_flush_gives_the_sound_of_all_its_words_then_starves(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    lane = engine.open(GREEDY)
    engine.feed(lane, entries_of(engine, "one two"))
    engine.flush(lane)
    out = run_out(engine, [lane])
    words = [w for f in out for w in f.finished]
    assert [w.text for w in words] == ["one", "two"]
    heard_s = sum(f.pcm is not None for f in out) * 0.08
    assert heard_s >= words[-1].stop_s
    assert engine.state(lane) is LaneState.STARVED


def test_words_are_timed_and_their_sound_is_given_before_the_end(tmp_path: Path) -> None:
    out = speak(small_engine(tmp_path), GREEDY)
    words = [w for f in out for w in f.finished]
    assert [w.text for w in words] == TEXT.split()
    assert all(a.stop_s <= b.start_s for a, b in itertools.pairwise(words))
    assert sum(f.pcm is not None for f in out) * 0.08 >= words[-1].stop_s
    assert out[-1].ended


def test_nothing_to_say_needs_no_step(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    lane = engine.open(GREEDY)
    engine.end(lane)
    assert engine.state(lane) is LaneState.ENDED


def test_refusals_say_what_there_is(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    with pytest.raises(NameUnknown, match=r"voice0\.wav, voice1\.wav"):
        engine.open(StreamSpec(voices=("nobody",)))
    with pytest.raises(SpecInvalid, match=r"cfg: must be one of 1\.0, 1\.5"):
        engine.open(StreamSpec(cfg=1.7))
    with pytest.raises(SpecInvalid, match="temp"):
        engine.open(StreamSpec(temp=-1))
    with pytest.raises(SpecInvalid, match="voices: at most 5"):
        engine.open(StreamSpec(voices=("voice0",) * 6))
    with pytest.raises(SpecInvalid, match="voices: this checkpoint speaks with one voice a stream, 2 are named"):
        small_engine(tmp_path, size="small-prompted").open(StreamSpec(voices=("default", "default")))
    lane = engine.open(GREEDY)
    with pytest.raises(NoFreeLane):
        engine.open(GREEDY)
    with pytest.raises(ValueError, match="starved"):
        for _ in range(10):
            engine.step([lane])
    engine.end(lane)
    with pytest.raises(StreamClosed):
        engine.feed(lane, entries_of(engine, "late"))


def test_a_mixed_voice_lies_between_its_parts(tmp_path: Path) -> None:
    engine = small_engine(tmp_path)
    one, mix = (
        speak(engine, replace(GREEDY, voices=("voice0",))),
        speak(engine, replace(GREEDY, voices=("voice0:1+voice1:3",))),
    )
    same = speak(engine, replace(GREEDY, voices=("voice0+voice0.wav",)))
    assert np.array_equal(sound(one), sound(same))
    assert not np.array_equal(sound(one)[:3], sound(mix)[:3])


def test_fewer_codebooks_speak_the_coarse_codes_only(tmp_path: Path) -> None:
    out = speak(small_engine(tmp_path, codebooks=4), GREEDY)
    assert (sound(out)[:, 1:5] >= 0).all() and (sound(out)[:, 5:] == 0).all()


def test_a_model_whose_own_guidance_is_1_thinks_once(tmp_path: Path) -> None:
    raw = raw_config("small-prompted")
    raw["lm_gen_config"] = {**raw["lm_gen_config"], "cfg": 1.0}
    engine = small_engine(tmp_path, size="small-prompted", raw=raw)
    assert engine._state.condition.shape[0] == 1
    with pytest.raises(SpecInvalid, match="cfg: must be 1"):
        engine.open(StreamSpec(cfg=2.0))

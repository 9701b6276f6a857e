"""Every output format, decoded again by FFmpeg or by hand: all of the sound is there, from end to end."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

from runtime.audio import SOURCE_RATE, Samples, encoder, formats, g711_values
from runtime.audio_av import read_clip

FRAME, EDGE = 1920, SOURCE_RATE // 50  # 80 ms, and the 20 ms at either end that a codec might lose
# How far the decoded sound may lie behind the source, in samples: what a decoder that knows nothing of priming hears.
LATE_MAX = {"mp3": 1105, "aac": 2048}


def sweep(seconds: float) -> Samples:
    """Loud from its first sample to its last, and like itself at no other moment.

    200 to 980 Hz within 1.5 s: Opus codes quicker sweeps by their sound, not by their form.
    """
    t = np.arange(round(seconds * SOURCE_RATE)) / SOURCE_RATE
    return (0.4 * np.cos(2 * np.pi * (200 * t + 260 * t**2))).astype(np.float32)


def decoded(name: str, data: bytes) -> Samples:
    """The sound at 24 kHz again."""
    kind, _, rate = name.partition("_")
    if kind in ("pcm", "ulaw", "mulaw", "alaw"):
        if name == "pcm_f32":
            return np.frombuffer(data, "<f4")
        if kind == "pcm":
            values = np.frombuffer(data, "<i2") / np.float32(32768)
        else:
            values = g711_values(kind.replace("mulaw", "ulaw"))[np.frombuffer(data, np.uint8)] / np.float32(32768)
        source_rate = int(rate or SOURCE_RATE)
        at = np.arange(round(len(values) * SOURCE_RATE / source_rate)) * source_rate / SOURCE_RATE
        return np.interp(at, np.arange(len(values)), values).astype(np.float32)
    return read_clip(io.BytesIO(data))


def alike(a: Samples, b: Samples) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("name", sorted(formats()))
def test_a_sound_comes_back_whole(name: str) -> None:
    sound, enc = sweep(1.5), encoder(name)
    pieces = itertools.pairwise([*range(0, len(sound), FRAME), len(sound)])
    heard = decoded(name, b"".join([*(enc.encode(sound[a:b]) for a, b in pieces), enc.finish()]))
    kind = name.partition("_")[0]
    assert 0 <= len(heard) - len(sound) + 1 <= LATE_MAX.get(kind, 0) + 577, (len(heard), len(sound))
    late = int(np.argmax(np.correlate(np.pad(heard, (64, 4096)), sound, "valid"))) - 64
    assert abs(late) <= max(8, LATE_MAX.get(kind, 0)), late
    heard = np.pad(heard, (64, 4096))[64 + late :][: len(sound)]
    assert alike(heard, sound) > 0.98
    for edge in (slice(0, EDGE), slice(len(sound) - EDGE, len(sound))):
        assert alike(heard[edge], sound[edge]) > 0.9, (name, edge)
        assert 0.5 < heard[edge].std() / sound[edge].std() < 1.5, (name, edge)
    assert np.abs(heard).max() < 0.7

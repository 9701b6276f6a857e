"""A voice from a clip: its codes are the encoder's, and a clip that cannot carry one is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from runtime.audio import encoder
from runtime.cloning import ClipPrompts, prompt_codes
from runtime.errors import CheckpointInvalid, SpecInvalid
from runtime.model.codec import load_codec
from runtime.model.mimi import Mimi
from runtime.model.mimi_config import parse_mimi_config
from runtime.voices import Part, Voices
from tests.golden.mimi_random import SMALL, random_mimi


class Shelf:
    """Voices that are files in one directory; what ClipPrompts needs of runtime.voices.Voices."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def file(self, name: str) -> Path:
        return self._directory / f"{name}.wav"


@pytest.fixture(scope="module")
def mimi() -> Mimi:
    return cast(Mimi, load_codec(random_mimi(parse_mimi_config(SMALL), 7), SMALL, n_q=8))


def sound(seconds: float) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(round(seconds * 24_000)) * 0.1).astype(np.float32)


def prompts(directory: Path, mimi: Mimi, samples: np.ndarray) -> ClipPrompts:
    enc = encoder("wav")
    (directory / "anna.wav").write_bytes(enc.encode(samples) + enc.finish())
    return ClipPrompts(mimi, 24_000, cast(Voices, Shelf(directory)))


def test_a_clips_prompt_is_its_codes_without_the_last_two_frames(tmp_path: Path, mimi: Mimi) -> None:
    samples = sound(1.0)
    made = prompts(tmp_path, mimi, samples)((Part("anna", 1.0),))
    heard = np.rint(np.clip(samples, -1, 1) * 32767).astype(np.float32) / 32768  # as the WAV holds it
    expected = mimi.encode(torch.from_numpy(heard)[None])[0, :, :-2].t().numpy()
    assert made.shape == (11, 8)
    assert (made == expected).all()


def test_a_clip_is_encoded_once(tmp_path: Path, mimi: Mimi) -> None:
    maker = prompts(tmp_path, mimi, sound(0.6))
    first = maker((Part("anna", 1.0),))
    (tmp_path / "anna.wav").unlink()
    assert maker((Part("anna", 1.0),)) is first


def test_sounds_cannot_be_mixed(tmp_path: Path, mimi: Mimi) -> None:
    with pytest.raises(SpecInvalid, match="sounds cannot be mixed"):
        prompts(tmp_path, mimi, sound(0.6))((Part("anna", 0.5), Part("ben", 0.5)))


def test_a_clip_too_short_or_unreadable_is_named(tmp_path: Path, mimi: Mimi) -> None:
    with pytest.raises(SpecInvalid, match=r"the clip lasts 0\.20 s"):
        prompt_codes(mimi, sound(0.2), 24_000)
    maker = prompts(tmp_path, mimi, sound(0.6))
    (tmp_path / "anna.wav").write_bytes(b"<html>")
    with pytest.raises(CheckpointInvalid, match=r"anna\.wav: cannot read the clip as sound"):
        maker((Part("anna", 1.0),))

"""The slow, obvious twin of the spectral codec: a whole utterance at once, in float64, harmonic by harmonic."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from runtime.model import spectral
from runtime.model.spectral import SpectralCodec

HOP, WINDOW = spectral.HOP, spectral.WINDOW


def decode(codec: SpectralCodec, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Codes [T, K] to T * 1920 samples."""
    books, bias = codec.entries.numpy().astype(float), codec.bias.numpy().astype(float)
    silence = codec.initial_state(1).silence.numpy().astype(float)
    rows = [silence, silence]
    for frame in codes:
        for slot in range(4):
            total = bias + sum(books[stage, frame[4 * stage + slot]] for stage in range(codec.stages))
            rows += list(total.reshape(2, -1))
    table = np.stack(rows)
    pulses = np.concatenate([np.zeros(spectral.OVERLAP), pulse_train(table[1:])])
    out = np.zeros(len(pulses) + WINDOW)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    noise = codec.noise_table.numpy().astype(float)
    voiced, hissed = codec.bands
    for j in range(8 * len(codes)):
        spectrum = np.fft.rfft(pulses[j * HOP : j * HOP + WINDOW] * window)
        row = table[j]
        harmonic = np.exp(np.clip(row[:voiced] @ codec.harmonic.numpy(), -12, 7)) * spectral.HARMONIC_GAIN
        hiss = np.exp(np.clip(row[voiced : voiced + hissed] @ codec.noise.numpy(), -12, 7)) * spectral.NOISE_GAIN
        grain = noise[j % len(noise)]
        shaped = spectrum * harmonic + (grain[:, 0] + 1j * grain[:, 1]) * hiss
        out[j * HOP : j * HOP + WINDOW] += np.fft.irfft(shaped, WINDOW) * window / 1.5
    return out[: 1920 * len(codes)]


def pulse_train(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of cosines between the centres of neighbouring rows."""
    out, turns = [], 0.0
    for low, high in itertools.pairwise(table):
        for i in range(1, HOP + 1):
            at = (low[-2:] + (high[-2:] - low[-2:]) * i / HOP) / 3
            f0 = min(max(np.exp(at[0]), 40.0), 1000.0)
            turns += f0 / 24000
            every = np.arange(1, int(11000 / f0) + 1)
            gain = min(max((at[1] - 0.35) / 0.3, 0.0), 1.0)
            out.append(gain * np.cos(2 * np.pi * every * turns).sum())
    return np.array(out)

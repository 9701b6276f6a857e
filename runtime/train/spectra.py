"""The spectral parameters that the demo voice's codec quantises: one row of 90 numbers every 10 ms.

56 mel bands of log harmonic amplitude, 32 of log noise amplitude, three times log F0, three times voicing. Owns
the conversion from the teacher's network outputs; the way back is `runtime.model.spectral`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

HARMONIC_BANDS, NOISE_BANDS = 56, 32
WIDTH = HARMONIC_BANDS + NOISE_BANDS + 2
RATE = 100  # rows a second: 8 rows make one 80 ms frame
TEACHER_RATE = 80
SAMPLE_RATE = 24000
F0_FLOOR = 40.0
Floats = NDArray[np.float32]


def mel_centres(bands: int) -> NDArray[np.float64]:
    """Edges of `bands` triangular filters over 0..12 kHz, equally spaced in mel: [bands + 2] in Hz."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    return np.asarray(700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1))


@cache
def mel_filters(bands: int, bins: int) -> Floats:
    """[bands, bins] triangular averages over `bins` equally spaced frequencies; every row sums to one."""
    edges, freq = mel_centres(bands), np.linspace(0, SAMPLE_RATE / 2, bins)
    rows = np.zeros((bands, bins), np.float32)
    for i in range(bands):
        a, b, c = edges[i : i + 3]
        rows[i] = np.clip(np.minimum((freq - a) / (b - a + 1e-9), (c - freq) / (c - b + 1e-9)), 0, None)
        if rows[i].sum() == 0:
            rows[i, np.argmin(abs(freq - b))] = 1
    return np.asarray(rows / rows.sum(1, keepdims=True), np.float32)


def envelope_basis(bands: int, bins: int) -> Floats:
    """[bands, bins]: linear interpolation between band centres, the way back from `mel_filters`."""
    freq = np.linspace(0, SAMPLE_RATE / 2, bins)
    centres = (mel_filters(bands, 601) * np.linspace(0, SAMPLE_RATE / 2, 601)).sum(1)
    return np.stack([np.interp(freq, centres, row) for row in np.eye(bands)]).astype(np.float32)


def continuous_log_f0(f0: Floats, voiced: NDArray[np.bool_]) -> Floats:
    """Log F0 with the unvoiced stretches bridged by straight lines, so that it can be quantised."""
    index = np.arange(len(f0))
    if voiced.sum() < 2:
        return np.full(len(f0), np.log(180.0), np.float32)
    return np.interp(index, index[voiced], np.log(f0[voiced])).astype(np.float32)


def features(log_harmonic: Floats, log_noise: Floats, f0: Floats) -> Floats:
    """Teacher frames ([bins, F] log amplitudes, F0 in Hz) -> [F, WIDTH] at the teacher's rate."""
    bins = log_harmonic.shape[0]
    harmonic = (mel_filters(HARMONIC_BANDS, bins) @ np.clip(log_harmonic, -12, 7)).T
    noise = (mel_filters(NOISE_BANDS, bins) @ np.clip(log_noise, -12, 7)).T
    voiced = f0 > F0_FLOOR
    pitch = continuous_log_f0(f0, voiced)[:, None]
    return np.concatenate([harmonic, noise, 3 * pitch, 3 * voiced[:, None]], 1).astype(np.float32)


def resample(rows: Floats) -> Floats:
    """[F, WIDTH] at 80 Hz -> 100 Hz, linear, voicing kept two-valued."""
    count = max(1, round(len(rows) * RATE / TEACHER_RATE))
    at = (np.arange(count) + 0.5) / RATE * TEACHER_RATE - 0.5
    low = np.clip(np.floor(at).astype(int), 0, len(rows) - 1)
    high = np.clip(low + 1, 0, len(rows) - 1)
    part = np.clip(at - low, 0, 1)[:, None].astype(np.float32)
    out = rows[low] * (1 - part) + rows[high] * part
    out[:, -1] = np.where(out[:, -1] > 1.5, 3, 0)
    return np.asarray(out, np.float32)

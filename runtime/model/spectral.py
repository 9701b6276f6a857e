"""The spectral codec: codes to spectral parameters to sound, frame by frame. It owns the decoder; fitting is in train/.

A frame of 80 ms is four slots of 20 ms, each the sum of one entry per stage; eight rows of 10 ms result, a row holding
log harmonic amplitudes and log noise amplitudes in mel bands, log F0 and voicing. A pulse train of that F0, filtered
by the harmonic envelope, and noise filtered by the noise envelope are added in short-time spectra that overlap by
three quarters.

Shapes: B lanes, K codes, R = 8 rows of a frame, W columns of a row, F bins, S = 1920 samples.

Sound leaves DELAY samples (35 ms) after the code that asked for it: a spectrum needs the rows around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.codec import CodecState
from runtime.model.rows import Rows

SAMPLE_RATE, FRAME_SAMPLES = 24000, 1920
ROWS, HOP, WINDOW = 8, 240, 960
OVERLAP = WINDOW - HOP
LATE_ROWS = 2  # rows whose spectrum needs the next frame's pulses
# The last row's centre plus half a window is the end of what can be finished now.
DELAY = (LATE_ROWS - 1) * HOP + HOP // 2 + WINDOW // 2
PULSE_LAG = HOP // 2  # F0 is known between row centres, so pulses end half a row before the frame does
TOP_HZ, FLOOR_HZ = 11000.0, 40.0
WINDOW_POWER = 1.5  # of overlapped squared Hann windows at a quarter hop
# The parameters describe short-time spectra of 1200 samples; these make them amplitudes in windows of 960.
HARMONIC_GAIN, NOISE_GAIN = 1 / 300, (960 / 1200) ** 0.5
PARAMETER_SCALE = 3.0  # of log F0 and voicing in a row
SILENCE = -12.0  # log amplitude
NOISE_FRAMES = 61  # of stored noise, 4.9 s, then again from the start: deterministic, and not heard as a loop
TENSORS = ("quantizer.codebooks", "decoder.weight", "decoder.bias", "decoder.harmonic_basis", "decoder.noise_basis")


@dataclass(frozen=True)
class SpectralState:
    """What a lane carries: the last rows, pulses and sound that overlap the next frame, the pulses' phase."""

    rows: Tensor  # [B, LATE_ROWS, W]
    pulses: Tensor  # [B, OVERLAP]
    sound: Tensor  # [B, OVERLAP]
    phase: Tensor  # [B] float64, in turns
    frame: Tensor  # [B] int64, frames since the lane began
    silence: Tensor  # [W], the row that comes before the first; shared by all lanes

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.rows, self.pulses, self.sound, self.phase, self.frame)

    def reset(self, lanes: Tensor) -> None:
        """Starts the lanes of the mask [B] anew, in place."""
        self.rows.copy_(torch.where(lanes[:, None, None], self.silence, self.rows))
        for tensor in (self.pulses, self.sound, self.phase, self.frame):
            tensor.masked_fill_(lanes.view(-1, *[1] * (tensor.dim() - 1)), 0)

    def span(self, start: int, stop: int) -> SpectralState:
        """Lanes start .. stop - 1, sharing memory with this state."""
        rows, pulses, sound, phase, frame = (t[start:stop] for t in self.tensors())
        return SpectralState(rows, pulses, sound, phase, frame, self.silence)

    def room(self, lanes: int) -> SpectralState:
        """Memory for a gathering of so many lanes; what it holds means nothing."""
        rows, pulses, sound, phase, frame = (t.new_empty(lanes, *t.shape[1:]) for t in self.tensors())
        return SpectralState(rows, pulses, sound, phase, frame, self.silence)

    def gathered(self, lanes: Rows, source: CodecState) -> SpectralState:
        """Becomes a copy of some lanes' state."""
        for own, held in zip(self.tensors(), source.tensors(), strict=True):
            torch.index_select(held, 0, lanes.index, out=own)
        return self

    def put(self, lanes: Tensor, taken: CodecState) -> None:
        """Writes such a copy back."""
        for old, new in zip(self.tensors(), taken.tensors(), strict=True):
            old.index_copy_(0, lanes, new)

    def keep(self, exec_mask: Tensor, fresh: tuple[Tensor, ...]) -> None:
        """Takes the fresh value of each tensor for the lanes that ran."""
        for old, new in zip(self.tensors(), fresh, strict=True):
            old.copy_(torch.where(exec_mask.view(-1, *[1] * (old.dim() - 1)), new, old))


class SpectralCodec:
    """A `Codec`. All arithmetic is float32, save the phase, which runs for as long as a stream does."""

    sample_rate, frame_samples = SAMPLE_RATE, FRAME_SAMPLES

    def __init__(self, tensors: Mapping[str, Tensor], n_q: int, device: torch.device) -> None:
        """tensors: those of TENSORS; n_q: slots of a frame times the stages to use."""
        books, weight, bias, harmonic, noise = (tensors[name].float().to(device) for name in TENSORS)
        self.n_q, self.card = n_q, int(books.shape[1])
        self.stages, self.width = n_q // 4, harmonic.shape[0] + noise.shape[0] + 2
        self.bands = (harmonic.shape[0], noise.shape[0])
        # The projection is linear, so each entry is stored as what it adds to two rows: [stages, card, 2 * W].
        self.entries = books @ weight
        self.bias, self.harmonic, self.noise = bias, harmonic, noise
        self.window = torch.hann_window(WINDOW, device=device)
        draw = torch.Generator().manual_seed(0)
        self.noise_table = torch.randn(NOISE_FRAMES * ROWS, harmonic.shape[1], 2, generator=draw).to(device)

    def initial_state(self, lanes: int) -> SpectralState:
        device = self.bias.device
        silence = torch.full((self.width,), SILENCE, device=device)
        silence[-2:] = torch.tensor([PARAMETER_SCALE * torch.log(torch.tensor(180.0)), 0.0])
        zeros = torch.zeros(lanes, OVERLAP, device=device)
        return SpectralState(
            silence.expand(lanes, LATE_ROWS, -1).clone(), zeros.clone(), zeros,
            torch.zeros(lanes, dtype=torch.float64, device=device),
            torch.zeros(lanes, dtype=torch.int64, device=device), silence,
        )

    def rows(self, codes: Tensor) -> Tensor:
        """[B, K] -> the eight rows [B, R, W] of a frame. Codes out of range are taken into it: see `decode_step`."""
        slots = codes.clamp(0, self.card - 1).view(-1, self.stages, 4)
        total = self.bias
        for stage in range(self.stages):
            total = total + self.entries[stage][slots[:, stage]]
        return total.reshape(len(codes), ROWS, self.width)

    def make_ready(self, state: CodecState) -> None:
        """Nothing is done once only."""

    def decode_step(self, codes: Tensor, state: SpectralState, exec_mask: Tensor) -> Tensor:
        """One frame of sound [B, S]; lanes outside exec_mask keep their state and their row means nothing."""
        rows = torch.cat([state.rows, self.rows(codes)], 1)
        fresh, phase = self.pulse_train(rows[:, LATE_ROWS - 1 :], state.phase)
        pulses = torch.cat([state.pulses, fresh], 1)
        spectra = torch.fft.rfft(pulses.unfold(1, WINDOW, HOP) * self.window)
        shaped = self.shape(spectra, rows[:, :ROWS], state.frame)
        pieces = torch.fft.irfft(shaped, WINDOW) * (self.window / WINDOW_POWER)
        sound = overlap_add(pieces)
        sound = torch.cat([sound[:, :OVERLAP] + state.sound, sound[:, OVERLAP:]], 1)
        rest = (rows[:, ROWS:], pulses[:, FRAME_SAMPLES:], sound[:, FRAME_SAMPLES:], phase, state.frame + 1)
        state.keep(exec_mask, rest)
        return sound[:, :FRAME_SAMPLES]

    def pulse_train(self, rows: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
        """Pulses from the centre of the first row [B, 1 + R, W] to that of the last, and the phase there.

        Every harmonic below TOP_HZ at unit amplitude: sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2 for H of them.
        """
        low, high = rows[:, :-1, None, -2:], rows[:, 1:, None, -2:]
        share = (torch.arange(HOP, device=rows.device) + 1) / HOP
        at = (low + (high - low) * share[:, None]).flatten(1, 2) / PARAMETER_SCALE
        f0 = at[..., 0].exp().clamp(FLOOR_HZ, 1000.0)
        turns = phase[:, None] + (f0.double() / SAMPLE_RATE).cumsum(1)
        angle = (2 * torch.pi * (turns - turns.floor())).float()
        harmonics = (TOP_HZ / f0).floor() + 0.5
        half = (angle / 2).sin()
        near = half.abs() < 1e-3
        wave = torch.where(near, harmonics, (harmonics * angle).sin() / torch.where(near, 1.0, 2 * half)) - 0.5
        # Voicing was quantised with the rest, so it is a number near 0 or 1: a steep ramp decides.
        return wave * ((at[..., 1] - 0.35) / 0.3).clamp(0, 1), turns[:, -1] % 1.0

    def shape(self, spectra: Tensor, rows: Tensor, frame: Tensor) -> Tensor:
        """Filters the pulses' spectra [B, R, F] by the harmonic envelopes of `rows` and adds shaped noise."""
        voiced, hissed = self.bands
        harmonic = (rows[..., :voiced] @ self.harmonic).clamp(SILENCE, 7).exp() * HARMONIC_GAIN
        hiss = (rows[..., voiced : voiced + hissed] @ self.noise).clamp(SILENCE, 7).exp() * NOISE_GAIN
        index = (frame[:, None] * ROWS + torch.arange(ROWS, device=frame.device)) % len(self.noise_table)
        shaped: Tensor = spectra * harmonic + torch.view_as_complex(self.noise_table[index]) * hiss
        return shaped


def overlap_add(pieces: Tensor) -> Tensor:
    """[B, R, WINDOW] pieces, HOP apart -> [B, R * HOP + OVERLAP]."""
    lanes, count, window = pieces.shape
    blocks = pieces.view(lanes, count, window // HOP, HOP)
    total = pieces.new_zeros(lanes, count + window // HOP - 1, HOP)
    for part in range(window // HOP):
        total[:, part : part + count] += blocks[:, :, part]
    return total.flatten(1)


def load(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, *, n_q: int, device: torch.device,
    is_steady: bool = False,
) -> SpectralCodec:  # fmt: skip
    """The codec of a checkpoint. Raises CheckpointInvalid for a tensor that is missing or does not fit."""
    for name in TENSORS:
        if name not in tensors:
            raise CheckpointInvalid(name, "the spectral codec needs this tensor")
    _check(tensors)
    stages = tensors["quantizer.codebooks"].shape[0]
    if (config or {}).get("slots", 4) != 4 or n_q % 4 or not 0 < n_q // 4 <= stages:
        raise CheckpointInvalid("config.json: n_q", f"{n_q} codes do not fill 4 slots with at most {stages} stages")
    return SpectralCodec(tensors, n_q, device)


def _check(tensors: Mapping[str, Tensor]) -> None:
    """All shapes follow from the number of codes and bands; values must be finite floats."""
    books, _, _, harmonic, noise = (tensors[name] for name in TENSORS)
    for name in sorted(tensors.keys() - set(TENSORS)):
        raise CheckpointInvalid(name, "is not part of a spectral codec")
    for name, tensor, dims in ((TENSORS[0], books, 3), (TENSORS[3], harmonic, 2), (TENSORS[4], noise, 2)):
        if tensor.dim() != dims or 0 in tensor.shape:
            raise CheckpointInvalid(name, f"has shape {list(tensor.shape)}, expected {dims} dimensions")
    both, bins = ROWS // 4 * (harmonic.shape[0] + noise.shape[0] + 2), WINDOW // 2 + 1
    shapes = (
        books.shape, (books.shape[2], both), (both,), (harmonic.shape[0], bins), (noise.shape[0], bins),
    )  # fmt: skip
    for name, shape in zip(TENSORS, shapes, strict=True):
        if tensors[name].shape != shape:
            raise CheckpointInvalid(name, f"has shape {list(tensors[name].shape)}, expected {list(shape)}")
        if not tensors[name].is_floating_point():
            raise CheckpointInvalid(name, f"has type {tensors[name].dtype}, expected a float type")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise CheckpointInvalid(name, "holds NaN or infinity")

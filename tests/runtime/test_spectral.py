"""The spectral codec: the same sound whole, in frames, and in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.codec import Codec, load_codec
from runtime.model.spectral import DELAY, SpectralCodec, load
from tests.runtime import spectral_twin

HARMONIC, NOISE, CARD = 6, 4, 16
WIDTH = HARMONIC + NOISE + 2
PITCH, VOICED = -2, -1


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """A codec of random entries around a voiced row of 150 Hz."""
    draw = torch.Generator().manual_seed(seed)
    bias = torch.zeros(2, WIDTH)
    bias[:, :HARMONIC], bias[:, HARMONIC:] = 3.0, -1.0
    bias[:, PITCH], bias[:, VOICED] = 3 * torch.log(torch.tensor(150.0)), 2.0
    bins = torch.linspace(0, 1, 481)

    def basis(bands: int) -> Tensor:
        centres = torch.linspace(0, 1, bands)[:, None]
        return (1 - (bins - centres).abs() * (bands - 1)).clamp(min=0)

    return {
        "quantizer.codebooks": torch.randn(2, CARD, 5, generator=draw),
        "decoder.weight": torch.randn(5, 2 * WIDTH, generator=draw) * 0.2,
        "decoder.bias": bias.flatten(),
        "decoder.harmonic_basis": basis(HARMONIC),
        "decoder.noise_basis": basis(NOISE),
    }


def codec(n_q: int = 8) -> SpectralCodec:
    return load(tensors(), {"type": "spectral"}, n_q=n_q, device=torch.device("cpu"))


def stream(codec: SpectralCodec, codes: Tensor) -> Tensor:
    """[B, T, K] codes, a frame a step, every lane running -> [B, T * S]."""
    state, run = codec.initial_state(len(codes)), torch.ones(len(codes), dtype=torch.bool)
    return torch.cat([codec.decode_step(frame, state, run) for frame in codes.unbind(1)], 1)


def codes(lanes: int, frames: int, seed: int = 1) -> Tensor:
    return torch.randint(CARD, (lanes, frames, 8), generator=torch.Generator().manual_seed(seed))


def test_it_keeps_the_codec_port() -> None:
    found = load_codec(tensors(), {"type": "spectral"}, n_q=8)
    assert isinstance(found, Codec)
    assert (found.sample_rate, found.frame_samples, found.n_q, found.card) == (24000, 1920, 8, CARD)


def test_frame_by_frame_gives_the_sound_of_the_whole_utterance() -> None:
    made = codec()
    said = codes(1, 5)
    whole = spectral_twin.decode(made, said[0].numpy())
    streamed = stream(made, said)[0].numpy()
    assert np.abs(whole).max() > 0.01
    assert np.abs(streamed - whole).max() < 2e-3 * np.abs(whole).max()


def test_a_lane_sounds_the_same_alone_and_in_company() -> None:
    made = codec()
    said = codes(3, 4)
    together = stream(made, said)
    for lane in range(3):
        assert torch.allclose(stream(made, said[lane : lane + 1])[0], together[lane], atol=1e-6)


def test_a_lane_that_does_not_run_keeps_its_state_whatever_its_codes() -> None:
    made = codec()
    said = codes(2, 4)
    state = made.initial_state(2)
    run, rest = torch.tensor([True, True]), torch.tensor([True, False])
    heard = [made.decode_step(said[:, 0], state, run)[1]]
    for frame in range(3):
        noise = torch.stack([said[0, frame], torch.full((8,), -1)])
        made.decode_step(noise, state, rest)
    heard += [made.decode_step(said[:, t], state, run)[1] for t in range(1, 4)]
    assert torch.allclose(torch.cat(heard), stream(made, said[1:])[0], atol=1e-6)


def test_a_reset_lane_starts_anew_and_its_neighbour_goes_on() -> None:
    made = codec()
    said = codes(2, 6)
    state, run = made.initial_state(2), torch.ones(2, dtype=torch.bool)
    addresses = [t.data_ptr() for t in state.tensors()]
    first = [made.decode_step(said[:, t], state, run) for t in range(3)]
    state.reset(torch.tensor([True, False]))
    again = [made.decode_step(said[:, t], state, run) for t in range(3)]
    assert torch.allclose(torch.cat(again, 1)[0], torch.cat(first, 1)[0], atol=1e-6)
    straight = torch.cat([said[1:, :3], said[1:, :3]], 1)
    assert torch.allclose(torch.cat(first + again, 1)[1], stream(made, straight)[0], atol=1e-6)
    assert [t.data_ptr() for t in state.tensors()] == addresses


def test_a_bucket_of_lanes_shares_the_state() -> None:
    made = codec()
    said = codes(2, 2)
    state = made.initial_state(2)
    made.decode_step(said[:1, 0], state.span(0, 1), torch.ones(1, dtype=torch.bool))
    made.decode_step(said[:, 1], state, torch.ones(2, dtype=torch.bool))
    assert state.frame.tolist() == [2, 1]


def test_a_voiced_row_gives_its_pitch_and_an_unvoiced_one_does_not() -> None:
    made = tensors()
    made["decoder.weight"].zero_()
    made["decoder.bias"].view(2, WIDTH)[:, HARMONIC:-2] = -12.0
    voiced = stream(load(made, None, n_q=8, device=torch.device("cpu")), codes(1, 8))[0, DELAY + 1920 :]
    spectrum = torch.fft.rfft(voiced * torch.hann_window(len(voiced))).abs()
    hz = torch.fft.rfftfreq(len(voiced), 1 / 24000)
    assert abs(float(hz[spectrum[hz < 220].argmax()]) - 150) < 3
    made["decoder.bias"].view(2, WIDTH)[:, VOICED] = 0.0
    unvoiced = stream(load(made, None, n_q=8, device=torch.device("cpu")), codes(1, 8))[0]
    assert float(unvoiced.abs().max()) < 0.01 * float(voiced.abs().max())


def test_the_coarse_stage_alone_is_a_codec() -> None:
    said = codes(1, 3)
    assert stream(codec(4), said[:, :, :4]).shape == (1, 3 * 1920)


@pytest.mark.parametrize("n_q", [0, 3, 12])
def test_codes_that_do_not_fill_the_slots_are_refused(n_q: int) -> None:
    with pytest.raises(CheckpointInvalid, match="do not fill 4 slots"):
        codec(n_q)


def test_a_missing_tensor_is_named() -> None:
    made = tensors()
    del made["decoder.noise_basis"]
    with pytest.raises(CheckpointInvalid, match=r"decoder\.noise_basis"):
        load(made, None, n_q=8, device=torch.device("cpu"))

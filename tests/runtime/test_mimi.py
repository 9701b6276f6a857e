"""Mimi: the sound of the public package, frame by frame, whatever else the other lanes do."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.codec import Codec, CodecState, VoiceEncoder, load_codec
from runtime.model.mimi import Mimi
from runtime.model.mimi_config import MimiConfig, expected_shapes, parse_mimi_config
from runtime.model.mimi_weights import decoder_names
from runtime.model.rows import Rows
from tests.golden import make_mimi_golden as golden
from tests.golden.mimi_random import SMALL, random_mimi
from tests.runtime import mimi_twin as twin

CONFIG = parse_mimi_config(SMALL)
N_Q, SEED = 8, 7
needs_oracle = [
    pytest.mark.oracle,
    pytest.mark.skipif(importlib.util.find_spec("moshi") is None, reason="the public moshi package is not installed"),
]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return random_mimi(CONFIG, SEED)


@pytest.fixture(scope="module")
def mimi(weights: dict[str, Tensor]) -> Mimi:
    return cast(Mimi, load_codec(weights, SMALL, n_q=N_Q))


def random_codes(lanes: int, frames: int, seed: int = 0) -> Tensor:
    return torch.randint(0, CONFIG.card, (lanes, N_Q, frames), generator=torch.Generator().manual_seed(seed))


def decoded(codec: Codec, codes: Tensor, state: CodecState | None = None) -> Tensor:
    state = state or codec.initial_state(codes.shape[0])
    moving = torch.ones(codes.shape[0], dtype=torch.bool)
    return torch.cat([codec.decode_step(codes[:, :, i], state, moving) for i in range(codes.shape[2])], -1)


def test_it_is_a_codec_and_a_voice_encoder(mimi: Mimi) -> None:
    assert isinstance(mimi, Codec)
    assert isinstance(mimi, VoiceEncoder)
    assert (mimi.sample_rate, mimi.frame_samples, mimi.n_q, mimi.card) == (24_000, 1920, 8, 256)


def test_frame_by_frame_equals_the_whole_at_once(mimi: Mimi, weights: dict[str, Tensor]) -> None:
    codes = random_codes(2, 40)  # 80 steps: the ring of 30 goes round more than twice
    whole = twin.decode(weights, CONFIG, codes)
    torch.testing.assert_close(decoded(mimi, codes), whole, atol=2e-5, rtol=0)


def test_the_golden_sound_and_codes_of_the_public_package(mimi: Mimi) -> None:
    codes, clip = golden.inputs()
    with np.load(golden.GOLDEN) as kept:
        pcm, encoded = kept["pcm"], kept["encoded"]
    ours = decoded(mimi, torch.from_numpy(codes))[:, :: golden.EVERY]
    np.testing.assert_allclose(ours.numpy(), pcm, atol=2e-5, rtol=0)
    assert (mimi.encode(torch.from_numpy(clip)).numpy() == encoded).all()


def test_a_clip_gives_the_same_codes_whole_and_in_pieces(mimi: Mimi, weights: dict[str, Tensor]) -> None:
    frames = 40
    pcm = torch.randn(2, frames * 1920, generator=torch.Generator().manual_seed(1)) * 0.3
    whole = mimi.encode(pcm)
    assert torch.equal(whole, twin.encode(weights, CONFIG, pcm, N_Q))
    encoder = mimi.encoder()
    state, moving = encoder.initial_state(2), torch.ones(2, dtype=torch.bool)
    pieces = pcm.split([1920 * n for n in (1, 3, 8, 2, 1, 8, 8, 7, 2)], dim=1)
    assert torch.equal(torch.cat([encoder.encode_step(p, state, moving) for p in pieces], -1), whole)


def test_a_lane_never_hears_its_neighbours(mimi: Mimi) -> None:
    codes, others = random_codes(3, 12), random_codes(3, 12, seed=9)
    others[1] = codes[1]
    assert torch.equal(decoded(mimi, codes)[1], decoded(mimi, others)[1])
    alone = decoded(mimi, codes[1:2])[0]
    torch.testing.assert_close(decoded(mimi, codes)[1], alone, atol=1e-5, rtol=0)


def test_a_lane_that_waits_goes_on_where_it_was(mimi: Mimi) -> None:
    codes = random_codes(2, 30)
    state, at, heard = mimi.initial_state(2), [0, 0], [[], []]  # type: list[int], list[list[Tensor]]
    rng = np.random.default_rng(3)
    while min(at) < 30:
        moving = torch.tensor([bool(rng.integers(2)) and at[b] < 30 for b in range(2)])
        step = torch.stack([codes[b, :, at[b]] if moving[b] else torch.full((N_Q,), -1) for b in range(2)])
        pcm = mimi.decode_step(step, state, moving)
        for b in range(2):
            if moving[b]:
                heard[b].append(pcm[b])
                at[b] += 1
    expected = decoded(mimi, codes)
    for b in range(2):
        torch.testing.assert_close(torch.cat(heard[b]), expected[b], atol=1e-5, rtol=0)


def test_a_reset_lane_begins_anew_and_the_other_goes_on(mimi: Mimi) -> None:
    before, after = random_codes(2, 35), random_codes(2, 35, seed=5)
    state = mimi.initial_state(2)
    decoded(mimi, before, state)
    state.reset(torch.tensor([True, False]))
    joined = decoded(mimi, after, state)
    torch.testing.assert_close(joined[0], decoded(mimi, after)[0], atol=1e-5, rtol=0)
    whole = decoded(mimi, torch.cat([before, after], -1))
    torch.testing.assert_close(joined[1], whole[1, 35 * 1920 :], atol=1e-5, rtol=0)


def test_state_stays_where_it_is_and_as_large_as_it_is(mimi: Mimi) -> None:
    state = mimi.initial_state(1)
    addresses = [t.data_ptr() for t in state.tensors()]
    decoded(mimi, random_codes(1, 200), state)
    state.reset(torch.tensor([True]))
    assert [t.data_ptr() for t in state.tensors()] == addresses


def test_a_step_never_asks_the_host_about_its_contents(mimi: Mimi) -> None:
    """Tracing with fake tensors fails at any branch, shape or read that depends on values."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(codes: Tensor, moving: Tensor, fresh: Tensor) -> Tensor:
        state.reset(fresh)
        return mimi.decode_step(codes, state, moving)

    state = mimi.initial_state(2)
    yes = torch.ones(2, dtype=torch.bool)
    graph = make_fx(step, tracing_mode="real")(random_codes(2, 1)[..., 0], yes, ~yes)
    names = {str(node.target) for node in graph.graph.nodes}
    assert not names & {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default"}


def test_codebooks_out_of_use_and_the_encoder_are_never_read(weights: dict[str, Tensor], mimi: Mimi) -> None:
    used = set(decoder_names(CONFIG, N_Q))
    there = {name: t if name in used else t.to("meta") for name, t in weights.items()}
    codes = random_codes(1, 3)
    assert torch.equal(decoded(load_codec(there, SMALL, n_q=N_Q), codes), decoded(mimi, codes))


def test_the_published_layout_has_the_published_size() -> None:
    shapes = expected_shapes(MimiConfig())
    elements = sum(int(np.prod(s)) for s in shapes.values())
    assert len(shapes) == 318
    assert 384_644_900 - 4 * elements == 39_328  # the header; the rest of the published file is data


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"decoder.model.0.conv.conv.bias": None}, r"decoder\.model\.0\.conv\.conv\.bias: is missing"),
        ({"decoder.extra": torch.zeros(1)}, r"decoder\.extra: is not part of a Mimi checkpoint"),
        (
            {"upsample.convtr.convtr.convtr.weight": torch.zeros(64, 1, 6)},
            r"upsample.*: has shape \[64, 1, 6\], expected \[64, 1, 4\]",
        ),
        (
            {"decoder.model.2.convtr.convtr.bias": torch.full((64,), float("nan"))},
            r"decoder\.model\.2\.convtr\.convtr\.bias: holds NaN or infinity",
        ),
    ],
)
def test_a_wrong_tensor_is_named(weights: dict[str, Tensor], change: dict[str, Tensor | None], complaint: str) -> None:
    broken = {name: t for name, t in (weights | change).items() if t is not None}  # type: ignore[operator]
    with pytest.raises(CheckpointInvalid, match=complaint):
        load_codec(broken, SMALL, n_q=N_Q)


@pytest.mark.parametrize(
    ("section", "key", "value", "complaint"),
    [
        ("seanet", "activation", "GELU", "seanet.activation: 'GELU' is not supported, only 'ELU'"),
        ("seanet", "ratios", [8, 6, 5, 0], "ratios: 0 is not a number above 0"),
        ("seanet", "wings", 2, "seanet.wings: unknown key"),
        ("transformer", "num_heads", 3, "num_heads: does not divide"),
        ("quantizer", "input_dimension", 32, "seanet.dimension: 64 differs"),
        ("", "frame_rate", 13, "frame_rate: a frame is not a multiple"),
    ],
)
def test_a_wrong_config_value_is_named(section: str, key: str, value: object, complaint: str) -> None:
    raw: dict[str, Any] = copy.deepcopy(SMALL)
    (raw[section] if section else raw)[key] = value
    with pytest.raises(CheckpointInvalid, match=complaint):
        parse_mimi_config(raw)


@pytest.mark.parametrize("n_q", [1, 17])
def test_too_few_or_too_many_codebooks_are_refused(weights: dict[str, Tensor], n_q: int) -> None:
    with pytest.raises(CheckpointInvalid, match=r"the codec has 2 \.\. 16"):
        load_codec(weights, SMALL, n_q=n_q)


class TestAgainstTheOracle:
    pytestmark = needs_oracle

    def test_the_golden_vectors_are_still_what_it_gives(self) -> None:
        made = golden.compute()
        with np.load(golden.GOLDEN) as kept:
            np.testing.assert_allclose(made["pcm"], kept["pcm"], atol=2e-5, rtol=0)
            assert (made["encoded"] == kept["encoded"]).all()

    def test_the_published_shapes_sound_the_same(self) -> None:
        weights = random_mimi(MimiConfig(), SEED)
        ours, theirs = load_codec(weights, None, n_q=32), golden.reference(None, weights, 32)
        codes = torch.randint(0, 2048, (1, 32, 6), generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(decoded(ours, codes), golden.streamed(theirs, codes), atol=1e-4, rtol=0)
        pcm = torch.randn(1, 1920 * 6, generator=torch.Generator().manual_seed(3)) * 0.3
        with torch.no_grad():
            assert torch.equal(cast(Mimi, ours).encode(pcm), theirs.encode(pcm[:, None]))


@pytest.mark.parametrize("lanes", [1, 2, 5, 9, 67])
@pytest.mark.parametrize("residuals", [1, 2], ids=["one residual layer", "two, the second dilated"])
def test_fixed_memory_a_few_lanes_at_a_time_gives_what_the_layers_give(lanes: int, residuals: int) -> None:
    raw = copy.deepcopy(SMALL)
    raw["seanet"]["n_residual_layers"] = residuals
    config = parse_mimi_config(raw)
    tensors = random_mimi(config, SEED)
    plain, placed = (load_codec(tensors, raw, n_q=N_Q, is_steady=is_steady) for is_steady in (False, True))
    states = plain.initial_state(lanes), placed.initial_state(lanes)
    draws = torch.Generator().manual_seed(lanes)
    for frame in range(4):
        codes = random_codes(lanes, 1, seed=frame)[..., 0]
        moving = torch.rand(lanes, generator=draws) < 0.7
        wanted, got = (c.decode_step(codes, s, moving) for c, s in zip((plain, placed), states, strict=True))
        torch.testing.assert_close(got[moving], wanted[moving], atol=2e-6, rtol=0)
    for kept, also in zip(states[0].tensors(), states[1].tensors(), strict=True):
        torch.testing.assert_close(also, kept, atol=1e-5, rtol=0)


def test_a_lane_has_the_same_bits_among_any_number_of_lanes() -> None:
    torch.set_num_threads(1)
    codec = load_codec(random_mimi(parse_mimi_config(SMALL), SEED), SMALL, n_q=N_Q, is_steady=True)
    codes = random_codes(40, 18)  # once round the ring of 30 and further
    whole = decoded(codec, codes)
    for lanes in (1, 2, 3, 4, 7, 16, 17, 33):
        assert torch.equal(decoded(codec, codes[40 - lanes :]), whole[40 - lanes :]), lanes


@pytest.mark.parametrize("is_steady", [False, True], ids=["plain", "steady"])
def test_lanes_that_step_in_a_copy_sound_as_in_place(is_steady: bool) -> None:
    weights = random_mimi(parse_mimi_config(SMALL), SEED)
    mimi = cast(Mimi, load_codec(weights, SMALL, n_q=N_Q, is_steady=is_steady))
    codes = random_codes(3, 40)  # the ring of 30 goes round more than twice
    expected, lanes = decoded(mimi, codes), Rows.of([2, 0], torch.device("cpu"))
    state = mimi.initial_state(3)
    room = state.room(5).span(0, 2)
    for frame in range(40):
        if frame in (1, 2):  # others' steps, more lanes than were seen before: memory that all share grows
            decoded(mimi, random_codes(4 * frame, 1))
            lanes = Rows.of([[2, 0], [0, 2]][frame - 1], torch.device("cpu"))
        copied = room.gathered(lanes, state)
        pcm = mimi.decode_step(codes[lanes.index, :, frame], copied, torch.ones(2, dtype=torch.bool))
        state.put(lanes.index, copied)
        wanted = expected[lanes.index, frame * 1920 : (frame + 1) * 1920]
        torch.testing.assert_close(pcm, wanted, atol=1e-5, rtol=0)

"""Sound out: every format keeps the sound, whatever the pieces it comes in, and says what it is."""

from __future__ import annotations

import gc
import io
import itertools
import struct
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.audio import (
    SOURCE_RATE,
    Samples,
    encoder,
    format_of_path,
    formats,
    g711_values,
    pack_alaw,
    pack_ulaw,
    resampler,
    to_s16,
    wav_header,
)
from runtime.audio_av import ClipUnreadable, read_clip
from runtime.errors import NameUnknown

FRAME = 1920
CONTAINERS = ["wav", "wav_8000", "wav_48000", "opus", "mp3", "flac", "aac"]


def tone(seconds: float, hz: float = 440.0, level: float = 0.3) -> Samples:
    t = np.arange(round(seconds * SOURCE_RATE)) / SOURCE_RATE
    return (level * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def encoded(name: str, sound: Samples, cuts: list[int] | None = None) -> bytes:
    enc = encoder(name)
    edges = [0, *sorted(cuts if cuts is not None else range(FRAME, len(sound), FRAME)), len(sound)]
    return b"".join(enc.encode(sound[a:b]) for a, b in itertools.pairwise(edges)) + enc.finish()


@pytest.mark.parametrize("name", sorted(formats()))
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 12_000), max_size=6))
def test_any_split_of_the_sound_gives_the_same_bytes(name: str, cuts: list[int]) -> None:
    sound = tone(0.5)
    assert encoded(name, sound, cuts) == encoded(name, sound, [])


@pytest.mark.parametrize("name", ["opus", "mp3", "flac", "aac"])
@pytest.mark.parametrize("pieces", [0, 1], ids=["before its first sound", "in the middle"])
def test_a_stream_that_is_dropped_leaves_no_codec_to_the_garbage_collector(name: str, pieces: int) -> None:
    """Of FLAC each held 3 MB until a collection; a server that looks for garbage seldom grew by 150 MB in 80 calls."""

    def codecs() -> int:
        return sum(type(o) is av.AudioCodecContext for o in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = codecs()
        for _ in range(3):
            dropped = encoder(name)
            for _ in range(pieces):
                dropped.encode(tone(0.08))
            del dropped
        assert codecs() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_sound_keeps_its_length_and_loudness(name: str) -> None:
    sound = tone(2.0)
    heard = read_clip(io.BytesIO(encoded(name, sound)))
    extra = {"mp3": 1105 + 576, "aac": 2048}.get(name, 0)
    assert len(sound) <= len(heard) <= len(sound) + extra
    middle = slice(SOURCE_RATE // 2, SOURCE_RATE)
    assert 20 * abs(np.log10(heard[middle].std() / sound[middle].std())) < 0.1


@pytest.mark.parametrize("name", ["pcm_8000", "pcm_16000", "pcm_22050", "pcm_44100", "pcm_48000", "wav_48000", "opus"])
def test_the_first_frame_gives_sound_at_once(name: str) -> None:
    enc = encoder(name)
    assert len(enc.encode(tone(0.08))) > 100


@pytest.mark.parametrize("name", ["pcm_8000", "pcm_16000", "pcm_22050", "pcm_44100", "pcm_48000"])
def test_frames_after_the_first_have_one_size_and_little_is_held_back(name: str) -> None:
    enc = encoder(name)
    sizes = [len(enc.encode(tone(0.08))) // 2 for _ in range(20)]
    whole = enc.sample_rate * 8 // 100
    assert set(sizes[1:]) == {whole}
    assert whole - sizes[0] <= 0.005 * enc.sample_rate


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_a_resampled_tone_has_no_click_at_any_edge(rate: int) -> None:
    change = resampler(SOURCE_RATE, rate)
    sound = tone(1.0, hz=1000.0)
    heard = np.concatenate([change.push(sound[i : i + FRAME]) for i in range(0, len(sound), FRAME)] + [change.finish()])
    assert len(heard) == rate
    inner = heard[rate // 10 : -rate // 10].astype(np.float64)
    t = np.arange(len(inner))
    basis = np.stack([np.sin(2 * np.pi * 1000 * t / rate), np.cos(2 * np.pi * 1000 * t / rate)], 1)
    error = inner - basis @ np.linalg.lstsq(basis, inner, rcond=None)[0]
    assert np.abs(error).max() < 1e-4


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted where Linux lists them")
def test_a_change_of_rate_starts_no_threads() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    changes = [resampler(SOURCE_RATE, 48_000) for _ in range(4)]
    assert all(len(change.push(tone(0.08))) for change in changes)
    assert len(list(Path("/proc/self/task").iterdir())) == before


@pytest.mark.parametrize("part", [0.3, 0.8, 0.9])
@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_a_change_of_rate_adds_nothing_that_can_be_heard(rate: int, part: float) -> None:
    """A tone within the band of both rates comes out as that tone and nothing else, least of all its mirror."""
    change, hz = resampler(SOURCE_RATE, rate), part * min(rate, SOURCE_RATE) / 2
    heard = change.push(tone(1.0, hz=hz)).astype(np.float64)
    inner = heard[rate // 10 : -rate // 10]
    t = np.arange(len(inner))
    basis = np.stack([np.sin(2 * np.pi * hz * t / rate), np.cos(2 * np.pi * hz * t / rate)], 1)
    clean = basis @ np.linalg.lstsq(basis, inner, rcond=None)[0]
    assert 10 * np.log10(clean.var() / (inner - clean).var()) > 70.0
    assert abs(20 * np.log10(clean.std() / tone(1.0, hz=hz).std())) < 0.3


def test_overshoot_is_clipped_and_never_wraps() -> None:
    assert to_s16(np.array([-3.0, -1.0, 0.0, 1.0, 3.0], np.float32)).tolist() == [-32767, -32767, 0, 32767, 32767]


def test_a_wav_stream_reads_with_an_unknown_length_and_the_final_header_knows_it() -> None:
    enc = encoder("wav")
    data = enc.encode(tone(0.08)) + enc.finish()
    assert struct.unpack("<I", data[40:44])[0] == 0xFFFFFFFF
    whole = enc.final_header() + data[44:]
    with wave.open(io.BytesIO(whole)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth(), file.getnframes()) == (1, 24000, 2, 1920)


def test_a_wav_longer_than_its_size_field_stays_a_stream() -> None:
    assert wav_header(24_000, 1 << 33) == wav_header(24_000, None)


def test_a_finished_flac_file_knows_its_length() -> None:
    enc = encoder("flac")
    data = enc.encode(tone(1.0)) + enc.finish()
    head = enc.final_header()
    with av.open(io.BytesIO(head + data[len(head) :])) as container:
        assert container.streams.audio[0].duration == SOURCE_RATE


@pytest.mark.parametrize("name", sorted(formats()))
def test_an_empty_stream_is_valid_in_every_format(name: str) -> None:
    data = encoder(name).finish()
    if name.startswith(("pcm", "ulaw", "mulaw", "alaw")):
        assert data == b""
    elif name.startswith("wav"):
        assert len(data) == 44
    else:
        with av.open(io.BytesIO(data)) as container:
            assert container.streams.audio


@pytest.mark.parametrize(("pack", "law", "codec"), [(pack_ulaw, "ulaw", "pcm_mulaw"), (pack_alaw, "alaw", "pcm_alaw")])
def test_g711_agrees_with_an_independent_decoder_and_picks_the_nearest_code(pack, law, codec) -> None:  # type: ignore[no-untyped-def]
    every = np.arange(-32767, 32768, dtype=np.float32) / 32767.0
    codes = pack(every)
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout, context.format = 8000, "mono", "s16"  # type: ignore[attr-defined]
    heard = context.decode(av.Packet(codes))[0].to_ndarray()[0].astype(np.int32)  # type: ignore[attr-defined]
    ranked = np.sort(g711_values(law))
    assert (heard == g711_values(law)[np.frombuffer(codes, np.uint8)]).all()
    nearest = np.abs(ranked[None, :] - np.arange(-32767, 32768, 97)[:, None]).min(1)
    assert (np.abs(heard[::97] - np.arange(-32767, 32768, 97)) == nearest).all()


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(NameUnknown, match=r"unknown audio format 'realaudio'; there are: aac, alaw_8000, flac, mp3, "):
        encoder("realaudio")


@pytest.mark.parametrize(("path", "name"), [("a/b.WAV", "wav"), ("x.mp3", "mp3"), ("x.ogg", "ogg"), ("x.pcm", "pcm")])
def test_a_file_name_says_its_format(path: str, name: str) -> None:
    assert formats()[format_of_path(path)].suffix == formats()[name].suffix


def test_a_file_name_without_a_known_suffix_lists_them() -> None:
    with pytest.raises(NameUnknown, match=r"unknown audio file suffix 'doc'; there are: .*wav"):
        format_of_path("speech.doc")


@pytest.mark.parametrize("data", [b"", b"RIFF", b"<html>no</html>", bytes(4000)])
def test_a_clip_that_is_no_sound_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ClipUnreadable):
        read_clip(io.BytesIO(data))


def test_a_clip_is_cut_at_its_bound() -> None:
    assert len(read_clip(io.BytesIO(encoded("wav", tone(1.0))), max_s=0.25)) == SOURCE_RATE // 4


@pytest.mark.parametrize("name", CONTAINERS)
def test_loudness_stays_over_a_long_utterance_and_across_pieces(name: str) -> None:
    """A steady tone, sent as frames and as parcels of four: no fading, no pumping, no dip at a joint."""
    sound = tone(20.0)
    edges, parcels = [FRAME], itertools.cycle((1, 4, 1, 1, 4))
    while edges[-1] < len(sound):
        edges.append(edges[-1] + FRAME * next(parcels))
    heard = read_clip(io.BytesIO(encoded(name, sound, edges[:-1])), max_s=60.0)
    tenths = heard[SOURCE_RATE : 19 * SOURCE_RATE].reshape(-1, SOURCE_RATE // 10)
    loudness = 20 * np.log10(np.sqrt((tenths**2).mean(axis=1)))
    assert np.ptp(loudness) < 0.2, "decibels between the loudest and the softest tenth of a second"

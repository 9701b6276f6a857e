"""Sound on its way out: stream encoders by format name. It owns headers, sample formats and the table of formats.

It never imports torch: the server and `tts say` use it. The formats of libav (Opus, MP3, FLAC, AAC, and any change of
rate) live in audio_av.py and are imported when one is asked for, because that import costs a third of a second.
Sound comes in as float32 mono at `SOURCE_RATE`, in pieces of any length; it is clipped to -1 .. 1, never scaled.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.errors import NameUnknown

SOURCE_RATE = 24_000
RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
# Both sizes of a WAV whose length is not known yet; players read on until the stream ends.
UNKNOWN_SIZE = 0xFFFFFFFF
NO_SOUND = "the model gave samples that are not numbers, or far too large"

Samples = NDArray[np.float32]
Resampled = NDArray[np.float32] | NDArray[np.int16]  # one of them throughout a stream, as was asked for


class StreamEncoder(Protocol):
    """Sound in, bytes out, with all that one format carries from piece to piece. One per stream; not thread-safe."""

    @property
    def content_type(self) -> str: ...

    @property
    def sample_rate(self) -> int:
        """Rate of the encoded sound, in Hz."""

    @property
    def slow(self) -> bool:
        """Whether a frame takes about a millisecond, and lets other threads run meanwhile, or a few microseconds."""

    def encode(self, frame: Samples) -> bytes:
        """The bytes that can go out now; headers come with the first ones. May be empty."""

    def finish(self) -> bytes:
        """What was still held back. Called once; also valid when no sound ever came."""

    def final_header(self) -> bytes:
        """After `finish`: bytes to write over the start of a file that can seek, now that the length is known."""


def is_sound(samples: Samples) -> bool:
    """Whether all samples are numbers, and none so large that its square is none."""
    return math.isfinite(samples.dot(samples))


def to_s16(samples: Resampled) -> NDArray[np.int16]:
    """Signed 16-bit samples: rounded, and clipped rather than wrapped where the model overshoots."""
    if samples.dtype == np.int16:
        return samples.view(np.int16)
    scaled = np.multiply(samples, np.float32(32767.0))  # in place from here on: this runs for every frame sent
    np.clip(scaled, -32767.0, 32767.0, out=scaled)
    np.rint(scaled, out=scaled)
    return scaled.astype("<i2")


def wav_header(sample_rate: int, data_bytes: int | None) -> bytes:
    """44 bytes of RIFF header for s16le mono; `None` is a stream whose length nobody knows yet."""
    if data_bytes is None or data_bytes > UNKNOWN_SIZE - 36:
        riff = data = UNKNOWN_SIZE
    else:
        riff, data = data_bytes + 36, data_bytes
    shape = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, sample_rate * 2, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + shape + struct.pack("<4sI", b"data", data)


class Resampler(Protocol):
    """Changes the rate with carried state, so that piece edges are inaudible. `audio_av.Resampler` is the real one."""

    def push(self, samples: Samples) -> Resampled: ...

    def finish(self) -> Resampled: ...


class _SameRate:
    """The resampler where source and target rate are equal."""

    def push(self, samples: Samples) -> Samples:
        return samples

    def finish(self) -> Samples:
        return np.zeros(0, np.float32)


def resampler(rate_in: int, rate_out: int, *, s16: bool = False) -> Resampler:
    """A resampler from one rate to the other; the identity where they are equal.

    s16: where it changes the rate, it may give whole numbers at once, as `to_s16` would.
    """
    if rate_in == rate_out:
        return _SameRate()
    from runtime.audio_av import Resampler as LibavResampler

    return LibavResampler(rate_in, rate_out, s16=s16)


class RawEncoder:
    """Headerless samples: each piece resampled, then packed by `pack`."""

    slow = False

    def __init__(self, content_type: str, sample_rate: int, rate_in: int, pack: Callable[[Resampled], bytes]) -> None:
        self.content_type, self.sample_rate = content_type, sample_rate
        self._resampler = resampler(rate_in, sample_rate, s16=pack is not pack_f32)
        self._pack = pack

    def encode(self, frame: Samples) -> bytes:
        return self._pack(self._resampler.push(frame))

    def finish(self) -> bytes:
        return self._pack(self._resampler.finish())

    def final_header(self) -> bytes:
        return b""


class WavEncoder:
    """RIFF/WAVE, s16le mono: a streaming header first, the true one from `final_header`."""

    content_type = "audio/wav"
    slow = False

    def __init__(self, sample_rate: int, rate_in: int) -> None:
        self.sample_rate = sample_rate
        self._raw = RawEncoder(self.content_type, sample_rate, rate_in, pack_s16)
        self._header_due = True
        self._data_bytes = 0

    def encode(self, frame: Samples) -> bytes:
        return self._framed(self._raw.encode(frame))

    def finish(self) -> bytes:
        return self._framed(self._raw.finish())

    def final_header(self) -> bytes:
        return wav_header(self.sample_rate, self._data_bytes)

    def _framed(self, data: bytes) -> bytes:
        self._data_bytes += len(data)
        if not self._header_due:
            return data
        self._header_due = False
        return wav_header(self.sample_rate, None) + data


def pack_s16(samples: Resampled) -> bytes:
    return to_s16(samples).tobytes()


def pack_f32(samples: Resampled) -> bytes:
    return samples.astype("<f4").tobytes()


def pack_ulaw(samples: Resampled) -> bytes:
    return _g711_codes("ulaw")[to_s16(samples).view(np.uint16)].tobytes()


def pack_alaw(samples: Resampled) -> bytes:
    return _g711_codes("alaw")[to_s16(samples).view(np.uint16)].tobytes()


def g711_values(law: str) -> NDArray[np.int32]:
    """The 256 sample values that the codes of ITU-T G.711 stand for, on the 16-bit scale."""
    codes = np.arange(256, dtype=np.int32)
    if law == "ulaw":
        c = ~codes & 0xFF
        magnitude = (((c & 0x0F) << 3) + 0x84 << (c >> 4 & 7)) - 0x84
        return np.where(c & 0x80, -magnitude, magnitude)
    c = codes ^ 0x55
    exponent, mantissa = c >> 4 & 7, (c & 0x0F) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, mantissa + 0x108 << np.maximum(exponent - 1, 0))
    return np.where(c & 0x80, magnitude, -magnitude)


@cache
def _g711_codes(law: str) -> NDArray[np.uint8]:
    """For each 16-bit sample (as uint16 index) the code with the nearest value."""
    values = g711_values(law)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    samples = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    above = np.clip(np.searchsorted(ranked, samples), 1, 255)
    below_is_nearer = samples - ranked[above - 1] < ranked[above] - samples
    return order[np.where(below_is_nearer, above - 1, above)].astype(np.uint8)


@dataclass(frozen=True)
class Format:
    """One row of the table: what a name means."""

    make: Callable[[int], StreamEncoder]
    suffix: str


def _libav(name: str) -> Callable[[int], StreamEncoder]:
    def make(rate_in: int) -> StreamEncoder:
        from runtime.audio_av import LibavEncoder

        return LibavEncoder(name, rate_in)

    return make


def _raw(content_type: str, rate: int, pack: Callable[[Resampled], bytes]) -> Callable[[int], StreamEncoder]:
    return lambda rate_in: RawEncoder(content_type, rate, rate_in, pack)


def _wav(rate: int) -> Callable[[int], StreamEncoder]:
    return lambda rate_in: WavEncoder(rate, rate_in)


@cache
def formats() -> dict[str, Format]:
    """Every format by name. `pcm` and `wav` alone mean the model's own rate, where nothing is resampled."""
    table = {name: Format(_libav(name), name) for name in ("mp3", "flac", "aac")}
    table["opus"] = table["ogg"] = Format(_libav("opus"), "ogg")
    table["ulaw_8000"] = table["mulaw_8000"] = Format(_raw("audio/basic", 8_000, pack_ulaw), "ulaw")
    table["alaw_8000"] = Format(_raw("audio/x-alaw-basic", 8_000, pack_alaw), "alaw")
    table["pcm_f32"] = Format(_raw("audio/pcm", SOURCE_RATE, pack_f32), "f32")
    table["pcm"] = Format(_raw("audio/pcm", SOURCE_RATE, pack_s16), "pcm")
    table["wav"] = Format(_wav(SOURCE_RATE), "wav")
    for rate in RATES:
        table[f"pcm_{rate}"] = Format(_raw("audio/pcm", rate, pack_s16), "pcm")
        table[f"wav_{rate}"] = Format(_wav(rate), "wav")
    return table


def encoder(name: str, *, rate_in: int = SOURCE_RATE) -> StreamEncoder:
    """A fresh encoder for one stream of sound at `rate_in` Hz. Raises NameUnknown, which lists the formats."""
    known = formats()
    if name not in known:
        raise NameUnknown("audio format", name, known)
    return known[name].make(rate_in)


def format_of_path(path: str) -> str:
    """The format a file name asks for by its suffix. Raises NameUnknown, which lists the suffixes."""
    match = re.search(r"\.([A-Za-z0-9]+)$", path)
    suffix = match[1].lower() if match else ""
    by_suffix = {"opus": "opus", "raw": "pcm", "s16": "pcm", "au": "ulaw_8000"}
    by_suffix |= {f.suffix: name for name, f in reversed(formats().items())}
    by_suffix |= {"wav": "wav", "pcm": "pcm"}
    if suffix not in by_suffix:
        raise NameUnknown("audio file suffix", suffix, by_suffix)
    return by_suffix[suffix]

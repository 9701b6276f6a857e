"""The part of audio.py that needs libav (the `av` wheel): compressed formats, changes of rate, reading clips.

Measured against soxr for the rate (24 kHz frames of 80 ms, 1 thread): soxr HQ holds back 23-37 ms and gives frames of
uneven length; libswresample with 40 taps holds back 0.8-2.5 ms, and every frame after the first has the same length.
Low delay wins: one library does both jobs. Up to 0.9 of the band a tone is 73 dB above all that is added to it, its
mirror above all, and is lowered by 0.2 dB at most (Kaiser window, 6). 64 taps (window 9) left 102 dB and take half as
long again, in what a call's way through the network costs most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import IO, Any

import av
import numpy as np
from av.filter import Graph
from numpy.typing import NDArray

from runtime.audio import SOURCE_RATE, Resampled, Samples, resampler, to_s16
from runtime.errors import SpeechError

# Taps at the lower of both rates, and their window; see above.
FILTER = "filter_size=40:kaiser_beta=6"


class ClipUnreadable(SpeechError):
    """A clip that libav cannot read as sound, or that holds none."""


class Resampler:
    """float32 mono from one rate to another with carried state: any split of the input gives the same samples.

    s16: gives 16-bit samples, rounded and clipped; that costs a sixth less than rounding them afterwards.
    """

    def __init__(self, rate_in: int, rate_out: int, *, s16: bool = False) -> None:
        self._rate_in = rate_in
        self._pts = 0
        self._graph = Graph()
        self._graph.threads = 1  # else each graph starts one for every core, for the life of its stream, and uses none
        source = self._graph.add_abuffer(
            sample_rate=rate_in, format="flt", layout="mono", time_base=Fraction(1, rate_in)
        )
        self._dtype = np.dtype(np.int16 if s16 else np.float32)
        change = self._graph.add("aresample", f"{rate_out}:{FILTER}:out_sample_fmt={'s16' if s16 else 'flt'}")
        sink = self._graph.add("abuffersink")
        source.link_to(change)
        change.link_to(sink)
        self._pull: Callable[[], Any] = sink.pull
        self._graph.configure()

    def push(self, samples: Samples) -> Resampled:
        if len(samples):
            self._graph.push(_frame(samples.astype(np.float32, copy=False), "flt", self._rate_in, self._pts))
            self._pts += len(samples)
        return self._pulled(1)  # a frame in gives at most one out; asking again costs as much as the resampling

    def finish(self) -> Resampled:
        self._graph.push(None)
        return self._pulled()

    def _pulled(self, at_most: int = 1_000_000) -> Resampled:
        parts: list[NDArray[Any]] = []
        try:
            while len(parts) < at_most:
                frame = self._pull()
                parts.append(np.frombuffer(frame.planes[0], self._dtype, frame.samples))
        except (av.BlockingIOError, av.EOFError):
            pass
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self._dtype), *parts])


@dataclass(frozen=True)
class Recipe:
    """How libav makes one format. Options are chosen for delay: each packet leaves in the call that completes it."""

    content_type: str
    muxer: str
    codec: str
    sample_format: str
    codec_options: dict[str, str] = field(default_factory=dict)
    muxer_options: dict[str, str] = field(default_factory=dict)
    gain: float = 1.0


RECIPES = {
    # One 20 ms packet a page: the Ogg muxer would otherwise hold a second of sound back.
    "opus": Recipe(
        "audio/ogg", "ogg", "libopus", "flt",
        {"application": "audio", "frame_duration": "20", "b": "48000"}, {"page_duration": "20000"},
    ),
    # No bit reservoir and no Xing header: both need frames that are not there yet. LAME's own presets multiply all
    # they encode by 0.95 (measured at 200 Hz to 3 kHz, 48 to 96 kbit/s); the gain undoes it.
    "mp3": Recipe(
        "audio/mpeg", "mp3", "libmp3lame", "fltp",
        {"reservoir": "0", "b": "64000"}, {"write_xing": "0", "id3v2_version": "0"}, gain=1 / 0.95,
    ),
    # 40 ms blocks instead of 192 ms.
    "flac": Recipe("audio/flac", "flac", "flac", "s16", {"frame_size": "960"}, {"metadata_header_padding": "0"}),
    "aac": Recipe("audio/aac", "adts", "aac", "fltp", {"b": "64000"}),
}  # fmt: skip


class _Drain:
    """A sink without `seek`: libav then writes streams that never need to go back."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._data)
        self._data.clear()
        return taken


class LibavEncoder:
    """One compressed stream. Sound is cut into the codec's own block length; a rest waits for the next piece."""

    slow = True

    def __init__(self, name: str, rate_in: int) -> None:
        self._recipe = recipe = RECIPES[name]
        self.content_type, self.sample_rate = recipe.content_type, SOURCE_RATE
        self._resampler = resampler(rate_in, SOURCE_RATE)
        self._drain = _Drain()
        # Bit-exact: no random stream serial and no version string, so the same sound is the same bytes.
        options = recipe.muxer_options | {"flush_packets": "1", "fflags": "+bitexact"}
        self._container = av.open(self._drain, "w", format=recipe.muxer, options=options)
        self._stream: Any = self._container.add_stream(recipe.codec, rate=SOURCE_RATE, options=recipe.codec_options)
        context: Any = self._stream.codec_context
        context.layout, context.format = "mono", recipe.sample_format
        context.open()
        self._block: int = context.frame_size
        self._rest = np.zeros(0, np.float32)
        self._samples = 0
        self._head = b""

    def encode(self, frame: Samples) -> bytes:
        return self._encoded(self._resampler.push(frame))

    def finish(self) -> bytes:
        out = self._encoded(self._resampler.finish())
        if len(self._rest):
            self._write(self._rest)
        elif not self._samples:
            # Without one sample some muxers write no header at all; a block of silence makes a valid, empty stream.
            self._write(np.zeros(self._block, np.float32))
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        return out + self._taken()

    def __del__(self) -> None:
        """Lets go of the codec's memory, FLAC's 3 MB, also where a call was dropped: only a closed container does.

        An open one and its stream hold each other, until a garbage collector that has little to look at comes by.
        """
        self._container.close()

    def final_header(self) -> bytes:
        return _flac_header(self._head, self._samples) if self._recipe.muxer == "flac" else b""

    def _encoded(self, samples: Resampled) -> bytes:
        pending = np.concatenate([self._rest, np.clip(samples, -1.0, 1.0)])
        cut = len(pending) - len(pending) % self._block
        for start in range(0, cut, self._block):
            self._write(pending[start : start + self._block])
        self._rest = pending[cut:]
        return self._taken()

    def _write(self, block: Samples) -> None:
        data = to_s16(block) if self._recipe.sample_format == "s16" else block * np.float32(self._recipe.gain)
        for packet in self._stream.encode(_frame(data, self._recipe.sample_format, SOURCE_RATE, self._samples)):
            self._container.mux(packet)
        self._samples += len(block)

    def _taken(self) -> bytes:
        data = self._drain.take()
        if len(self._head) < 26:
            self._head = (self._head + data)[:26]
        return data


def _flac_header(head: bytes, samples: int) -> bytes:
    """The first 26 bytes of a FLAC stream with the sample count filled in (RFC 9639, 8.2: 36 bits from bit 172)."""
    if len(head) < 26 or not head.startswith(b"fLaC"):
        return b""
    fields = int.from_bytes(head[18:26], "big") & ~((1 << 36) - 1) | samples
    return head[:18] + fields.to_bytes(8, "big")


@cache
def _tick(rate: int) -> Fraction:
    return Fraction(1, rate)


def _frame(samples: NDArray[Any], sample_format: str, rate: int, pts: int) -> av.AudioFrame:
    frame = av.AudioFrame(sample_format, "mono", len(samples))
    plane: Any = frame.planes[0]  # takes any buffer, declared as bytes
    plane.update(np.ascontiguousarray(samples))
    frame.sample_rate, frame.pts, frame.time_base = rate, pts, _tick(rate)
    return frame


def read_clip(source: str | IO[bytes], *, rate: int = SOURCE_RATE, max_s: float = 30.0) -> Samples:
    """The sound of a file or stream as float32 mono at `rate`, cut at `max_s`; channels are averaged.

    Raises ClipUnreadable with libav's reason. The bound keeps a hostile upload from filling memory.
    """
    parts: list[Samples] = []
    wanted = int(max_s * rate)
    have = 0
    try:
        with av.open(source) as container:
            for part in _mono(container, rate):
                parts.append(part)
                have += len(part)
                if have >= wanted:
                    break
    except (av.FFmpegError, OSError, ValueError, IndexError) as why:
        raise ClipUnreadable(f"cannot read the clip as sound: {why}") from why
    if not have:
        raise ClipUnreadable("the clip holds no sound")
    return np.concatenate(parts)[:wanted]


def _mono(container: Any, rate: int) -> Iterator[Samples]:
    change = av.AudioResampler(format="flt", layout="mono", rate=rate)
    for frame in container.decode(audio=0):
        yield from (part.to_ndarray()[0] for part in change.resample(frame))
    yield from (part.to_ndarray()[0] for part in change.resample(None))

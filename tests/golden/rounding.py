"""How far bfloat16 takes us from float32, beside how far it takes the reference.

    python -m tests.golden.rounding DIR…

Distances are mean absolute differences from the reference's float32 logits: of the text over the lead steps, of the
codes in the first whole step. Only what all runs have chosen alike so far is compared: a random model has near ties,
and after one of them two runs speak of different things. Mimi is float32 in both, whatever the language model is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from runtime import model_config as configs
from tests.golden.compare import case_of, ours, reference

Pairs = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # exact, the reference rounded, ours rounded


def rounded(directory: Path) -> dict[str, Pairs]:
    """The logits of one checkpoint's first steps, thrice."""
    delay = configs.read(directory).delays.delay_steps
    case = case_of(directory, delay + 3)
    exact, theirs = (reference(directory, case, dtype) for dtype in ("float32", "bfloat16"))
    run, tokens, _, _ = ours(directory, case, "bfloat16")
    alike = list(zip(tokens, exact.text_tokens, theirs.text_tokens, strict=True))
    same = next((n for n, three in enumerate(alike) if len(set(three)) > 1), len(alike))
    text = list(zip(exact.text_logits, theirs.text_logits, run.text, strict=True))[: min(same + 1, delay + 1)]
    depth: Pairs = []
    if same > delay:
        for three in zip(exact.depth_logits, theirs.depth_logits, run.depth, strict=True):
            depth.append(three)
            if len({int(logits.argmax()) for logits in three}) > 1:
                break
    return {"text": text, "depth": depth[: configs.read(directory).dep_q]}


def distances(directories: Sequence[Path]) -> dict[str, dict[str, float]]:
    """For text and depth: how many vectors, the reference's distance, ours."""
    out = {}
    every = [rounded(directory) for directory in directories]
    for part in ("text", "depth"):
        pairs = [three for one in every for three in one[part]]
        theirs = float(np.mean([np.abs(t - e).mean() for e, t, _ in pairs]))
        mine = float(np.mean([np.abs(o - e).mean() for e, _, o in pairs]))
        out[part] = {"vectors": len(pairs), "reference": theirs, "ours": mine, "ratio": mine / theirs}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(distances(args.directories)))


if __name__ == "__main__":
    main()

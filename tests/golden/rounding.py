"""How far bfloat16 takes us from float32, beside how far it takes the reference.

    python -m tests.golden.rounding DIR…
    python -m tests.golden.rounding --size small --seeds 30

Distances are mean absolute differences from the reference's float32 logits: of the text over the lead steps, of the
codes in the first whole step. Only what all runs have chosen alike so far is compared: a random model has near ties,
and after one of them two runs speak of different things. Mimi is float32 in both, whatever the language model is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from runtime import checkpoint
from runtime import model_config as configs
from runtime.make_checkpoint import SIZES, make
from tests.golden.compare import case_of, ours, reference

Pairs = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # exact, the reference rounded, ours rounded


def rounded(directory: Path) -> dict[str, Pairs]:
    """The logits of one checkpoint's first steps, thrice."""
    delay = configs.read(directory).delays.delay_steps
    case = case_of(directory, delay + 3)
    exact, theirs = (reference(directory, [case], dtype)[0] for dtype in ("float32", "bfloat16"))
    said = ours(checkpoint.load(directory, dtype="bfloat16", check_values=False), case)
    alike = list(zip(said.text_tokens, exact.text_tokens, theirs.text_tokens, strict=True))
    same = next((n for n, three in enumerate(alike) if len(set(three)) > 1), len(alike))
    text = list(zip(exact.text_logits, theirs.text_logits, said.text_logits, strict=True))[: min(same + 1, delay + 1)]
    depth: Pairs = []
    if same > delay:
        for three in zip(exact.depth_logits, theirs.depth_logits, said.depth_logits, strict=True):
            depth.append(three)
            if len({int(logits.argmax()) for logits in three}) > 1:
                break
    return {"text": text, "depth": depth[: configs.read(directory).dep_q]}


def distances(directories: Iterable[Path]) -> dict[str, dict[str, float]]:
    """For text and depth: checkpoints and vectors compared, the mean ratio of our distance to theirs, its error.

    Each checkpoint gives one ratio; their mean is the geometric one and its error the standard error of that.
    """
    every = [rounded(directory) for directory in directories]
    return {part: _spread([one[part] for one in every if one[part]]) for part in ("text", "depth")}


def _spread(checkpoints: list[Pairs]) -> dict[str, float]:
    theirs = [float(np.mean([np.abs(t - e).mean() for e, t, _ in pairs])) for pairs in checkpoints]
    mine = [float(np.mean([np.abs(o - e).mean() for e, _, o in pairs])) for pairs in checkpoints]
    logs, number = np.log(mine) - np.log(theirs), len(checkpoints)
    error = float(logs.std(ddof=1) / number**0.5) if number > 1 else float("nan")
    return {
        "checkpoints": number, "vectors": sum(map(len, checkpoints)), "reference": float(np.mean(theirs)),
        "ours": float(np.mean(mine)), "ratio": float(np.exp(logs.mean())), "ratio_error": error,
    }  # fmt: skip


def fresh(size: str, seeds: Iterable[int]) -> Iterator[Path]:
    """Random checkpoints, one at a time: each is removed when the next is asked for."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch) / size, size, seed=seed)
            yield Path(scratch) / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="*")
    parser.add_argument("--size", default="small", choices=SIZES, help="of the checkpoints made if none is named")
    parser.add_argument("--seeds", type=int, default=30, help="how many of those")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(distances(args.directories or fresh(args.size, range(args.seeds)))))


if __name__ == "__main__":
    main()

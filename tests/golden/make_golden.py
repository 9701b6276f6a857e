"""Writes tests/golden/*.npz: what the public reference says to each case. Needs it installed:

pip install --no-deps moshi==0.2.13 && pip install einops sounddevice sphn sentencepiece
python -m tests.golden.make_golden
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from runtime import model_config as configs
from runtime.make_checkpoint import make
from tests.golden import oracle
from tests.golden.cases import CASES, SEED, SOUND_FRAMES, Case, voice_files

HERE = Path(__file__).resolve().parent


def vector(case: Case, directory: Path) -> dict[str, np.ndarray]:
    """What the reference says, as arrays small enough to keep."""
    config = configs.read(directory)
    processor = SentencePieceProcessor(model_file=str(directory / config.tokenizer_file))
    entries = case.entries(processor.encode)
    model = oracle.load(directory, n_q=case.codebooks)
    model.padding_bonus = case.spec.padding_bonus
    heard = oracle.listen(
        model, entries, voices=voice_files(case, directory, config.voice_suffix), cfg=case.spec.cfg,
        temp=case.spec.temp or 0.0, seed=case.spec.seed, steps_max=case.steps,
        prompt=case.prompt(case.codebooks or config.n_q, config.card),
    )  # fmt: skip
    first, last = (n * 1920 for n in SOUND_FRAMES)
    facts = {"words": heard.words, "entries": [[list(e.tokens), e.text, e.padding] for e in entries]}
    return {
        "text_tokens": np.array(heard.text_tokens, np.int32), "codes": heard.codes.astype(np.int16),
        "pcm": heard.pcm[first:last], "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
    }  # fmt: skip


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for size in sorted({case.size for case in CASES}):
            make(Path(scratch) / size, size, seed=SEED)
        for case in CASES:
            arrays = vector(case, Path(scratch) / case.size)
            np.savez_compressed(HERE / f"{case.name}.npz", **arrays)
            print(case.name, {name: a.shape for name, a in arrays.items()}, (HERE / f"{case.name}.npz").stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())

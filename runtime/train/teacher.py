"""Stage 2 of the demo voice: the teacher reads the sentences; we keep its spectra, never its audio.

The teacher is hibari (PyPI `hibari-tts`, Apache-2.0). Its network gives the harmonic and noise spectra and F0 we
need, and computes phoneme durations inside; one more graph output makes those visible. A shard is one .npz and is
written whole or not at all, so a killed run resumes at the first missing shard.

    python -m runtime.train.teacher --sentences WORK/sentences.jsonl --out WORK/shards --shards 0:4
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from runtime.train.spectra import RATE, features, resample

DURATIONS = "/Cast_32_output_0"  # in 25 ms units; twice that counts the teacher's 12.5 ms frames
SHARE = {"templates": 0.25, "python": 0.2, "wordnet": 0.55}
HELD_OUT = 200


class Teacher:
    """hibari with its phoneme durations visible."""

    def __init__(self, work: Path) -> None:
        import hibari  # type: ignore[import-not-found,unused-ignore]
        import onnx  # type: ignore[import-not-found,unused-ignore]
        import onnxruntime  # type: ignore[import-not-found,unused-ignore]

        self.voice = hibari.Hibari()
        path = work / "teacher-with-durations.onnx"
        if not path.exists():
            model = onnx.load(str(self.voice.model_path))
            model.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.INT64, None))
            onnx.save(model, str(path))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def phonemes(self, text: str) -> str | None:
        """The phoneme string of one sentence, or None when the teacher would split it."""
        parts = self.voice.phonemize(text)
        return "".join(c for c in parts[0] if c in self.voice.vocab).strip() if len(parts) == 1 else None

    def read(self, phonemes: str) -> dict[str, Any] | None:
        """Features [F, 90] at 100 Hz, the phoneme id of every row, and (word, start in s) pairs."""
        ids = self.voice.ids(phonemes)
        out = self.session.run(None, {"ids": np.asarray([ids], np.int64), "speed": np.ones(1, np.float32)})
        harmonic, _, noise, free, _, f0 = (o[0] for o in out[:6])
        durations = out[6].reshape(-1) * 2
        if durations.sum() != harmonic.shape[1]:
            return None
        # The branch with its own phase is heard as noise; its energy is folded into the noise branch.
        folded = 0.5 * np.logaddexp(2 * noise, 2 * np.minimum(free, 7))
        rows = resample(features(harmonic, folded, f0))
        ends = np.cumsum(durations) / 80.0
        owner = np.searchsorted(ends, (np.arange(len(rows)) + 0.5) / RATE, side="right")
        spoken = np.asarray(ids, np.uint8)[np.minimum(owner, len(ids) - 1)]
        words, current, began = [], "", 0.0
        for sound, start in zip(phonemes + " ", ends, strict=False):
            if sound == " ":
                if current:
                    words.append((current, began))
                current = ""
            else:
                began = began if current else float(start)
                current += sound
        return {"rows": rows.astype(np.float16), "spoken": spoken, "words": words}


def mixture(path: Path, count: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(held out, to train on): the sources in the proportions of SHARE, in an order fixed by the seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    pools = {s: [x for x in lines if x["source"] == s] for s in SHARE}
    held = [pools[s].pop() for _ in range(HELD_OUT // len(SHARE)) for s in SHARE]
    wanted = [x for s, share in SHARE.items() for x in pools[s][: int(count * share)]]
    random.Random(seed).shuffle(wanted)
    return held, wanted


def write_shard(path: Path, teacher: Teacher, lines: list[dict[str, str]]) -> dict[str, float]:
    began, rows, spoken, meta = time.process_time(), [], [], []
    for line in lines:
        phonemes = teacher.phonemes(line["text"])
        read = teacher.read(phonemes) if phonemes else None
        if read is None:
            continue
        rows.append(read["rows"])
        spoken.append(read["spoken"])
        meta.append({**line, "phonemes": phonemes, "words": read["words"], "rows": len(read["rows"])})
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, rows=np.concatenate(rows), spoken=np.concatenate(spoken), meta=np.array(json.dumps(meta)))
    partial.rename(path)
    hours = sum(len(r) for r in rows) / RATE / 3600
    return {"utterances": len(meta), "dropped": len(lines) - len(meta), "hours": round(hours, 3),
            "cpu_s": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=36000)
    parser.add_argument("--shard-size", type=int, default=3000)
    parser.add_argument("--shards", default="0:12", help="first:last of the shards this process makes")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    held, wanted = mixture(args.sentences, args.count, args.seed)
    teacher = Teacher(args.out)
    first, last = (int(x) for x in args.shards.split(":"))
    jobs = {f"shard{i:02d}.npz": wanted[i * args.shard_size : (i + 1) * args.shard_size] for i in range(first, last)}
    if first == 0:
        jobs = {"held_out.npz": held, **jobs}
    for name, lines in jobs.items():
        path = args.out / name
        if lines and not path.exists():
            print(json.dumps({"shard": name, **write_shard(path, teacher, lines)}), flush=True)


if __name__ == "__main__":
    main()

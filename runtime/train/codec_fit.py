"""Stage 3 of the demo voice: fit the spectral codec. No neural training: principal axes and k-means.

A frame of 80 ms is four slots of 20 ms; each slot is 48 principal components in two stages of 512 entries (tables
shared by the slots), so a frame is eight codes, the four coarse ones first. Tokens that are local in time were the
largest single gain of the pilot. The check of this stage: the relative error that each stage leaves is printed and
must fall, and `--listen` writes what the codec does to held-out speech.

    python -m runtime.train.codec_fit --shards WORK/shards --out WORK/codec.safetensors
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from runtime import weights
from runtime.train.device import add_device, draws
from runtime.train.spectra import HARMONIC_BANDS, NOISE_BANDS, WIDTH, Floats, envelope_basis

SLOTS, ROWS_PER_SLOT, STAGES, ENTRIES, LATENT = 4, 2, 2, 512, 48
PITCH_WEIGHT = 2.0  # errors of pitch and voicing are heard before errors of a band
BINS = 481
CPU = torch.device("cpu")


def kmeans(points: torch.Tensor, entries: int, rounds: int, seed: int) -> torch.Tensor:
    """[entries, D] centres; an empty cell is restarted on a random point."""
    where = points.device
    draw = draws(seed, where)
    centres = points[torch.randperm(len(points), generator=draw, device=where)[:entries]].clone()
    for _ in range(rounds):
        cell = nearest(points, centres)
        count = torch.bincount(cell, minlength=entries).float()[:, None]
        total = torch.zeros_like(centres).index_add_(0, cell, points)
        fresh = points[torch.randint(len(points), (entries,), generator=draw, device=where)]
        centres = torch.where(count > 0, total / count.clamp(min=1), fresh)
    return centres


def nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """[N] index of the nearest centre, in slices that fit the cache."""
    half = centres.pow(2).sum(1) / 2
    return torch.cat([(half - part @ centres.T).argmin(1) for part in torch.split(points, 8192)])


def to_slots(rows: Floats) -> Floats:
    """[F, WIDTH] -> [frames * 4, 180]; the last row is repeated to fill the last frame."""
    step = SLOTS * ROWS_PER_SLOT
    missing = -len(rows) % step
    rows = np.concatenate([rows, np.repeat(rows[-1:], missing, 0)]) if missing else rows
    return rows.reshape(-1, ROWS_PER_SLOT * rows.shape[1])


class SlotCodec:
    """The encoder, used only in training: rows to latents to codes."""

    def __init__(self, path: Path, device: torch.device = CPU) -> None:
        tensors = {name: tensor.to(device) for name, tensor in weights.read(path).items()}
        self.mean, self.scale = tensors["encoder.mean"], tensors["encoder.scale"]
        self.axes, self.books = tensors["encoder.axes"], tensors["quantizer.codebooks"]

    def latents(self, rows: Floats) -> torch.Tensor:
        """[F, WIDTH] -> [frames, 4, LATENT]."""
        slots = torch.from_numpy(np.ascontiguousarray(to_slots(rows))).to(self.mean.device)
        return (((slots - self.mean) * self.scale) @ self.axes).reshape(-1, SLOTS, LATENT)

    def codes(self, latents: torch.Tensor) -> torch.Tensor:
        """[frames, 4, LATENT] -> [frames, 8], coarse slots first."""
        rest, out = latents.reshape(-1, LATENT), []
        for book in self.books:
            index = nearest(rest, book)
            rest = rest - book[index]
            out.append(index.reshape(-1, SLOTS))
        return torch.cat(out, 1)


def fit(rows: list[Floats], seed: int, device: torch.device = CPU) -> tuple[dict[str, torch.Tensor], list[float]]:
    slots = torch.from_numpy(np.concatenate([to_slots(r) for r in rows])).to(device)
    mean, deviation = slots.mean(0), slots.std(0) + 1e-3
    weight = torch.ones(WIDTH, device=device)
    weight[-2:] = PITCH_WEIGHT
    scale = weight.repeat(ROWS_PER_SLOT) / deviation
    white = (slots - mean) * scale
    pick = torch.randperm(len(white), generator=draws(seed, device), device=device)
    _, axes = torch.linalg.eigh(white[pick[:60000]].T @ white[pick[:60000]])
    axes = axes.flip(1)[:, :LATENT].contiguous()
    rest = (white @ axes)[pick[:100000]]
    power, left, books = rest.pow(2).sum(), [], []
    for stage in range(STAGES):
        books.append(kmeans(rest, ENTRIES, 12, seed + stage))
        rest = rest - books[-1][nearest(rest, books[-1])]
        left.append(float(rest.pow(2).sum() / power))
    out = {
        "quantizer.codebooks": torch.stack(books), "encoder.mean": mean, "encoder.scale": scale, "encoder.axes": axes,
        "decoder.weight": (axes / scale[:, None]).T.contiguous(), "decoder.bias": mean,
        "decoder.harmonic_basis": torch.from_numpy(envelope_basis(HARMONIC_BANDS, BINS)),
        "decoder.noise_basis": torch.from_numpy(envelope_basis(NOISE_BANDS, BINS)),
    }
    return {k: v.float().cpu().clone() for k, v in out.items()}, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--utterances", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    add_device(parser)
    args = parser.parse_args()
    began = time.process_time()
    shard = np.load(args.shards / "shard00.npz")
    ends = np.cumsum([u["rows"] for u in json.loads(str(shard["meta"]))])[: args.utterances]
    rows = np.split(shard["rows"][: ends[-1]].astype(np.float32), ends[:-1])
    tensors, left = fit(rows, args.seed, args.device)
    if not all(b < a for a, b in zip([1.0, *left], left, strict=False)):
        raise SystemExit(f"a stage of the codec did not reduce the error: {left}")
    weights.write(args.out, tensors)
    print(json.dumps({"relative_error": left, "cpu_s": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()

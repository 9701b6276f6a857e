"""Makes mimi_small.npz with the public moshi package: what its Mimi gives for seeded weights, codes and sound.

    NO_TORCH_COMPILE=1 python -m tests.golden.make_mimi_golden

needs `pip install --no-deps moshi==0.2.13` and einops. The small codec's context is 30 steps, so 24 frames go round its
ring of keys more than once. Sound is kept at every 8th sample.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.model.mimi_config import parse_mimi_config
from tests.golden.mimi_random import SMALL, random_mimi

GOLDEN = Path(__file__).with_name("mimi_small.npz")
SEED, LANES, FRAMES, N_Q, EVERY = 7, 2, 24, 8, 8


def inputs() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Codes [B, K, T] to decode and a clip [B, samples] to encode; its last frame is not full."""
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, SMALL["quantizer"]["bins"], (LANES, N_Q, FRAMES))  # type: ignore[index]
    return codes, rng.standard_normal((LANES, FRAMES * 1920 - 500), dtype=np.float32) * np.float32(0.3)


def reference(raw: dict[str, Any] | None, weights: dict[str, Tensor], n_q: int) -> Any:
    """The public package's Mimi with these weights."""
    os.environ["NO_TORCH_COMPILE"] = "1"
    from moshi.models import loaders

    model = loaders.get_mimi(None, copy.deepcopy(raw), "cpu", num_codebooks=n_q)
    model.load_state_dict(dict(weights))  # its load hook knows the published names
    return model.eval()


def streamed(model: Any, codes: Tensor) -> Tensor:
    """Sound [B, T * S] from the reference, frame by frame."""
    with torch.no_grad(), model.streaming(codes.shape[0]):
        return torch.cat([model.decode(codes[:, :, i : i + 1])[:, 0] for i in range(codes.shape[2])], -1)


def compute() -> dict[str, NDArray[Any]]:
    weights = random_mimi(parse_mimi_config(SMALL), SEED)
    model = reference(SMALL, weights, N_Q)
    codes, clip = inputs()
    with torch.no_grad():
        encoded = model.encode(torch.from_numpy(clip)[:, None])
    pcm = streamed(model, torch.from_numpy(codes))
    return {"pcm": pcm[:, ::EVERY].numpy(), "encoded": encoded.numpy().astype(np.int16)}


if __name__ == "__main__":
    np.savez_compressed(GOLDEN, **compute())  # type: ignore[arg-type]
    print(f"{GOLDEN.name}: {GOLDEN.stat().st_size} bytes")

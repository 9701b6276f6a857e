"""Mimi checkpoints with seeded random weights, for tests and for the golden vectors. numpy only decides the numbers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from runtime.model.mimi_config import MimiConfig, expected_shapes

# The published topology with fewer channels; in the layout of the public package's mimi config.
SMALL = {
    "sample_rate": 24000, "channels": 1, "frame_rate": 12.5,
    "seanet": {
        "channels": 1, "dimension": 64, "causal": True, "n_filters": 8, "n_residual_layers": 1, "activation": "ELU",
        "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0, "kernel_size": 7, "residual_kernel_size": 3,
        "last_kernel_size": 3, "norm": "none", "pad_mode": "constant", "ratios": [8, 6, 5, 4], "true_skip": True,
    },
    "quantizer": {"dimension": 32, "n_q": 16, "bins": 256, "input_dimension": 64, "output_dimension": 64},
    "transformer": {
        "d_model": 64, "num_heads": 4, "num_layers": 2, "causal": True, "layer_scale": 0.01, "context": 30,
        "conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm",
        "positional_embedding": "rope", "dim_feedforward": 256, "input_dimension": 64, "output_dimensions": [64],
    },
}  # fmt: skip


def random_mimi(config: MimiConfig, seed: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, scaled so that activations stay of order one."""
    rng = np.random.default_rng(seed)
    return {name: _tensor(name, shape, rng) for name, shape in expected_shapes(config).items()}


def _tensor(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("_initialized"):
        values = np.ones(shape, np.float32)
    elif name.endswith("cluster_usage"):
        values = 0.5 + rng.random(shape, dtype=np.float32)
    elif name.endswith("scale"):
        values = 0.1 + 0.02 * values
    elif "norm" in name and name.endswith("weight"):
        values = 1 + 0.1 * values
    elif name.endswith("bias"):
        values = 0.02 * values
    elif not name.endswith("embedding_sum"):
        transposed = "convtr" in name
        fan = shape[0] * 2 if transposed and shape[1] > 1 else (2 if transposed else math.prod(shape[1:]))
        values = values * np.float32(0.7 / math.sqrt(fan))
    return torch.from_numpy(np.ascontiguousarray(values))

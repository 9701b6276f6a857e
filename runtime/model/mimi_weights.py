"""Strict choice of a Mimi checkpoint's tensors: names and shapes first, values when a part is built.

A part that is not used is never read: on a mapped file its pages stay on disk (the decoder with 8 codebooks touches
170 of the published file's 385 MB).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.mimi_config import MimiConfig, expected_shapes

# The public package clamps there too: a code that nobody ever used must not divide by zero.
CLUSTER_USAGE_MIN = 1e-5
# What the public package of today calls the two projections; the published file has the older names.
NEWER_NAMES = {
    "self_attn.in_projs.0.weight": "self_attn.in_proj_weight",
    "self_attn.out_projs.0.weight": "self_attn.out_proj.weight",
}


def checked(tensors: Mapping[str, Tensor], config: MimiConfig) -> dict[str, Tensor]:
    """The same tensors under their published names. Raises CheckpointInvalid for one that does not fit."""
    found = {_published(name): tensor for name, tensor in tensors.items()}
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointInvalid(name, f"is missing from the Mimi checkpoint (expected shape {list(shape)})")
        if tuple(found[name].shape) != shape:
            raise CheckpointInvalid(name, f"has shape {list(found[name].shape)}, expected {list(shape)}")
        if not found[name].is_floating_point():
            raise CheckpointInvalid(name, f"has type {found[name].dtype}, expected a float type")
    extra = sorted(found.keys() - expected.keys())
    if extra:
        raise CheckpointInvalid(extra[0], f"is not part of a Mimi checkpoint ({len(extra)} such)")
    return found


def _published(name: str) -> str:
    for newer, published in NEWER_NAMES.items():
        if name.endswith(newer):
            return name.removesuffix(newer) + published
    return name


def decoder_names(config: MimiConfig, n_q: int) -> list[str]:
    """Names of the tensors that decoding the first n_q codebooks needs."""
    parts = ("decoder.", "decoder_transformer.", "upsample.")
    names = [name for name in expected_shapes(config) if name.startswith(parts)]
    return names + [f"quantizer.{b}.output_proj.weight" for b in ("rvq_first", "rvq_rest")] + codebook_names(n_q)


def encoder_names(config: MimiConfig, n_q: int) -> list[str]:
    """Names of the tensors that encoding to the first n_q codebooks needs."""
    parts = ("encoder.", "encoder_transformer.", "downsample.")
    names = [name for name in expected_shapes(config) if name.startswith(parts)]
    return names + [f"quantizer.{b}.input_proj.weight" for b in ("rvq_first", "rvq_rest")] + codebook_names(n_q)


def codebook_names(n_q: int) -> list[str]:
    return [f"{_codebook(q)}.{part}" for q in range(n_q) for part in ("cluster_usage", "embedding_sum")]


def _codebook(q: int) -> str:
    layer = "rvq_first.vq.layers.0" if q == 0 else f"rvq_rest.vq.layers.{q - 1}"
    return f"quantizer.{layer}._codebook"


def on_device(weights: Mapping[str, Tensor], names: Iterable[str], device: torch.device) -> dict[str, Tensor]:
    """The named tensors as float32 on the device, each checked to be finite (by its sum: one pass, no copy)."""
    chosen = {}
    for name in names:
        if not bool(weights[name].sum(dtype=torch.float32).isfinite()):
            raise CheckpointInvalid(name, "holds NaN or infinity")
        chosen[name] = weights[name].to(device, torch.float32)
    return chosen


def code_tables(w: Mapping[str, Tensor], config: MimiConfig, n_q: int) -> Tensor:
    """The first n_q codebooks, [n_q, card, codebook_dim]: the mean of the vectors that each code stood for."""
    tables = torch.empty(n_q, config.card, config.codebook_dim, device=w[f"{_codebook(0)}.cluster_usage"].device)
    for q in range(n_q):
        usage = w[f"{_codebook(q)}.cluster_usage"].clamp(min=CLUSTER_USAGE_MIN)
        torch.div(w[f"{_codebook(q)}.embedding_sum"], usage[:, None], out=tables[q])
    return tables

"""Mimi the slow, obvious way: the whole signal at once, channels first, conv1d, conv_transpose1d and a full mask.

The streaming code in runtime/model must match it. Nothing is shared with that code but the names of the tensors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.mimi_config import MimiConfig

Weights = dict[str, Tensor]


def decode(w: Weights, c: MimiConfig, codes: Tensor) -> Tensor:
    """Sound [B, T * S] of codes [B, K, T]."""
    first = _dequantised(w, "rvq_first", codes[:, :1])
    rest = _dequantised(w, "rvq_rest", codes[:, 1:])
    x = F.conv1d(first, w["quantizer.rvq_first.output_proj.weight"])
    x = x + F.conv1d(rest, w["quantizer.rvq_rest.output_proj.weight"])
    x = _upsampled(x, w["upsample.convtr.convtr.convtr.weight"], None, c.resample_stride, groups=c.dimension)
    x = _transformer(w, "decoder", c, x, frame_steps=c.resample_stride)
    x = _conv(w, "decoder.model.0", x)
    index = 1
    for ratio in c.ratios:
        name = f"decoder.model.{index + 1}.convtr.convtr"
        x = _upsampled(F.elu(x), w[f"{name}.weight"], w[f"{name}.bias"], ratio)
        x = _residual(w, f"decoder.model.{index + 2}", x)
        index += 3
    return _conv(w, f"decoder.model.{index + 1}", F.elu(x))[:, 0]


def encode_latent(w: Weights, c: MimiConfig, pcm: Tensor) -> Tensor:
    """The unquantised latent [B, C, T] of pcm [B, T * S]."""
    x = _conv(w, "encoder.model.0", pcm[:, None])
    index = 1
    for ratio in reversed(c.ratios):
        x = _residual(w, f"encoder.model.{index}", x)
        x = _conv(w, f"encoder.model.{index + 2}", F.elu(x), stride=ratio)
        index += 3
    x = _conv(w, f"encoder.model.{index + 1}", F.elu(x))
    x = _transformer(w, "encoder", c, x, frame_steps=1)
    x = torch.cat([x[..., :1], x[..., :1], x], -1)
    return F.conv1d(x, w["downsample.conv.conv.conv.weight"], stride=c.resample_stride)


def encode(w: Weights, c: MimiConfig, pcm: Tensor, n_q: int) -> Tensor:
    latent = encode_latent(w, c, pcm)
    codes = []
    for branch, count in (("rvq_first", 1), ("rvq_rest", n_q - 1)):
        residual = F.conv1d(latent, w[f"quantizer.{branch}.input_proj.weight"]).transpose(1, 2)
        for i in range(count):
            table = _table(w, branch, i)
            codes.append(torch.cdist(residual, table.expand(len(residual), -1, -1)).argmin(-1))
            residual = residual - table[codes[-1]]
    return torch.stack(codes, 1)


def _table(w: Weights, branch: str, i: int) -> Tensor:
    book = f"quantizer.{branch}.vq.layers.{i}._codebook."
    return w[f"{book}embedding_sum"] / w[f"{book}cluster_usage"].clamp(min=1e-5)[:, None]


def _dequantised(w: Weights, branch: str, codes: Tensor) -> Tensor:
    return sum(_table(w, branch, i)[codes[:, i]] for i in range(codes.shape[1])).transpose(1, 2)  # type: ignore[union-attr]


def _conv(w: Weights, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = w[f"{name}.conv.conv.weight"]
    return F.conv1d(F.pad(x, (weight.shape[-1] - stride, 0)), weight, w[f"{name}.conv.conv.bias"], stride=stride)


def _upsampled(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int = 1) -> Tensor:
    return F.conv_transpose1d(x, weight, bias, stride=stride, groups=groups)[..., : x.shape[-1] * stride]


def _residual(w: Weights, name: str, x: Tensor) -> Tensor:
    return x + _conv(w, f"{name}.block.3", F.elu(_conv(w, f"{name}.block.1", F.elu(x))))


def _transformer(w: Weights, side: str, c: MimiConfig, x: Tensor, frame_steps: int) -> Tensor:
    """A ring of `context` slots forgets when a frame's last step is written, so all its steps see from there back."""
    x = x.transpose(1, 2)
    at = torch.arange(x.shape[1])
    frame_end = at - at % frame_steps + frame_steps - 1
    seen = (at[None] <= at[:, None]) & (at[None] > frame_end[:, None] - c.context)
    for i in range(c.num_layers):
        x = _layer(w, f"{side}_transformer.transformer.layers.{i}.", c, x, seen)
    return x.transpose(1, 2)


def _layer(w: Weights, n: str, c: MimiConfig, x: Tensor, seen: Tensor) -> Tensor:
    d, width = c.dimension, c.dimension // c.num_heads
    h = F.layer_norm(x, (d,), w[f"{n}norm1.weight"], w[f"{n}norm1.bias"], 1e-5)
    q, k, v = (h @ w[f"{n}self_attn.in_proj_weight"].T).split(d, -1)
    q, k, v = (t.unflatten(-1, (c.num_heads, width)).transpose(1, 2) for t in (q, k, v))
    q, k = _rotated(q, c), _rotated(k, c)
    weights = (q @ k.transpose(-1, -2) / math.sqrt(width)).masked_fill(~seen, -math.inf).softmax(-1)
    heard = (weights @ v).transpose(1, 2).flatten(2) @ w[f"{n}self_attn.out_proj.weight"].T
    x = x + w[f"{n}layer_scale_1.scale"] * heard
    h = F.layer_norm(x, (d,), w[f"{n}norm2.weight"], w[f"{n}norm2.bias"], 1e-5)
    return x + w[f"{n}layer_scale_2.scale"] * (F.gelu(h @ w[f"{n}linear1.weight"].T) @ w[f"{n}linear2.weight"].T)


def _rotated(x: Tensor, c: MimiConfig) -> Tensor:
    turn = torch.arange(x.shape[-2])[:, None] * c.max_period ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * turn)).flatten(-2)

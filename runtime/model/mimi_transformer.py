"""The small transformers inside Mimi: a few latent steps at a time over a ring of keys and values. Float32.

Shapes: B lanes, T new steps, H heads, D head width, N ring slots, L layers. What depends on positions only (rotation,
slots, mask) is computed once a step and shared by the layers; the public package computes it in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.layers import WHOLE_VECTORS
from runtime.model.mimi_config import MimiConfig
from runtime.model.rows import Rows, attend_rows

LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Places:
    """Everything about where the new steps stand: the rotation, the ring slots they take and what they may see."""

    cos: Tensor  # [B, 1, T, D / 2]
    sin: Tensor
    slots: Tensor  # [B * H * T] int64: rows of a ring seen as [all B * H * N, D]
    mask: Tensor  # [B, 1, T, N] float, 0 or -inf
    rows: Rows


class Rotation:
    """Rotary frequencies and the ring's arithmetic for one transformer."""

    def __init__(self, c: MimiConfig, slots: int, device: torch.device) -> None:
        self._heads, self._width = c.num_heads, c.dimension // c.num_heads
        half = torch.arange(self._width // 2, device=device, dtype=torch.float32)
        # As in layers.Rope: rows of whole vectors, so that no angle's cosine depends on how many rows there are.
        times = WHOLE_VECTORS // math.gcd(WHOLE_VECTORS, self._width // 2)
        self.frequencies = torch.exp(half * (-math.log(c.max_period) * 2 / self._width)).repeat(times)
        self._context, self._ring = c.context, torch.arange(slots, device=device)
        self._head = torch.arange(self._heads, device=device)

    def places(self, offset: Tensor, steps: int, rows: Rows) -> Places:
        """Places of the steps offset .. offset + steps - 1; offset [B] int64. rows: those of the ring."""
        slots = self._ring.shape[0]
        at = offset[:, None] + torch.arange(steps, device=offset.device)  # [B, T]
        angle = at[:, None, :, None].to(torch.float32) * self.frequencies
        taken = ((rows.index[:, None] * self._heads + self._head) * slots)[:, :, None] + (at % slots)[:, None]
        # A slot holds the newest position that falls on it; those not written since the lane began are below 0.
        newest = at[:, -1:]
        held = newest - (newest - self._ring) % slots  # [B, N]
        back = at[:, :, None] - held[:, None]
        seen = (held[:, None] >= 0) & (back >= 0) & (back < self._context)
        mask = torch.zeros(seen.shape, device=offset.device).masked_fill_(~seen, -math.inf)
        half = self._width // 2
        return Places(angle.cos()[..., :half], angle.sin()[..., :half], taken.flatten(), mask[:, None], rows)


def rotate(x: Tensor, places: Places) -> Tensor:
    """x [B, H, T, D] with each neighbouring pair turned by its position's angle."""
    pairs = x.view(*x.shape[:-1], -1, 2)
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = real * places.cos - imaginary * places.sin, real * places.sin + imaginary * places.cos
    return torch.stack(turned, -1).flatten(-2)


def layer_names(side: str, c: MimiConfig) -> list[str]:
    """What the names of each layer's tensors begin with."""
    return [f"{side}_transformer.transformer.layers.{i}." for i in range(c.num_layers)]


class TransformerLayer:
    """Pre-norm attention and GELU feed-forward, each scaled per channel before it is added."""

    def __init__(self, w: Mapping[str, Tensor], name: str, c: MimiConfig) -> None:
        self._heads = c.num_heads
        names = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")
        self._in, self._out, self._up, self._down = (w[f"{name}{part}"] for part in names)
        self._norm1 = w[f"{name}norm1.weight"], w[f"{name}norm1.bias"]
        self._norm2 = w[f"{name}norm2.weight"], w[f"{name}norm2.bias"]
        self._scale1, self._scale2 = w[f"{name}layer_scale_1.scale"], w[f"{name}layer_scale_2.scale"]

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor, places: Places) -> Tensor:
        """x [B, T, C]; keys, values [all B, H, N, D] take the new steps in place."""
        lanes, steps, channels = x.shape
        projected = F.linear(F.layer_norm(x, (channels,), *self._norm1, LAYER_NORM_EPS), self._in)
        query, key, value = projected.view(lanes, steps, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, places), rotate(key, places)
        # Lanes that do not move write too: to slots their next real step writes again before anything reads them.
        width = key.shape[-1]
        keys.view(-1, width).index_copy_(0, places.slots, key.reshape(-1, width))
        values.view(-1, width).index_copy_(0, places.slots, value.reshape(-1, width))
        heard = attend_rows(query, keys, values, places.mask, places.rows)
        heard = F.linear(heard.transpose(1, 2).reshape(lanes, steps, channels), self._out)
        x = torch.addcmul(x, heard, self._scale1)
        hidden = F.linear(F.layer_norm(x, (channels,), *self._norm2, LAYER_NORM_EPS), self._up)
        return torch.addcmul(x, F.linear(F.gelu(hidden), self._down), self._scale2)


class Transformer:
    """All layers; the ring [L, 2, B, H, N, D] and the offset [B] belong to the caller's state."""

    def __init__(
        self, w: Mapping[str, Tensor], side: str, c: MimiConfig, *, slots: int, device: torch.device
    ) -> None:
        self._layers = [TransformerLayer(w, name, c) for name in layer_names(side, c)]
        self.rotation = Rotation(c, slots, device)
        self._ring_shape = c.num_heads, slots, c.dimension // c.num_heads

    def ring(self, lanes: int, like: Tensor) -> Tensor:
        heads, slots, width = self._ring_shape
        return like.new_zeros(len(self._layers), 2, lanes, heads, slots, width)

    def __call__(self, x: Tensor, ring: Tensor, offset: Tensor, exec_mask: Tensor, rows: Rows) -> Tensor:
        places = self.rotation.places(offset, x.shape[1], rows)
        for layer, (keys, values) in zip(self._layers, ring, strict=True):
            x = layer(x, keys, values, places)
        offset.add_(exec_mask.to(torch.int64), alpha=x.shape[1])
        return x

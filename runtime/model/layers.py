"""The pieces both transformers are made of, one position at a time. Weights come in as plain tensors; no state here.

Shapes: R rows (lanes, or lanes times two with guidance), D width, H heads, E = D / H, C positions of context.
Matrices keep the checkpoint's [out, in] layout, so that memory-mapped weights are used where they lie; on a processor
they may be held in 8 bits, see Int8Matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

RMS_EPS = 1e-8


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x * weight / rms(x), in float32 whatever x is, returned as x's type. x: [R, D], weight: [D] float32."""
    wide = x.float()
    scale = torch.rsqrt(torch.linalg.vecdot(wide, wide).mul_(1.0 / x.shape[-1]).add_(RMS_EPS))
    return (wide * (weight * scale.unsqueeze(-1))).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix in 8 bits a weight and one scale a row; the activations stay bfloat16.

    A step is bound by how fast its weights can be read, so half the bytes are most of half the time. Rounding changes
    a product by about 1 % of its largest component.
    """

    values: Tensor  # [out, in] int8
    scale: Tensor  # [out] bfloat16

    @staticmethod
    def of(weight: Tensor) -> Int8Matrix:
        scale = (weight.abs().amax(dim=1).float() / 127.0).clamp(min=1e-12)
        values = (weight.float() / scale.unsqueeze(1)).round_().to(torch.int8)
        return Int8Matrix(values, scale.to(torch.bfloat16))

    def rows(self, start: int, stop: int | None = None) -> Int8Matrix:
        return Int8Matrix(self.values[start:stop], self.scale[start:stop])


Matrix = Tensor | Int8Matrix


def linear(x: Tensor, weight: Matrix) -> Tensor:
    """x @ weight.T."""
    if isinstance(weight, Int8Matrix):
        return torch._weight_int8pack_mm(x, weight.values, weight.scale)
    return F.linear(x, weight)


def project_add(x: Tensor, y: Tensor, weight: Matrix) -> Tensor:
    """x + y @ weight.T: a projection back onto the residual stream."""
    if isinstance(weight, Int8Matrix):
        return x + linear(y, weight)
    return torch.addmm(x, y, weight.t())


@dataclass(slots=True)
class GatedMlp:
    """silu(a) * b, with a and b the halves of one projection."""

    w_in: Matrix  # [2 F, D]
    w_out: Matrix  # [D, F]

    def add_to(self, x: Tensor, normed: Tensor) -> Tensor:
        """x + mlp(normed)."""
        hidden = linear(normed, self.w_in)
        gate, value = hidden.tensor_split(2, dim=-1)
        return project_add(x, F.silu(gate) * value, self.w_out)


class Rope:
    """Rotary positions over interleaved pairs, as angles on the complex unit circle, always in float32."""

    def __init__(self, head_dim: int, max_period: float, device: torch.device) -> None:
        # In the reference's order of operations: another one shifts late positions.
        exponents = torch.arange(head_dim // 2, device=device, dtype=torch.float32)
        self.freqs = torch.exp(exponents * (-math.log(max_period) * 2 / head_dim))

    def at(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, [R, 1, E / 2], for the positions [R]; the same for every layer of a step."""
        angle = (offset.float().unsqueeze(-1) * self.freqs).unsqueeze(1)
        return torch.cos(angle), torch.sin(angle)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [R, H, E] turned by its row's angles."""
    real, imag = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """One query per row and head over its keys. query [R, H, E], keys and values [R, H, C, E]; [R, D] comes back.

    mask: [R, 1, 1, C], 0 or minus infinity, or None.
    """
    out = F.scaled_dot_product_attention(query.unsqueeze(2), keys, values, mask)
    return out.flatten(1)

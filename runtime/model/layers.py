"""The pieces both transformers are made of, one position at a time. Weights come in as plain tensors; no state here.

Shapes: R rows (lanes, or lanes times two with guidance), D width, H heads, E = D / H, C positions of context.
In which form a matrix is held, and multiplied by, is matrices.py's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.matrices import Matrix, linear, project_add

RMS_EPS = 1e-8
WHOLE_VECTORS = 32  # floats: a row of so many, or a multiple, is never split between vector code and its remainder


class RmsNorm:
    """x * weight / rms(x), in float32 whatever x is, returned as x's type. x: [R, D]."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [D] float32."""
        width = weight.shape[0]
        self._weight = weight
        # sqrt(mean(x^2) + eps) is hypot(|x|, sqrt(D eps)) / sqrt(D).
        self.by_length, self.floor = weight * width**0.5, weight.new_tensor((width * RMS_EPS) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 and x.is_cpu:  # There the library's own is seven operations, in twice the time.
            return x.div(torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)).mul_(self.by_length)
        if x.dtype == torch.float32:
            return F.rms_norm(x, self._weight.shape, self._weight, RMS_EPS)
        wide = x.float()
        scale = torch.rsqrt(torch.linalg.vecdot(wide, wide).mul_(1.0 / x.shape[-1]).add_(RMS_EPS))
        return (wide * (self._weight * scale.unsqueeze(-1))).to(x.dtype)


@dataclass(slots=True)
class GatedMlp:
    """silu(a) * b, with a and b the halves of one projection."""

    w_in: Matrix  # [2 F, D]
    w_out: Matrix  # [D, F]

    def matrices(self) -> tuple[Matrix, Matrix]:
        return self.w_in, self.w_out

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
        freqs = torch.exp(exponents * (-math.log(max_period) * 2 / head_dim))
        # A narrow row repeats itself: else the cosine of a row's last angle would depend on how many rows there are.
        self._half = head_dim // 2
        self.freqs = freqs.repeat(WHOLE_VECTORS // math.gcd(WHOLE_VECTORS, self._half))

    def at(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, [R, 1, E / 2], for the positions [R]; the same for every layer of a step."""
        angle = (offset.float().unsqueeze(-1) * self.freqs).unsqueeze(1)
        return torch.cos(angle)[..., : self._half], torch.sin(angle)[..., : self._half]


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


def attend_few(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`attend` for a few positions that all are seen: keys and values [R, C, H, E]; query [R, H, E].

    In float32 on a processor four plain passes take half of the time of the library's kernel, which shares out blocks.
    """
    if query.dtype != torch.float32 or not query.is_cpu:
        return attend(query, keys.transpose(1, 2), values.transpose(1, 2), None)
    scaled = (query * query.shape[-1] ** -0.5).unsqueeze(1)
    weights = (keys * scaled).sum(-1, keepdim=True).softmax(1)
    mixed: Tensor = (values * weights).sum(1).flatten(1)
    return mixed

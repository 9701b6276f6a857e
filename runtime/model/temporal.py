"""The temporal transformer: one step of text and sound in, a summary and the word-ready logits out.

Shapes: R rows, D width, H heads, E = D / H, C context, S positions of the voice attended to, V text logits.
It owns weights, never state: caches belong to lanes.py and are written in place at each row's own position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.hearing import Hearing
from runtime.model.layers import GatedMlp, RmsNorm, Rope, rotate
from runtime.model.matrices import Matrix, linear, padded, project_add, rows_wanted
from runtime.model.rows import Rows, attend_rows


@dataclass(slots=True)
class CrossAttention:
    """Attention to the voice. Keys and values are made once per voice, by `keys_values`; see hearing.py."""

    norm_weight: Tensor  # [D]
    norm_bias: Tensor  # [D]
    w_query: Matrix  # [D, D]
    w_keys_values: Matrix  # [2 D, D]
    w_out: Matrix  # [D, D]

    def keys_values(self, source: Tensor, heads: int) -> Tensor:
        """[2, H, S, E] from the voice's condition [S, D]."""
        both = linear(source, self.w_keys_values)
        return both.view(source.shape[0], 2, heads, -1).permute(1, 2, 0, 3)


@dataclass(slots=True)
class TemporalLayer:
    norm1: RmsNorm
    w_qkv: Matrix  # [3 D, D]
    w_out: Matrix  # [D, D]
    cross: CrossAttention | None
    norm2: RmsNorm
    mlp: GatedMlp

    def matrices(self) -> list[Matrix]:
        cross = [self.cross.w_query, self.cross.w_out] if self.cross else []
        return [self.w_qkv, self.w_out, self.mlp.w_in, self.mlp.w_out, *cross]


class Temporal:
    """The whole stack, from embedding rows to logits."""

    def __init__(
        self,
        layers: Sequence[TemporalLayer],
        table: Tensor,
        out_norm: RmsNorm,
        w_text: Matrix,
        *,
        heads: int,
        context: int,
        max_period: float,
    ) -> None:
        self.layers = list(layers)
        self.table = table  # [rows, D]: every embedding the input is a sum of; its last row is zero
        self.out_norm = out_norm
        self.w_text = w_text  # [V, D]
        self.heads, self.context = heads, context
        self.dim = table.shape[1]
        self.head_dim = self.dim // heads
        self.rope = Rope(self.head_dim, max_period, table.device)
        self.slots = torch.arange(context, device=table.device)
        self._rows_wanted = rows_wanted([w_text, *(m for layer in self.layers for m in layer.matrices())])

    def step(
        self,
        rows: Tensor,
        condition: Tensor,
        offset: Tensor,
        slot: Tensor,
        caches: Sequence[Tensor],
        hearing: Hearing,
        held: Rows,
    ) -> tuple[Tensor, Tensor]:
        """Summary [R, D] and text logits [R, V].

        rows: [R, N] indexes into `table`. condition: [R, D], added to the input. offset: [R], each row's position.
        slot: [R], where its keys go in a cache seen as [R * C, 2 D]: row * C + offset % C. caches: one per layer,
        [R, C, 2, H, E], written in place. hearing: of the rows; a model without cross-attention never asks it.
        A row that must not advance may be computed along: it writes where its own next step will write again.
        """
        count = rows.shape[0]
        x = padded(F.embedding(rows, self.table).sum(dim=1) + condition, self._rows_wanted)
        cos, sin = self.rope.at(offset)
        seen = (self.slots <= offset.unsqueeze(-1)).view(-1, 1, 1, self.context)
        mask = torch.where(seen, 0.0, float("-inf")).to(x.dtype)
        for index, layer in enumerate(self.layers):
            x = self._attend_past(x, layer, cos, sin, slot, caches[index], mask, held)
            if layer.cross is not None:
                x = self._attend_voice(x, layer.cross, index, hearing)
            x = layer.mlp.add_to(x, layer.norm2(x))
        summary = self.out_norm(x)
        return summary[:count], linear(summary, self.w_text)[:count]

    def _attend_past(
        self, x: Tensor, layer: TemporalLayer, cos: Tensor, sin: Tensor, slot: Tensor, cache: Tensor, mask: Tensor,
        held: Rows,
    ) -> Tensor:
        qkv = linear(layer.norm1(x), layer.w_qkv)[: len(slot)].view(-1, 3 * self.heads, self.head_dim)
        turned = rotate(qkv[:, : 2 * self.heads], cos, sin)
        written = torch.cat((turned[:, self.heads :], qkv[:, 2 * self.heads :]), dim=1)
        cache.view(-1, 2 * self.dim).index_copy_(0, slot, written.view(-1, 2 * self.dim))
        keys, values = cache.transpose(1, 3).unbind(2)
        mixed = attend_rows(turned[:, : self.heads].unsqueeze(2), keys, values, mask, held).flatten(1)
        return project_add(x, padded(mixed, len(x)), layer.w_out)

    def _attend_voice(self, x: Tensor, cross: CrossAttention, layer: int, hearing: Hearing) -> Tensor:
        normed = F.layer_norm(x, (self.dim,), cross.norm_weight, cross.norm_bias, 1e-5)
        query = linear(normed, cross.w_query).view(-1, self.heads, self.head_dim)
        return project_add(x, padded(hearing.attend(layer, query), len(x)), cross.w_out)

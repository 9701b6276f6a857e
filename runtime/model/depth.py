"""The depth transformer: the codes of one frame, coarse first, from the temporal step's summary. No memory of frames.

Shapes: B lanes, R rows (B, or 2 B with guidance: a lane's own row, then its null row), K codebooks, D depth width.
Each codebook has its own input, embedding and output matrices and shares its layers' weights with the codebooks of the
same weight set. The loop over codebooks is unrolled: K is fixed, every index is a constant, one graph holds the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.layers import GatedMlp, RmsNorm, attend_few
from runtime.model.matrices import Matrix, linear, padded, project_add, rows_wanted

# Takes the codebook's index and its logits [B, V]; gives its tokens [B].
Choose = Callable[[int, Tensor], Tensor]


@dataclass(slots=True)
class DepthWeights:
    """One layer's matrices for one weight set, sliced once at load."""

    w_qkv: Matrix  # [3 D, D]
    w_out: Matrix  # [D, D]
    mlp: GatedMlp

    def matrices(self) -> list[Matrix]:
        return [self.w_qkv, self.w_out, *self.mlp.matrices()]


@dataclass(slots=True)
class DepthLayer:
    norm1: RmsNorm
    norm2: RmsNorm
    sets: list[DepthWeights]  # [K]: the set of each codebook


def each_way(x: Tensor, ways: int) -> Tensor:
    """Every row `ways` times over, side by side; repeat_interleave may wait for the host to learn its own size."""
    return x if ways == 1 else x.unsqueeze(1).expand(-1, ways, *x.shape[1:]).flatten(0, 1)


class Depth:
    """The stack and its per-codebook ends."""

    def __init__(
        self,
        layers: Sequence[DepthLayer],
        w_in: Matrix,
        schedule: Sequence[int],
        text_table: Tensor,
        tables: Sequence[Tensor],
        w_logits: Sequence[Matrix],
        *,
        heads: int,
    ) -> None:
        self.layers = list(layers)
        self.w_in = w_in  # [sets * D, temporal width]
        self.schedule = tuple(schedule)  # [K]
        self.text_table = text_table  # [rows, D]: first stream, second stream, a zero row
        self.tables = list(tables)  # [K - 1] of [card, D]
        self.w_logits = list(w_logits)  # [K] of [card, D]
        self.heads = heads
        self.dim = text_table.shape[1]
        self.codebooks = len(self.w_logits)
        used = [m for layer in self.layers for held in layer.sets for m in held.matrices()]
        self._rows_wanted = rows_wanted([w_in, *self.w_logits, *used])

    def frame(self, summary: Tensor, text_rows: Tensor, choose: Choose, *, guided: bool = False) -> Tensor:
        """Codes [B, K] int64. summary: [R, temporal width]. text_rows: [R, N] rows of text_table to be summed.

        With `guided`, rows alternate (own, null) and `choose` gets the logits of both, [R, V].
        """
        count, wanted = summary.shape[0], self._rows_wanted
        inputs = linear(padded(summary, wanted), self.w_in)
        inputs = inputs.view(len(inputs), -1, self.dim)
        token_in = padded(F.embedding(text_rows, self.text_table).sum(dim=1), wanted)
        # A layer's queries, keys and values of the frame's positions.
        shape = len(inputs), self.codebooks, 3, self.heads, self.dim // self.heads
        pasts = [inputs.new_empty(shape) for _ in self.layers]
        codes: list[Tensor] = []
        for k in range(self.codebooks):
            x = inputs[:, self.schedule[k]] + token_in
            for layer, past in zip(self.layers, pasts, strict=True):
                x = self._layer(x, layer, layer.sets[k], past[:, : k + 1])
            code = choose(k, linear(x, self.w_logits[k])[:count])
            codes.append(code)
            if k + 1 < self.codebooks:
                token_in = F.embedding(code, self.tables[k])
                token_in = padded(each_way(token_in, 2 if guided else 1), wanted)
        return torch.stack(codes, dim=1)

    def _layer(self, x: Tensor, layer: DepthLayer, weights: DepthWeights, past: Tensor) -> Tensor:
        """past: [R, C, 3, H, E], whose last position this one becomes."""
        qkv = linear(layer.norm1(x), weights.w_qkv).view(x.shape[0], 3, self.heads, -1)
        past[:, -1].copy_(qkv)
        if past.shape[1] == 1:
            mixed = qkv[:, 2].flatten(1)  # a single position attends to itself alone
        else:
            mixed = attend_few(qkv[:, 0], past[:, :, 1], past[:, :, 2])
        x = project_add(x, mixed, weights.w_out)
        return weights.mlp.add_to(x, layer.norm2(x))

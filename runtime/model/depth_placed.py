"""The depth transformer as eager steps on a processor run it in float32: in fixed memory, every call made ready once.

What `Depth.frame` computes, to a rounding of the norms' weights, which are multiplied into the matrices behind them.
For a few lanes a frame costs what its calls cost, their views and their temporary tensors: here each number of rows has
its calls with all their arguments, kept from its first frame on, and a frame is to make them one after another.

Shapes: R rows, S rows of memory (R, or as many as a product wants at least: the last are nobody's), K codebooks, C
positions so far, D width, H heads, E = D / H, F hidden, V logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.depth import Choose, Depth, DepthLayer, DepthWeights, each_way
from runtime.model.layers import WHOLE_VECTORS, RmsNorm
from runtime.model.matrices import ROWS_MIN, Matrix, RowMatrix
from runtime.model.placed import Memory, Operation, Placed


class DepthPlaced:
    """A Depth of steady float32 matrices with its memory. One frame at a time."""

    def __init__(self, depth: Depth) -> None:
        self.depth = depth
        self.w_in, self.w_logits = Placed(depth.w_in), [Placed(matrix) for matrix in depth.w_logits]
        self.layers: list[list[PlacedSet]] = []  # each one's set of each codebook
        for layer in depth.layers:
            sets = {id(held): PlacedSet(held, layer, depth.heads) for held in layer.sets}
            self.layers.append([sets[id(held)] for held in layer.sets])
        self.memory = Memory()
        self._plans: dict[int, FramePlan] = {}  # by rows: 0.2 MB each for a small model

    def frame(self, summary: Tensor, text_rows: Tensor, choose: Choose, *, guided: bool = False) -> Tensor:
        """As `Depth.frame`; the logits that `choose` gets are overwritten by the next codebook's."""
        depth, plan, ways = self.depth, self._plan(*summary.shape), 2 if guided else 1
        codes: list[Tensor] = []
        plan.summary.copy_(summary)
        torch.sum(F.embedding(text_rows, depth.text_table), 1, out=plan.token)
        for k, operations in enumerate(plan.operations):
            if k:
                torch.index_select(depth.tables[k - 1], 0, each_way(codes[-1], ways), out=plan.token)
            for operation in operations:
                operation()
            codes.append(choose(k, plan.logits))
        return torch.stack(codes, dim=1)

    def make_ready(self, rows: int, width: int) -> None:
        """The calls of a frame of so many rows, width floats of a summary each."""
        self._plan(rows, width)

    def _plan(self, rows: int, width: int) -> FramePlan:
        if rows not in self._plans:
            self._plans[rows] = FramePlan(self, rows, width)
        return self._plans[rows]


class PlacedSet:
    """One layer's matrices for one weight set, the norms' weights and attention's scale in them where they can be."""

    def __init__(self, held: DepthWeights, layer: DepthLayer, heads: int) -> None:
        self.floor = layer.norm1.floor
        qkv, self.before_qkv = _after(layer.norm1, held.w_qkv)
        hidden, self.before_hidden = _after(layer.norm2, held.mlp.w_in)
        self.query_scale = 1.0
        dim = len(layer.norm1.by_length)
        if isinstance(qkv, RowMatrix):
            qkv.turned[:, :dim].mul_((dim // heads) ** -0.5)
        else:
            self.query_scale = (dim // heads) ** -0.5
        self.w_qkv, self.w_out = Placed(qkv), Placed(held.w_out)
        self.mlp_in, self.mlp_out = Placed(hidden), Placed(held.mlp.w_out)


def _after(norm: RmsNorm, matrix: Matrix) -> tuple[Matrix, Tensor | None]:
    """The matrix as it is to multiply x / |x|, and the weight that this is to be multiplied by before, if any."""
    if isinstance(matrix, RowMatrix):
        return RowMatrix(matrix.turned * norm.by_length.unsqueeze(1), matrix.bias), None
    return matrix, norm.by_length


class FramePlan:
    """The calls of a frame of so many rows."""

    def __init__(self, placed: DepthPlaced, rows: int, width: int) -> None:
        depth, memory, room = placed.depth, placed.memory, max(rows, ROWS_MIN)
        summary, token = memory("summary", room, width), memory("token", room, depth.dim)
        inputs = memory("inputs", room, placed.w_in.width)
        logits = memory("logits", room, placed.w_logits[0].width)
        self.summary, self.token, self.logits = summary[:rows], token[:rows], logits[:rows]
        self._depth, self._memory, self._room = depth, memory, room
        self._x, self._normed = (memory(name, room, depth.dim) for name in ("x", "normed"))
        self._length = memory("length", room, 1)
        pasts = [memory(f"past {n}", depth.codebooks, room, 3 * depth.dim) for n in range(len(placed.layers))]
        self.operations: list[list[Operation]] = []  # of each codebook
        for k in range(depth.codebooks):
            own = inputs.view(room, -1, depth.dim)[:, depth.schedule[k]]
            operations = [] if k else [placed.w_in.into(summary, inputs)]
            operations.append(partial(torch.add, own, token, out=self._x))
            for sets, past in zip(placed.layers, pasts, strict=True):
                operations += self._attention(sets[k], past[: k + 1]) + self._mlp(sets[k])
            self.operations.append([*operations, placed.w_logits[k].into(self._x, logits)])

    def _attention(self, held: PlacedSet, past: Tensor) -> list[Operation]:
        """past: [C, S, 3 D], whose last position this one becomes."""
        positions, room, heads = len(past), self._room, self._depth.heads
        query, keys, values = past.view(positions, room, 3, heads, -1).unbind(2)
        operations = [*self._norm(held.floor, held.before_qkv), held.w_qkv.into(self._normed, past[-1])]
        if positions == 1:  # It attends to itself alone.
            return [*operations, held.w_out.onto(past[-1].view(room, 3, -1)[:, 2], self._x)]
        if held.query_scale != 1.0:
            operations.append(partial(query[-1].mul_, held.query_scale))
        (products, product), (mixing, mixed) = self._whole("product", keys.shape), self._whole("mixed", keys.shape[1:])
        (scores, score), (weights, weight) = (
            self._whole(name, (positions, room, heads, 1)) for name in ("score", "weight")
        )
        return [
            *operations,
            partial(torch.mul, keys, query[-1], out=product), partial(torch.sum, product, -1, True, out=score),
            partial(torch.softmax, scores, 0, out=weights),
            partial(torch.mul, values, weight, out=product), partial(torch.sum, products, 0, out=mixing),
            held.w_out.onto(mixed.view(room, -1), self._x),
        ]  # fmt: skip

    def _whole(self, name: str, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Memory [C, floats] or [floats], and what of it is [(C,) S, H, E].

        In rows of whole vectors: what passes over the first dimension would round a remainder otherwise.
        """
        first, each = shape[:-3], math.prod(shape[-3:])
        memory = self._memory(name, *first, -(-each // WHOLE_VECTORS) * WHOLE_VECTORS)
        return memory, memory[..., :each].view(*shape)

    def _mlp(self, held: PlacedSet) -> list[Operation]:
        hidden = self._memory("hidden", self._room, held.mlp_in.width)
        gate, value = hidden.chunk(2, dim=-1)
        gated = self._memory("gated", *gate.shape)
        return [
            *self._norm(held.floor, held.before_hidden), held.mlp_in.into(self._normed, hidden),
            partial(F.silu, gate, inplace=True), partial(torch.mul, gate, value, out=gated),
            held.mlp_out.onto(gated, self._x),
        ]  # fmt: skip

    def _norm(self, floor: Tensor, weight: Tensor | None) -> list[Operation]:
        """See layers.RmsNorm."""
        return [
            partial(torch.linalg.vector_norm, self._x, dim=-1, keepdim=True, out=self._length),
            partial(self._length.hypot_, floor), partial(torch.div, self._x, self._length, out=self._normed),
            *([] if weight is None else [partial(self._normed.mul_, weight)]),
        ]  # fmt: skip

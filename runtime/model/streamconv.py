"""Convolutions that carry what they need from step to step. They own no weights' names and no model's shape.

Everything is channels last, [B, T, C]: a convolution is then one matrix product over windows of rows, a transposed
convolution of stride s with kernel 2s is one product over pairs of rows whose result needs no overlap-add, and
neighbouring layers meet without a transpose. `benchmarks/bench_mimi.py` measures it beside the reference decoder.

State is a list of tails [B, rows, C], one per convolution, owned by the caller and updated in place. `keep` [B, 1, 1]
(bool) says which lanes move; a lane that does not keeps its tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.model.matrices import Product

# A product with fewer columns than a vector register has places wastes the rest of it: a narrow convolution computes
# several neighbouring steps as one row, by a matrix that is zero where a step does not see an input.
COLUMNS_MIN = 16


@dataclass(frozen=True)
class Tail:
    """Shape of one convolution's carried rows; `slot` is its place in the list of tails."""

    slot: int
    rows: int
    channels: int


class TailList:
    """Hands out slots while a model is built and makes the tails for a number of lanes."""

    def __init__(self, *, is_steady: bool = False) -> None:
        self._tails: list[Tail] = []
        self.is_steady = is_steady  # of the products of all layers that are built with it

    def add(self, rows: int, channels: int) -> Tail:
        self._tails.append(Tail(len(self._tails), rows, channels))
        return self._tails[-1]

    def zeros(self, lanes: int, like: Tensor) -> list[Tensor]:
        return [like.new_zeros(lanes, t.rows, t.channels) for t in self._tails]


def joined(x: Tensor, tail: Tail, tails: list[Tensor], keep: Tensor) -> Tensor:
    """The carried rows before x: [B, rows + T, C]; the tail becomes the last rows of that."""
    carried = tails[tail.slot]
    whole = torch.cat([carried, x], 1)
    carried.copy_(torch.where(keep, whole[:, -tail.rows :], carried))
    return whole


class StreamConv:
    """Causal convolution, [B, T, C_in] to [B, T / stride, C_out]. T must be a multiple of the stride."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, tails: TailList, *, stride: int = 1, dilation: int = 1
    ) -> None:
        out, into, self._taps = weight.shape
        self._span = (self._taps - 1) * dilation + 1  # input steps that an output step lies in
        self._stride, self._dilation = stride, dilation
        self._products = {1: self._product(weight, bias, 1, tails)}
        self._block = 1
        while stride == 1 and self._block * out < COLUMNS_MIN:
            self._block *= 2
        if self._block > 1:
            self._products[self._block] = self._product(weight, bias, self._block, tails)
        self._tail = tails.add(self._span - stride, into)

    def _product(self, weight: Tensor, bias: Tensor | None, block: int, tails: TailList) -> Product:
        """From the inputs that `block` neighbouring output steps lie in to those steps."""
        out, into, taps = weight.shape
        step = self._dilation if block > 1 else 1  # a single step's window holds its taps alone
        matrix = weight.new_zeros(block, out, (taps - 1) * step + block, into)
        for k in range(block):
            matrix[k, :, k : k + (taps - 1) * step + 1 : step] = weight.transpose(1, 2)
        repeated = None if bias is None else bias.repeat(block)
        return Product(matrix.view(block * out, -1), repeated, is_steady=tails.is_steady)

    @property
    def slot(self) -> int:
        """Where its rows lie in the list of tails, for a caller that wants other rows than zeros at the start."""
        return self._tail.slot

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        if self._tail.rows:
            x = joined(x, self._tail, tails, keep)
        lanes, rows, channels = x.shape
        steps = (rows - self._span) // self._stride + 1
        block = self._block if steps % self._block == 0 else 1
        runs, apart = (1, 1) if block > 1 or self._dilation == 1 else (self._taps, self._dilation)
        run = (self._span + block - 1 if runs == 1 else 1) * channels  # as much of a window as lies together
        windows = x.as_strided(
            (lanes, steps // block, runs, run),
            (x.stride(0), self._stride * block * channels, apart * channels, 1),
        )
        flat = windows.reshape(lanes * steps // block, -1)
        return self._products[block](flat).view(lanes, steps, -1)


class StreamUpsample:
    """Causal transposed convolution with kernel 2 x stride, [B, T, C_in] to [B, T * stride, C_out].

    Output row t * s + j is w[j] x[t] + w[j + s] x[t - 1]: a product over pairs of rows. Carrying the previous input
    row replaces carrying the overlapping output rows (s times as many), and the bias is added once.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tails: TailList, *, stride: int) -> None:
        into, self._out, kernel = weight.shape
        assert kernel == 2 * stride, (kernel, stride)
        pairs = weight.view(into, self._out, 2, stride).flip(2)  # previous row first, as the window holds them
        flat = pairs.permute(3, 1, 2, 0).reshape(stride * self._out, 2 * into).contiguous()
        self._product = Product(flat, None if bias is None else bias.repeat(stride), is_steady=tails.is_steady)
        self._stride = stride
        self._tail = tails.add(1, into)

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        lanes, steps, channels = x.shape
        whole = joined(x, self._tail, tails, keep)
        pairs = whole.as_strided((lanes, steps, 2 * channels), (whole.stride(0), channels, 1))
        return self._product(pairs.reshape(lanes * steps, -1)).view(lanes, steps * self._stride, self._out)


class StreamUpsampleDepthwise:
    """The same for a weight [C, 1, 2 x stride]: every channel by itself, so no product at all."""

    def __init__(self, weight: Tensor, tails: TailList, *, stride: int) -> None:
        channels, one, kernel = weight.shape
        assert one == 1 and kernel == 2 * stride, weight.shape
        taps = weight[:, 0].t().contiguous()  # [2 x stride, C]
        self._now, self._before, self._stride = taps[:stride].clone(), taps[stride:].clone(), stride
        self._tail = tails.add(1, channels)

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        lanes, steps, channels = x.shape
        whole = joined(x, self._tail, tails, keep)
        rows = whole[:, 1:, None] * self._now + whole[:, :-1, None] * self._before
        return rows.view(lanes, steps * self._stride, channels)

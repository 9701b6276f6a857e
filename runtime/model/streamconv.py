"""Convolutions that carry what they need from step to step. They own no weights' names and no model's shape.

Everything is channels last, [B, T, C]: a convolution is then one matrix product over windows of rows, a transposed
convolution of stride s with kernel 2s is one product over pairs of rows whose result needs no overlap-add, and
neighbouring layers meet without a transpose. `benchmarks/bench_mimi.py` measures it beside the reference decoder.

State is one tensor [B, floats], owned by the caller: each convolution's tail [B, rows, C] is a part of it, updated in
place. `keep` [B, 1, 1] (bool) says which lanes move; a lane that does not keeps its tail.
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
    """Shape of one convolution's carried rows, its place in the list of tails, and where in the state it begins."""

    slot: int
    rows: int
    channels: int
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.channels

    def of(self, state: Tensor) -> Tensor:
        """Its rows [B, rows, C] in the state [B, floats] of all convolutions, or of these lanes': the same memory."""
        return state[:, self.start : self.stop].view(state.shape[0], self.rows, self.channels)


class TailList:
    """Hands out slots while a model is built and makes the tails for a number of lanes."""

    def __init__(self, *, is_steady: bool = False) -> None:
        self._tails: list[Tail] = []
        self.is_steady = is_steady  # of the products of all layers that are built with it

    def add(self, rows: int, channels: int) -> Tail:
        start = self._tails[-1].stop if self._tails else 0
        self._tails.append(Tail(len(self._tails), rows, channels, start))
        return self._tails[-1]

    def zeros(self, lanes: int, like: Tensor) -> Tensor:
        """The state [B, floats] of all convolutions at the start of a stream."""
        return like.new_zeros(lanes, self._tails[-1].stop)

    def split(self, state: Tensor) -> list[Tensor]:
        """Each convolution's rows in it, the same memory."""
        return [tail.of(state) for tail in self._tails]


def joined(x: Tensor, carried: Tensor, keep: Tensor) -> Tensor:
    """The carried rows before x: [B, rows + T, C]; they become the last rows of that."""
    whole = torch.cat([carried, x], 1)
    carried.copy_(torch.where(keep, whole[:, -carried.shape[1] :], carried))
    return whole


@dataclass(frozen=True)
class Windows:
    """What a convolution's product is given of [B, rows, C]: `count` rows, each of `runs` stretches of `length` floats.

    A row begins `step` floats after the last one, a stretch `apart` floats after the last one of its row.
    """

    count: int
    step: int
    runs: int
    apart: int
    length: int

    @property
    def width(self) -> int:
        return self.runs * self.length

    def of(self, whole: Tensor) -> Tensor:
        """[B, count, runs, length] of the rows, the same memory."""
        return whole.as_strided(
            (whole.shape[0], self.count, self.runs, self.length), (whole.stride(0), self.step, self.apart, 1)
        )


class StreamConv:
    """Causal convolution, [B, T, C_in] to [B, T / stride, C_out]. T must be a multiple of the stride."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, tails: TailList, *, stride: int = 1, dilation: int = 1
    ) -> None:
        self.channels, self._into, self._taps = weight.shape
        self._span = (self._taps - 1) * dilation + 1  # input steps that an output step lies in
        self._stride, self._dilation = stride, dilation
        self._products = {1: self._product(weight, bias, 1, tails)}
        self._block = 1
        while stride == 1 and self._block * self.channels < COLUMNS_MIN:
            self._block *= 2
        if self._block > 1:
            self._products[self._block] = self._product(weight, bias, self._block, tails)
        self.tail = tails.add(self._span - stride, self._into)

    def _product(self, weight: Tensor, bias: Tensor | None, block: int, tails: TailList) -> Product:
        """From the inputs that `block` neighbouring output steps lie in to those steps."""
        out, into, taps = weight.shape
        step = self._dilation if block > 1 else 1  # a single step's window holds its taps alone
        matrix = weight.new_zeros(block, out, (taps - 1) * step + block, into)
        for k in range(block):
            matrix[k, :, k : k + (taps - 1) * step + 1 : step] = weight.transpose(1, 2)
        repeated = None if bias is None else bias.repeat(block)
        return Product(matrix.view(block * out, -1), repeated, is_steady=tails.is_steady)

    def parts(self, steps: int) -> tuple[Windows, Product]:
        """How `steps` new rows are multiplied; the windows lie in the carried rows and these."""
        made = steps // self._stride
        block = self._block if made % self._block == 0 else 1
        runs, apart = (1, 1) if block > 1 or self._dilation == 1 else (self._taps, self._dilation)
        length = self._span + block - 1 if runs == 1 else 1  # as much of a window as lies together
        c = self._into
        return Windows(made // block, self._stride * block * c, runs, apart * c, length * c), self._products[block]

    def steps(self, steps: int) -> int:
        """How many output steps so many input steps make."""
        return steps // self._stride

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        windows, product = self.parts(x.shape[1])
        if self.tail.rows:
            x = joined(x, tails[self.tail.slot], keep)
        flat = windows.of(x).reshape(-1, windows.width)
        return product(flat).view(x.shape[0], -1, self.channels)


class StreamUpsample:
    """Causal transposed convolution with kernel 2 x stride, [B, T, C_in] to [B, T * stride, C_out].

    Output row t * s + j is w[j] x[t] + w[j + s] x[t - 1]: a product over pairs of rows. Carrying the previous input
    row replaces carrying the overlapping output rows (s times as many), and the bias is added once.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tails: TailList, *, stride: int) -> None:
        self._into, self.channels, kernel = weight.shape
        assert kernel == 2 * stride, (kernel, stride)
        pairs = weight.view(self._into, self.channels, 2, stride).flip(2)  # previous row first, as the window has them
        flat = pairs.permute(3, 1, 2, 0).reshape(stride * self.channels, 2 * self._into).contiguous()
        self._product = Product(flat, None if bias is None else bias.repeat(stride), is_steady=tails.is_steady)
        self._stride = stride
        self.tail = tails.add(1, self._into)

    def parts(self, steps: int) -> tuple[Windows, Product]:
        """As `StreamConv.parts`."""
        return Windows(steps, self._into, 1, self._into, 2 * self._into), self._product

    def steps(self, steps: int) -> int:
        return steps * self._stride

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        windows, product = self.parts(x.shape[1])
        flat = windows.of(joined(x, tails[self.tail.slot], keep)).reshape(-1, windows.width)
        return product(flat).view(x.shape[0], -1, self.channels)


class StreamUpsampleDepthwise:
    """The same for a weight [C, 1, 2 x stride]: every channel by itself, so no product at all."""

    def __init__(self, weight: Tensor, tails: TailList, *, stride: int) -> None:
        channels, one, kernel = weight.shape
        assert one == 1 and kernel == 2 * stride, weight.shape
        taps = weight[:, 0].t().contiguous()  # [2 x stride, C]
        self.now, self.before, self._stride = taps[:stride].clone(), taps[stride:].clone(), stride
        self.tail = tails.add(1, channels)

    def __call__(self, x: Tensor, state: Tensor, keep: Tensor) -> Tensor:
        """state: all convolutions', [B, floats]."""
        lanes, steps, channels = x.shape
        whole = joined(x, self.tail.of(state), keep)
        rows = whole[:, 1:, None] * self.now + whole[:, :-1, None] * self.before
        return rows.view(lanes, steps * self._stride, channels)

"""Matrices as a step multiplies by them, in the form that is quickest where it runs.

A library chooses its kernel by the number of rows, and its kernels sum in different orders: the last bits of one lane's
sound would tell how many others are being served. The forms for a processor made here give a row the same bits
whatever rows stand beside it, and however many. A plain tensor promises no such thing: it is for compiled and captured
steps, and for devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this many weights a call into oneDNN (13 us) costs more than the product; measured on AVX-512.
PACKED_MIN = 128 * 1024
# MKL multiplies 1, on AMD also 2 and 3 rows by other kernels than more, oneDNN a single one for the widest.
ROWS_MIN, PACKED_ROWS_MIN = 4, 2
# Its kernels take up to 16 rows at a time; held to AVX2 on an Intel processor it rounds 7 and 8 of them by themselves.
TRIED_ROWS = (*range(ROWS_MIN, 17), 33, 64)
# With AMX, oneDNN shares out more than 32 rows of bfloat16 between kernels that round differently. Tried in turn; a row
# by itself is the same whatever comes.
PIECES = (0, 32, 16, 1)
TRIED_TOGETHER = (1, 2, 3, 5, 8, 13, 16, 17, 24, 31, 32, 33, 37, 48, 64, 65, 100, 200)
INT8_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix in 8 bits a weight and one scale a row; the activations stay bfloat16.

    A step is bound by how fast its weights can be read, so half the bytes are most of half the time. Rounding changes
    a product by about 1 % of its largest component.
    """

    values: Tensor  # [out, in] int8
    scale: Tensor  # [out] bfloat16

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Whether the product reads within such a matrix: with other widths it reads past its end and crashes."""
        return weight.shape[1] % INT8_COLUMNS == 0

    @staticmethod
    def of(weight: Tensor) -> Int8Matrix:
        if not Int8Matrix.takes(weight):
            raise ValueError(f"{weight.shape[1]} columns are no multiple of {INT8_COLUMNS}")
        scale = (weight.abs().amax(dim=1).float() / 127.0).clamp(min=1e-12)
        values = (weight.float() / scale.unsqueeze(1)).round_().to(torch.int8)
        return Int8Matrix(values, scale.to(torch.bfloat16))

    def times(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self.values, self.scale)

    def add_times(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.times(y)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in oneDNN's own order of memory: two to three times as quick as rows in a row, for wide matrices."""

    values: Tensor  # opaque
    bias: Tensor | None
    rows_max: int = 0
    """Of one call: more rows are multiplied in pieces. 0: any number."""

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None = None) -> PackedMatrix:
        # The second argument is a hint of how many rows to expect; 1 would choose a form for 1 alone.
        return PackedMatrix(_onednn()._reorder_linear_weight(weight.contiguous(), 16), bias)

    def times(self, x: Tensor) -> Tensor:
        if self.rows_max and x.shape[0] > self.rows_max:
            return torch.cat([self._piece(piece) for piece in torch.split(x, self.rows_max)])
        return self._piece(x)

    def is_steady(self, columns: int, dtype: torch.dtype) -> bool:
        """Whether this machine's library gives a row the same bits in every number of rows: seen by trying."""
        return _keeps_bits(self.times, columns, dtype, TRIED_TOGETHER)

    def _piece(self, x: Tensor) -> Tensor:
        if x.shape[0] < PACKED_ROWS_MIN:
            return self._times(padded(x, PACKED_ROWS_MIN))[: x.shape[0]]
        return self._times(x)

    def add_times(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.times(y)

    def _times(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.values, self.bias, "none", [], "")
        return result


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """A matrix with its columns in a row, multiplied by four rows at least: fewer may have a rounding of their own.

    Where the weight lies as it was read, MKL on Intel processors sums up to 15 rows otherwise than more of them; and on
    some machines it does so either way.
    """

    turned: Tensor  # [in, out]
    bias: Tensor | None

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None = None) -> RowMatrix:
        return RowMatrix(weight.t().contiguous(), bias)

    def times(self, x: Tensor) -> Tensor:
        if x.shape[0] < ROWS_MIN:
            return self._times(padded(x, ROWS_MIN))[: x.shape[0]]
        return self._times(x)

    def add_times(self, x: Tensor, y: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < ROWS_MIN:
            return torch.addmm(padded(x, ROWS_MIN), padded(y, ROWS_MIN), self.turned)[:rows]
        return torch.addmm(x, y, self.turned)

    def is_steady(self) -> bool:
        """As `PackedMatrix.is_steady`."""
        return _keeps_bits(self._times, self.turned.shape[0], torch.float32, TRIED_ROWS)

    def _times(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.turned) if self.bias is None else torch.addmm(self.bias, x, self.turned)


Matrix = Tensor | Int8Matrix | PackedMatrix | RowMatrix


def _keeps_bits(times: Callable[[Tensor], Tensor], columns: int, dtype: torch.dtype, counts: tuple[int, ...]) -> bool:
    """Whether a row's product is the same among so many others, the most of them last, wherever it stands.

    The last bits of single rows are what differs: all are compared.
    """
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(counts[-1], columns, generator=draws).to(dtype)
    whole = times(x)
    order = (torch.randperm(len(x), generator=draws)[:count] for count in counts)
    return all(torch.equal(times(x[rows]), whole[rows]) for rows in order)


def padded(x: Tensor, rows: int) -> Tensor:
    """x [R, ...] itself, or over and over until there are at least `rows` rows."""
    if x.shape[0] >= rows:
        return x
    if x.shape[0] == 1:
        return x.expand(rows, *x.shape[1:])
    return torch.cat([x] * -(-rows // x.shape[0]))


def rows_wanted(matrices: Iterable[Matrix]) -> int:
    """How many rows a stack of products should be given: with fewer, each product has to add them by itself."""
    wanted = {RowMatrix: ROWS_MIN, PackedMatrix: PACKED_ROWS_MIN}
    return max(wanted.get(type(matrix), 1) for matrix in matrices)


def steady(weight: Tensor, bias: Tensor | None = None) -> Matrix:
    """The quickest form on a processor whose rows keep their bits in any company. weight: [out, in]."""
    if weight.device.type != "cpu":
        raise ValueError("steady forms are for processors")
    if weight.dtype != torch.float32:
        if not packs_bfloat16():
            return RowMatrix.of(weight, bias)
        return replace(PackedMatrix.of(weight, bias), rows_max=_steady_rows_max(tuple(weight.shape), weight.dtype))
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return RowMatrix.of(weight, bias)
    if weight.numel() < PACKED_MIN and (rows := RowMatrix.of(weight, bias)).is_steady():
        return rows
    return PackedMatrix.of(weight, bias)


@cache
def _steady_rows_max(shape: tuple[int, int], dtype: torch.dtype) -> int:
    """The largest pieces in which a packed matrix of this shape keeps a row's bits on this machine: seen by trying."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)) / shape[1] ** 0.5
    packed = PackedMatrix.of(weight.to(dtype))
    tried = (rows for rows in PIECES if replace(packed, rows_max=rows).is_steady(shape[1], dtype))
    return next(tried, PIECES[-1])


def packs_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor: it takes AVX-512 or newer."""
    return bool(torch.backends.mkldnn.is_available() and _onednn()._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]


def linear(x: Tensor, weight: Matrix) -> Tensor:
    """x @ weight.T. x: [R, in]."""
    return F.linear(x, weight) if isinstance(weight, Tensor) else weight.times(x)


def project_add(x: Tensor, y: Tensor, weight: Matrix) -> Tensor:
    """x + y @ weight.T: a projection back onto the residual stream."""
    return torch.addmm(x, y, weight.t()) if isinstance(weight, Tensor) else weight.add_times(x, y)


class Product:
    """x @ weight.T + bias for x [..., in]: a layer's matrix with its bias, steady or plain."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_steady: bool) -> None:
        self.form = steady(weight, bias) if is_steady else weight
        self._bias = None if is_steady else bias

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.form, Tensor):
            return F.linear(x, self.form, self._bias)
        return self.form.times(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def _onednn() -> Any:
    return torch.ops.mkldnn

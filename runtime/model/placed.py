"""Calls made ready: products that write to fixed memory, and that memory. For eager steps on a processor.

There a call on a few rows costs more for its views and its result's memory than for its arithmetic, so that steps keep
their calls with all arguments and make them one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from runtime.model.matrices import Matrix, PackedMatrix, RowMatrix

Operation = Callable[[], object]


class Placed:
    """A steady product that writes where it is told to: for memory that every step uses again."""

    def __init__(self, form: Matrix) -> None:
        assert isinstance(form, RowMatrix | PackedMatrix), "only steady matrices are placed"
        self.width = form.turned.shape[1] if isinstance(form, RowMatrix) else form.values.shape[0]
        """Columns of a product."""
        self.bias = form.bias
        self.ones = 0
        """Columns of ones that `into` wants behind those of x: a bias that is a row of the matrix costs no pass."""
        self._form, self._bare = form, replace(form, bias=None)
        if isinstance(form, RowMatrix) and form.bias is not None:
            whole = RowMatrix(torch.cat([form.turned, form.bias.unsqueeze(0)]), None)
            if whole.is_steady():
                self.ones, self._form = 1, whole

    def into(self, x: Tensor, out: Tensor) -> Callable[[], object]:
        """The call that writes the product of x [R, in + ones] to out [R, out]; R is at least ROWS_MIN."""
        if isinstance(self._form, RowMatrix) and self._form.bias is None:
            return partial(torch.mm, x, self._form.turned, out=out)
        return lambda: out.copy_(self._form.times(x))

    def onto(self, x: Tensor, out: Tensor) -> Callable[[], object]:
        """The call that adds the product of x [R, in] without its bias to out [R, out]; R is at least ROWS_MIN."""
        if isinstance(self._bare, RowMatrix):
            return partial(torch.addmm, out, x, self._bare.turned, out=out)
        return lambda: out.add_(self._bare.times(x))


class Memory:
    """Memory by name, finite from the start. Whoever asks for the same name shares it, unless it was too small."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        count = math.prod(shape)
        if name not in self._held or len(self._held[name]) < count:
            with torch.inference_mode(False):
                self._held[name] = torch.zeros(1 << (count - 1).bit_length())
        return self._held[name][:count].view(shape)

"""The forms of a matrix: right, and a row's bits the same whatever rows stand beside it and however many."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from runtime.model.layers import Rope
from runtime.model.matrices import PACKED_MIN, Int8Matrix, Matrix, PackedMatrix, RowMatrix, linear, project_add, steady

COUNTS = (1, 2, 3, 4, 5, 7, 8, 16, 33, 64, 200)
SHAPES = ((4, 64), (192, 64), (128, 352), (1024, 256), (2048, 512), (4096, 2048))


def matrix(form: str, weight: torch.Tensor) -> tuple[Matrix, torch.dtype]:
    if form == "int8":
        return Int8Matrix.of(weight.bfloat16()), torch.bfloat16
    dtype = getattr(torch, form)
    return steady(weight.to(dtype)), dtype


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_row_has_the_same_bits_among_any_number_of_rows(form: str, shape: tuple[int, int]) -> None:
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    held, dtype = matrix(form, torch.randn(shape, generator=draws) / shape[1] ** 0.5)
    x = torch.randn(max(COUNTS), shape[1], generator=draws).to(dtype)
    onto = torch.randn(max(COUNTS), shape[0], generator=draws).to(dtype)
    product, added = linear(x, held), project_add(onto, x, held)
    for count in COUNTS:
        rows = torch.randperm(max(COUNTS), generator=draws)[:count]
        assert torch.equal(linear(x[rows], held), product[rows]), count
        assert torch.equal(project_add(onto[rows], x[rows], held), added[rows]), count


OLD_PROCESSOR = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def test_bfloat16_works_on_a_processor_without_avx512() -> None:
    """oneDNN refuses to pack bfloat16 there; the libraries are told that they run on one."""
    probe = (
        "import torch; from runtime.model.matrices import steady\n"
        "torch.set_num_threads(1); draws = torch.Generator().manual_seed(0)\n"
        "held = steady(torch.randn(192, 64, generator=draws).bfloat16())\n"
        "x = torch.randn(8, 64, generator=draws).bfloat16(); whole = held.times(x)\n"
        "print(type(held).__name__, all(torch.equal(held.times(x[:n]), whole[:n]) for n in (1, 2, 3, 5)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | OLD_PROCESSOR, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["RowMatrix", "True"], done.stderr[-2000:]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_every_form_gives_the_product_of_the_plain_matrix(rows: int, shape: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(shape, generator=draws), torch.randn(shape[0], generator=draws)
    x = torch.randn(rows, shape[1], generator=draws)
    exact = (x.double() @ weight.double().t() + bias).float()
    for form in (RowMatrix(weight.t(), bias), PackedMatrix.of(weight, bias)):
        torch.testing.assert_close(form.times(x), exact, rtol=1e-5, atol=1e-4)


def test_wide_matrices_are_packed_and_narrow_ones_used_where_they_lie() -> None:
    narrow = torch.randn(16, 16)
    form = steady(narrow)
    assert isinstance(form, RowMatrix) and form.turned.data_ptr() == narrow.data_ptr()
    assert isinstance(steady(torch.randn(PACKED_MIN // 64, 64)), PackedMatrix)


@pytest.mark.parametrize("head", [16, 32, 48, 64])
def test_a_positions_angles_do_not_depend_on_how_many_are_asked_for(head: int) -> None:
    rope, offsets = Rope(head, 10000.0, torch.device("cpu")), torch.arange(100, 164)
    cos, sin = rope.at(offsets)
    assert cos.shape == (64, 1, head // 2)
    for count in (1, 2, 3, 5):
        assert torch.equal(rope.at(offsets[:count])[0], cos[:count])
        assert torch.equal(rope.at(offsets[:count])[1], sin[:count])

"""The forms of a matrix: right, and a row's bits the same whatever rows stand beside it and however many."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from runtime.model.layers import Rope
from runtime.model.matrices import PACKED_MIN, Int8Matrix, Matrix, PackedMatrix, RowMatrix, linear, project_add, steady

COUNTS = (*range(1, 17), 33, 64, 200)
SHAPES = ((4, 32), (4, 64), (192, 64), (128, 352), (1024, 256), (2048, 512), (4096, 2048))


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


def test_a_matrix_of_a_width_that_int8_would_read_past_is_refused() -> None:
    assert Int8Matrix.takes(torch.randn(4, 48)) and not Int8Matrix.takes(torch.randn(4, 24))
    with pytest.raises(ValueError, match="24 columns"):
        Int8Matrix.of(torch.randn(4, 24))


OLD_PROCESSOR = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def said_on_an_old_processor(probe: str) -> tuple[list[str], str]:
    """What a program prints, and its complaints, whose libraries believe that the processor has no AVX-512."""
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | OLD_PROCESSOR, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    return done.stdout.split(), done.stderr[-2000:]


def test_bfloat16_works_on_a_processor_without_avx512() -> None:
    """oneDNN refuses to pack bfloat16 there."""
    probe = (
        "import torch; from runtime.model.matrices import steady\n"
        "torch.set_num_threads(1); draws = torch.Generator().manual_seed(0)\n"
        "held = steady(torch.randn(192, 64, generator=draws).bfloat16())\n"
        "x = torch.randn(8, 64, generator=draws).bfloat16(); whole = held.times(x)\n"
        "print(type(held).__name__, all(torch.equal(held.times(x[:n]), whole[:n]) for n in (1, 2, 3, 5)))"
    )
    words, errors = said_on_an_old_processor(probe)
    assert words == ["RowMatrix", "True"], errors


def test_rows_keep_their_bits_on_a_processor_without_avx512() -> None:
    """MKL's kernels for AVX2 round differently by the number of rows on some processors."""
    probe = (
        "import torch; from runtime.model.matrices import steady\n"
        "torch.set_num_threads(1); draws = torch.Generator().manual_seed(0)\n"
        "for shape in ((4, 24), (64, 64), (704, 128), (128, 352)):\n"
        "    held, x = steady(torch.randn(shape, generator=draws)), torch.randn(200, shape[1], generator=draws)\n"
        "    whole = held.times(x)\n"
        "    print(all(torch.equal(held.times(x[:n]), whole[:n]) for n in (*range(1, 40), 49, 63, 127)))"
    )
    words, errors = said_on_an_old_processor(probe)
    assert words == ["True"] * 4, errors


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_every_form_gives_the_product_of_the_plain_matrix(rows: int, shape: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(shape, generator=draws), torch.randn(shape[0], generator=draws)
    x = torch.randn(rows, shape[1], generator=draws)
    exact = (x.double() @ weight.double().t() + bias).float()
    packed = PackedMatrix.of(weight, bias)
    for form in (RowMatrix.of(weight, bias), packed, replace(packed, rows_max=1), replace(packed, rows_max=2)):
        torch.testing.assert_close(form.times(x), exact, rtol=1e-5, atol=1e-4)


def test_wide_matrices_are_packed_and_narrow_ones_where_their_rows_would_not_keep_their_bits() -> None:
    assert isinstance(steady(torch.randn(PACKED_MIN // 64, 64)), PackedMatrix)
    narrow = torch.randn(128, 352)
    assert isinstance(steady(narrow), RowMatrix) == RowMatrix.of(narrow).is_steady()


@pytest.mark.parametrize("head", [16, 32, 48, 64])
def test_a_positions_angles_do_not_depend_on_how_many_are_asked_for(head: int) -> None:
    rope, offsets = Rope(head, 10000.0, torch.device("cpu")), torch.arange(100, 164)
    cos, sin = rope.at(offsets)
    assert cos.shape == (64, 1, head // 2)
    for count in (1, 2, 3, 5):
        assert torch.equal(rope.at(offsets[:count])[0], cos[:count])
        assert torch.equal(rope.at(offsets[:count])[1], sin[:count])

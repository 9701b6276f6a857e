"""Weights in 8 bits: close to what they round, and speech that still runs its course."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime import checkpoint
from runtime.errors import SpecInvalid
from runtime.model.matrices import Int8Matrix, linear, project_add


def test_a_product_in_8_bits_is_within_2_percent_of_the_exact_one() -> None:
    draws = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(s, generator=draws, dtype=torch.float64) for s in ((256, 512), (3, 512)))
    exact = x @ weight.t()
    held = Int8Matrix.of(weight.to(torch.bfloat16))
    got = linear(x.to(torch.bfloat16), held).double()
    assert ((got - exact).abs().max() / exact.abs().max()) < 0.02
    added = project_add(torch.ones(3, 256, dtype=torch.bfloat16), x.to(torch.bfloat16), held).double()
    assert ((added - 1 - exact).abs().max() / exact.abs().max()) < 0.02


def test_a_row_of_zeros_stays_zero() -> None:
    assert not linear(torch.ones(1, 64, dtype=torch.bfloat16), Int8Matrix.of(torch.zeros(32, 64).bfloat16())).any()


def test_int8_is_for_processors(small_checkpoint: Path) -> None:
    with pytest.raises(SpecInvalid, match="int8 is for processors only"):
        checkpoint.load(small_checkpoint, dtype="int8", device="cuda")


def test_a_whole_text_is_spoken_from_weights_in_8_bits(small_checkpoint: Path, tmp_path: Path) -> None:
    from runtime.cli import main

    out = tmp_path / "a.srt"
    command = ["say", "one two three", "-o", str(tmp_path / "a.wav"), "--model", str(small_checkpoint)]
    assert main([*command, "--dtype", "int8", "--timestamps", str(out)]) == 0
    assert "one two three" in " ".join(out.read_text().split())

"""The depth transformer in fixed memory: what the plain one computes, and a row's bits the same in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runtime.make_checkpoint import random_tensors, raw_config
from runtime.model import layout
from runtime.model.depth import Choose, Depth
from runtime.model.depth_placed import DepthPlaced
from runtime.model.sampling import likeliest
from runtime.model_config import parse

TEMPORAL = 128
SHAPES = {
    "rows": {},
    "packed": {"depformer_dim": 384, "depformer_num_heads": 6, "depformer_dim_feedforward": 768},
    "no whole vectors": {"depformer_dim": 120, "depformer_num_heads": 5},
}
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 29, 31, 33, 48, 64)


def depth_of(shape: str, *, is_steady: bool) -> Depth:
    torch.set_num_threads(1)
    raw = raw_config("small") | SHAPES[shape]
    config = parse(raw)
    tensors = dict(random_tensors(layout.expected(config), 5))
    draws = torch.Generator().manual_seed(6)
    for name in (name for name in tensors if name.startswith("depformer.") and name.endswith(".alpha")):
        tensors[name] = 1 + 0.3 * torch.randn(tensors[name].shape, generator=draws)
    cpu = torch.device("cpu")
    return layout.assemble(config, tensors, dtype=torch.float32, device=cpu, is_steady=is_steady).depth


def inputs(depth: Depth, rows: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    summary = torch.randn(rows, TEMPORAL, generator=draws)
    return summary, torch.randint(0, len(depth.text_table), (rows, 2), generator=draws)


def listening(heard: list[Tensor], ways: int) -> Choose:
    def choose(k: int, logits: Tensor) -> Tensor:
        heard.append(logits.clone())
        return likeliest(logits[::ways])

    return choose


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("guided", [False, True], ids=["", "guided"])
@pytest.mark.parametrize("rows", [2, 6, 34])
def test_fixed_memory_gives_what_the_plain_transformer_gives(rows: int, guided: bool, shape: str) -> None:
    plain, steady = (depth_of(shape, is_steady=is_steady) for is_steady in (False, True))
    placed = DepthPlaced(steady)
    with torch.inference_mode():
        for _ in range(2):
            wanted: list[Tensor] = []
            got: list[Tensor] = []
            ways = 2 if guided else 1
            codes = plain.frame(*inputs(plain, rows), listening(wanted, ways), guided=guided)
            assert torch.equal(placed.frame(*inputs(plain, rows), listening(got, ways), guided=guided), codes)
            assert codes.shape == (rows // ways, 8)
            for ours, theirs in zip(got, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 * float(theirs.abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape: str) -> None:
    placed = DepthPlaced(depth_of(shape, is_steady=True))
    summary, text_rows = inputs(placed.depth, max(ROWS))
    draws = torch.Generator().manual_seed(8)
    with torch.inference_mode():
        whole: list[Tensor] = []
        placed.frame(summary, text_rows, listening(whole, 1))
        for rows in ROWS:
            own = torch.randperm(len(summary), generator=draws)[:rows]
            heard: list[Tensor] = []
            placed.frame(summary[own], text_rows[own], listening(heard, 1))
            for k, (logits, among) in enumerate(zip(heard, whole, strict=True)):
                assert torch.equal(logits, among[own]), (rows, k)

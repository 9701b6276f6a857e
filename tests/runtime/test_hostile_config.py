"""Whatever stands in a configuration, the answer is a model or one line: no traceback, no endless counting."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import checkpoint, weights
from runtime import model_config as configs
from runtime.errors import CheckpointInvalid
from runtime.make_checkpoint import SMALL_MIMI, raw_config
from runtime.model import layout
from runtime.model.codec import load_codec
from runtime.model.mimi_config import expected_shapes, parse_mimi_config

DEMO = Path(__file__).parents[2] / "voices" / "demo" / "config.json"
WRONG: tuple[Any, ...] = (
    None, -1, 0, 1.5, 10**30, 2**63, math.inf, math.nan, True, "x", "", "../x", "a\x00b", "a\nb", [], [None], [[]],
    {}, {"a": 1},
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of a list, its first two."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, held in inside:
        yield from places(held, (*at, key))


def spoilt(value: Any, at: tuple[Any, ...], wrong: Any) -> Any:
    if not at:
        return wrong
    value = copy.copy(value)
    value[at[0]] = spoilt(value[at[0]], at[1:], wrong)
    return value


def model(raw: Any) -> None:
    layout.expected(configs.parse(raw))


def codec(raw: Any) -> None:
    expected_shapes(parse_mimi_config(raw))


CONFIGS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "small": (raw_config("small"), model),
    "small-prompted": (raw_config("small-prompted"), model),
    "demo": (json.loads(DEMO.read_text()) if DEMO.exists() else {}, model),
    "mimi": (SMALL_MIMI, codec),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_any_wrong_value_anywhere_is_taken_or_named_in_one_line(name: str) -> None:
    raw, read = CONFIGS[name]
    refused = 0
    for at in places(raw):
        for wrong in WRONG:
            try:
                read(spoilt(raw, at, wrong))
            except CheckpointInvalid as why:
                refused += 1
                assert str(why).isprintable(), (at, wrong)
            except Exception as why:
                raise AssertionError(f"{at} = {wrong!r} ends in {why!r}") from why
    assert refused > 10 or not raw


CODEC_BROKEN: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda t: t.pop("decoder.model.0.conv.conv.bias"), r"decoder\.model\.0\.conv\.conv\.bias: is missing"),
    (lambda t: t.update(spare=torch.zeros(2)), "spare: is not part of"),
    (lambda t: t.update({"decoder.model.0.conv.conv.bias": torch.ones(3)}), r"conv\.bias: has shape \[3\]"),
    (lambda t: t["decoder.model.0.conv.conv.bias"].fill_(math.nan), r"conv\.bias: holds NaN"),
    (
        lambda t: t.update({"decoder.model.0.conv.conv.bias": torch.ones(128, dtype=torch.int32)}),
        r"conv\.bias: has type",
    ),
    (lambda t: t.update({"a\nb": torch.zeros(2)}), r"a\\nb: is not part of"),
]


@pytest.mark.parametrize(
    ("change", "line"), CODEC_BROKEN, ids=["missing", "extra", "misshapen", "nan", "type", "two lines"]
)
def test_a_wrong_tensor_of_the_codec_is_named(
    small_checkpoint: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], line: str
) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "broken")
    file = tmp_path / "broken" / "mimi.safetensors"
    tensors = {name: tensor.clone() for name, tensor in weights.read(file).items()}
    file.unlink()
    change(tensors)
    weights.write(file, tensors)
    with pytest.raises(CheckpointInvalid, match=line):
        checkpoint.load(tmp_path / "broken")


SPECTRAL_BROKEN: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda t: t.pop("decoder.bias"), r"decoder\.bias: the spectral codec needs"),
    (lambda t: t.update(spare=torch.zeros(2)), "spare: is not part of"),
    (lambda t: t.update({"decoder.bias": torch.ones(3)}), r"decoder\.bias: has shape \[3\], expected \[180\]"),
    (lambda t: t.update({"quantizer.codebooks": torch.ones(3)}), r"codebooks: has shape \[3\], expected 3 dimensions"),
    (lambda t: t["decoder.weight"].view(-1)[5].fill_(math.inf), r"decoder\.weight: holds NaN or infinity"),
    (lambda t: t.update({"decoder.bias": torch.ones(180, dtype=torch.int32)}), r"decoder\.bias: has type"),
]


@pytest.mark.parametrize(
    ("change", "line"), SPECTRAL_BROKEN, ids=["missing", "extra", "misshapen", "flat", "inf", "type"]
)
def test_a_wrong_tensor_of_the_spectral_codec_is_named(change: Callable[[dict[str, Tensor]], Any], line: str) -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = {
        "quantizer.codebooks": (2, 16, 48), "decoder.weight": (48, 180), "decoder.bias": (180,),
        "decoder.harmonic_basis": (56, 481), "decoder.noise_basis": (32, 481),
    }  # fmt: skip
    tensors = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
    assert load_codec(tensors, {"type": "spectral"}, n_q=8).card == 16
    change(tensors)
    with pytest.raises(CheckpointInvalid, match=line):
        load_codec(tensors, {"type": "spectral"}, n_q=8)

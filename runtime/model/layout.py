"""The published checkpoint layout: every tensor's name and shape, and how the model is put together from them.

Nothing else knows a key name. Tables that the published model composes at run time (the two text streams' projections,
low-rank embeddings) are multiplied out here, once: the tokens' rows are the same numbers, found by one look-up.
Shapes: D temporal width, E depth width, K codebooks, J weight sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.model.conditioning import Conditioning, ConditionWeights
from runtime.model.depth import Depth, DepthLayer, DepthWeights
from runtime.model.layers import GatedMlp, RmsNorm
from runtime.model.matrices import Int8Matrix, Matrix, steady
from runtime.model.temporal import CrossAttention, Temporal, TemporalLayer
from runtime.model_config import ModelConfig

Shape = tuple[int, ...]
Tensors = Mapping[str, Tensor]
CONDITIONS = "condition_provider.conditioners."


@dataclass(slots=True)
class SpeechModel:
    """The language model's parts. Its weights are constants, shared by all lanes."""

    config: ModelConfig
    temporal: Temporal
    depth: Depth
    conditioning: Conditioning
    dtype: torch.dtype
    device: torch.device
    is_steady: bool  # held as eager steps on a processor take it, which nothing compiles or captures


def expected(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the language model."""
    c, dim = config, config.temporal.dim
    shapes: dict[str, Shape] = {"out_norm.alpha": (1, 1, dim), "text_linear.weight": (c.text_card_out, dim)}
    shapes |= _embedding("text_emb", c.text_card + 1, dim, None, c.demux)
    for q in range(c.n_q):
        shapes |= _embedding(f"emb.{q}", c.card + 1, dim, None, False)
    for i in range(c.temporal.layers):
        at = f"transformer.layers.{i}."
        shapes |= _layer(at, dim, c.temporal.hidden)
        if c.cross_attention:
            shapes |= {f"{at}norm_cross.weight": (dim,), f"{at}norm_cross.bias": (dim,)}
            shapes |= {f"{at}cross_attention.in_proj_weight": (3 * dim, dim)}
            shapes |= {f"{at}cross_attention.out_proj.weight": (dim, dim)}
    shapes |= _expected_depth(config)
    for cond in c.conditioners:
        at = f"{CONDITIONS}{cond.name}."
        shapes |= {f"{at}output_proj.weight": (dim, cond.dim), f"{at}learnt_padding": (1, 1, dim)}
        if cond.kind == "lut":
            shapes[f"{at}embed.weight"] = (cond.bins + 1, cond.dim)
    return shapes


def _expected_depth(c: ModelConfig) -> dict[str, Shape]:
    dim, sets = c.depth.dim, c.weight_sets
    shapes: dict[str, Shape] = _embedding("depformer_text_emb", c.text_card + 1, dim, c.low_rank, c.demux)
    for q in range(c.dep_q - 1):
        shapes |= _embedding(f"depformer_emb.{q}", c.card + 1, dim, c.low_rank, False)
    for q in range(c.dep_q):
        shapes[f"linears.{q}.weight"] = (c.card, dim)
    for j in range(sets):
        shapes[f"depformer_in.{j}.weight"] = (dim, c.temporal.dim)
    for i in range(c.depth.layers):
        at = f"depformer.layers.{i}."
        shapes |= {f"{at}norm1.alpha": (1, 1, dim), f"{at}norm2.alpha": (1, 1, dim)}
        shapes |= {f"{at}self_attn.in_proj_weight": (sets * 3 * dim, dim)}
        shapes |= {f"{at}self_attn.out_proj.weight": (sets * dim, dim)}
        for j in range(sets):
            shapes[f"{at}gating.{j}.linear_in.weight"] = (2 * c.depth.hidden, dim)
            shapes[f"{at}gating.{j}.linear_out.weight"] = (dim, c.depth.hidden)
    return shapes


def _layer(at: str, dim: int, hidden: int) -> dict[str, Shape]:
    return {
        f"{at}norm1.alpha": (1, 1, dim),
        f"{at}norm2.alpha": (1, 1, dim),
        f"{at}self_attn.in_proj_weight": (3 * dim, dim),
        f"{at}self_attn.out_proj.weight": (dim, dim),
        f"{at}gating.linear_in.weight": (2 * hidden, dim),
        f"{at}gating.linear_out.weight": (dim, hidden),
    }


def _embedding(name: str, rows: int, dim: int, low_rank: int | None, demux: bool) -> dict[str, Shape]:
    inner = low_rank or dim
    shapes: dict[str, Shape] = {f"{name}.weight": (rows, inner)}
    if low_rank:
        shapes[f"{name}.low_rank.weight"] = (dim, inner)
    if demux:
        shapes |= {f"{name}.out1.weight": (dim, inner), f"{name}.out2.weight": (dim, inner)}
    return shapes


def assemble(
    config: ModelConfig,
    tensors: Tensors,
    *,
    dtype: torch.dtype,
    device: torch.device,
    codebooks: int | None = None,
    int8: bool = False,
    is_steady: bool = False,
) -> SpeechModel:
    """The model from checked tensors; a matrix whose type and device already fit is used where it lies.

    `codebooks`: how many of dep_q to speak with, coarse ones first; None means all. `int8`: hold the transformers'
    matrices in 8 bits; embeddings, the heads that choose tokens and the voice's projections stay in `dtype`, which
    must be bfloat16. `is_steady`: in forms that are quickest for eager steps on a processor and keep a row's bits
    whatever its neighbours; they are copies of the matrices, which compiled and captured steps could not use.
    """
    load = _Loader(tensors, dtype, device, int8, is_steady)
    return SpeechModel(
        config, _temporal(config, load), _depth(config, load, codebooks or config.dep_q),
        _conditioning(config, load), dtype, device, is_steady,
    )  # fmt: skip


class _Loader:
    """Tensors by name, in the type and on the device that the model runs in."""

    def __init__(
        self, tensors: Tensors, dtype: torch.dtype, device: torch.device, int8: bool, is_steady: bool
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        self._int8, self._steady = int8, is_steady

    def matrix(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device, self._dtype)

    def held(self, matrix: Tensor) -> Matrix:
        """A transformer's matrix, in 8 bits where that is asked for and it is of a width that can be."""
        return Int8Matrix.of(matrix) if self._int8 and Int8Matrix.takes(matrix) else self.head(matrix)

    def head(self, matrix: Tensor) -> Matrix:
        """A matrix that chooses tokens: never in 8 bits."""
        return steady(matrix) if self._steady else matrix

    def weight(self, name: str) -> Matrix:
        return self.held(self.matrix(name))

    def single(self, name: str) -> Tensor:
        """In float32, whatever the model runs in."""
        return self._tensors[name].to(self._device, torch.float32)

    def norm(self, name: str) -> RmsNorm:
        """A norm whose weight is rounded to the model's type, as the reference does, and held in float32."""
        return RmsNorm(self.matrix(name).flatten().float())

    def table(self, name: str, *, text: bool) -> list[Tensor]:
        """The rows of an embedding; of a text embedding with two streams, one table for each."""
        rows = self.matrix(f"{name}.weight")
        ends = ("out1", "out2") if text and f"{name}.out1.weight" in self._tensors else ("low_rank",)
        if f"{name}.{ends[0]}.weight" not in self._tensors:
            return [rows]
        return [rows @ self.matrix(f"{name}.{end}.weight").t() for end in ends]


def _with_zero(tables: list[Tensor]) -> Tensor:
    """One table of all rows, and a row of zeros for 'no token'."""
    return torch.cat([*tables, tables[0].new_zeros(1, tables[0].shape[1])])


def _temporal(config: ModelConfig, load: _Loader) -> Temporal:
    dim = config.temporal.dim
    audio = [load.table(f"emb.{q}", text=False)[0] for q in range(config.n_q)]
    layers = []
    for i in range(config.temporal.layers):
        at = f"transformer.layers.{i}."
        cross = None
        if config.cross_attention:
            both = load.matrix(f"{at}cross_attention.in_proj_weight")
            cross = CrossAttention(
                load.matrix(f"{at}norm_cross.weight"), load.matrix(f"{at}norm_cross.bias"),
                load.held(both[:dim]), both[dim:], load.weight(f"{at}cross_attention.out_proj.weight"),
            )  # fmt: skip
        layers.append(
            TemporalLayer(
                load.norm(f"{at}norm1.alpha"), load.weight(f"{at}self_attn.in_proj_weight"),
                load.weight(f"{at}self_attn.out_proj.weight"), cross, load.norm(f"{at}norm2.alpha"),
                GatedMlp(load.weight(f"{at}gating.linear_in.weight"), load.weight(f"{at}gating.linear_out.weight")),
            )
        )  # fmt: skip
    return Temporal(
        layers, _with_zero(audio + load.table("text_emb", text=True)), load.norm("out_norm.alpha"),
        load.head(load.matrix("text_linear.weight")), heads=config.temporal.heads, context=config.context,
        max_period=config.max_period,
    )  # fmt: skip


def _depth(config: ModelConfig, load: _Loader, codebooks: int) -> Depth:
    schedule = config.schedule[:codebooks]
    sets = max(schedule) + 1
    layers = []
    for i in range(config.depth.layers):
        at = f"depformer.layers.{i}."
        qkv = load.matrix(f"{at}self_attn.in_proj_weight").chunk(config.weight_sets)
        out = load.matrix(f"{at}self_attn.out_proj.weight").chunk(config.weight_sets)
        by_set = [
            DepthWeights(
                load.held(qkv[j]), load.held(out[j]),
                GatedMlp(
                    load.weight(f"{at}gating.{j}.linear_in.weight"), load.weight(f"{at}gating.{j}.linear_out.weight")
                ),
            )
            for j in range(sets)
        ]  # fmt: skip
        layers.append(
            DepthLayer(load.norm(f"{at}norm1.alpha"), load.norm(f"{at}norm2.alpha"), [by_set[j] for j in schedule])
        )
    return Depth(
        layers,
        load.held(torch.cat([load.matrix(f"depformer_in.{j}.weight") for j in range(sets)])),
        schedule,
        _with_zero(load.table("depformer_text_emb", text=True)),
        [load.table(f"depformer_emb.{q}", text=False)[0] for q in range(codebooks - 1)],
        [load.head(load.matrix(f"linears.{q}.weight")) for q in range(codebooks)],
        heads=config.depth.heads,
    )


def _conditioning(config: ModelConfig, load: _Loader) -> Conditioning:
    weights = {}
    for cond in config.conditioners:
        at = f"{CONDITIONS}{cond.name}."
        weights[cond.name] = ConditionWeights(
            cond, load.single(f"{at}output_proj.weight"), load.single(f"{at}learnt_padding").flatten(),
            load.single(f"{at}embed.weight") if cond.kind == "lut" else None,
        )  # fmt: skip
    return Conditioning(config, weights)

"""What a Mimi checkpoint is: its configuration and the exact name and shape of every tensor. No arithmetic, no torch.

The published file carries no configuration of its own; `MimiConfig()` is that file's. Others come as the JSON that the
public package calls the mimi config. Names follow the published layout (318 tensors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runtime.errors import CheckpointInvalid

Shape = tuple[int, ...]
# How the resampling between the SEANet's rate and the frame rate is shaped: kernel = 2 x stride.
RESAMPLE_KERNEL_STRIDES = 2


@dataclass(frozen=True)
class MimiConfig:
    """The numbers that shape a Mimi codec; the defaults are the published one's."""

    sample_rate: int = 24_000
    frame_rate: float = 12.5
    dimension: int = 512
    n_filters: int = 64
    n_residual_layers: int = 1
    dilation_base: int = 2
    compress: int = 2
    kernel_size: int = 7
    residual_kernel_size: int = 3
    last_kernel_size: int = 3
    ratios: tuple[int, ...] = (8, 6, 5, 4)
    num_heads: int = 8
    num_layers: int = 8
    dim_feedforward: int = 2048
    context: int = 250
    max_period: float = 10_000.0
    codebook_dim: int = 256
    codebooks: int = 32
    card: int = 2048

    @property
    def hop(self) -> int:
        """Samples per SEANet step: the product of the ratios."""
        return math.prod(self.ratios)

    @property
    def frame_samples(self) -> int:
        return round(self.sample_rate / self.frame_rate)

    @property
    def resample_stride(self) -> int:
        """SEANet steps per frame."""
        return self.frame_samples // self.hop


# Where each field stands in the JSON, and what else the JSON must say for our arithmetic to be the right one.
_PLACES = {
    "": ("sample_rate", "frame_rate"),
    "seanet": (
        "dimension", "n_filters", "n_residual_layers", "dilation_base", "compress", "kernel_size",
        "residual_kernel_size", "last_kernel_size", "ratios",
    ),
    "transformer": ("num_heads", "num_layers", "dim_feedforward", "context", "max_period"),
}  # fmt: skip
_FIXED: dict[str, dict[str, object]] = {
    "": {"channels": 1},
    "seanet": {
        "channels": 1, "causal": True, "activation": "ELU", "disable_norm_outer_blocks": 0, "norm": "none",
        "pad_mode": "constant", "true_skip": True,
    },
    "transformer": {
        "causal": True, "conv_layout": True, "gating": "none", "norm": "layer_norm", "positional_embedding": "rope",
        "layer_scale": ..., "d_model": ..., "input_dimension": ..., "output_dimensions": ...,
    },
    "quantizer": {
        "dimension": ..., "n_q": ..., "bins": ..., "input_dimension": ..., "output_dimension": ...,
    },
}  # fmt: skip

# More is a slip of the pen, which would be allocated or counted to.
VALUE_MAX, LAYERS_MAX = 1_000_000, 1000


def parse_mimi_config(raw: Mapping[str, Any] | None) -> MimiConfig:
    """The configuration in the public package's JSON; None is the published one.

    Raises CheckpointInvalid for a key we do not know or a value our arithmetic does not cover: a wrong guess would
    load and then sound wrong.
    """
    if raw is None:
        return MimiConfig()
    if not isinstance(raw, Mapping):
        raise CheckpointInvalid("mimi config", f"must be a JSON object, is {raw!r}")
    found: dict[str, Any] = {}
    for section in ("", "seanet", "transformer", "quantizer"):
        values = _section(raw, section)
        fixed, places = _FIXED[section], _PLACES.get(section, ())
        for key, value in values.items():
            where = f"mimi config {section + '.' if section else ''}{key}"
            if key in places:
                found[key] = tuple(value) if isinstance(value, list) else value
            elif key not in fixed:
                raise CheckpointInvalid(where, "unknown key")
            elif fixed[key] is not ... and value != fixed[key]:
                raise CheckpointInvalid(where, f"{value!r} is not supported, only {fixed[key]!r}")
    quantizer = _section(raw, "quantizer")
    for key, name in (("dimension", "codebook_dim"), ("n_q", "codebooks"), ("bins", "card")):
        if key in quantizer:
            found[name] = quantizer[key]
    config = MimiConfig(**found)
    _check(config, _section(raw, "transformer"), quantizer)
    return config


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not name:
        return {k: v for k, v in raw.items() if k not in ("seanet", "transformer", "quantizer", "type")}
    value = raw.get(name, {})
    if not isinstance(value, Mapping):
        raise CheckpointInvalid(f"mimi config {name}", "is not an object")
    return value


def _check(config: MimiConfig, transformer: Mapping[str, Any], quantizer: Mapping[str, Any]) -> None:
    if not isinstance(config.ratios, tuple) or len(config.ratios) not in range(1, LAYERS_MAX):
        raise CheckpointInvalid("mimi config ratios", f"{config.ratios!r} is not a list of strides")
    for f in fields(config):
        values = getattr(config, f.name)
        most = LAYERS_MAX if "layers" in f.name else VALUE_MAX
        kind = int | float if f.name in ("frame_rate", "max_period") else int
        for value in values if isinstance(values, tuple) and f.name == "ratios" else (values,):
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= most:
                raise CheckpointInvalid(f"mimi config {f.name}", f"{value!r} is not a number above 0, at most {most}")
    widths = [transformer.get("d_model"), transformer.get("input_dimension"), quantizer.get("input_dimension")]
    outputs = transformer.get("output_dimensions")
    widths += [quantizer.get("output_dimension"), *(outputs if isinstance(outputs, list) else [outputs])]
    if any(w is not None and w != config.dimension for w in widths):
        raise CheckpointInvalid("mimi config seanet.dimension", f"{config.dimension} differs from another width")
    if config.frame_samples % config.hop or config.resample_stride < 2:
        raise CheckpointInvalid("mimi config frame_rate", f"a frame is not a multiple of the hop, {config.hop}")
    if config.dimension % (2 * config.num_heads):
        raise CheckpointInvalid("mimi config transformer.num_heads", "does not divide the width into even heads")


def expected_shapes(config: MimiConfig) -> dict[str, Shape]:
    """Name and shape of every tensor in a checkpoint of this configuration, published names."""
    shapes: dict[str, Shape] = {}
    shapes |= _encoder_shapes(config)
    shapes |= _decoder_shapes(config)
    for side in ("encoder", "decoder"):
        for i in range(config.num_layers):
            shapes |= _layer_shapes(f"{side}_transformer.transformer.layers.{i}.", config)
    d, kernel = config.dimension, RESAMPLE_KERNEL_STRIDES * config.resample_stride
    shapes["downsample.conv.conv.conv.weight"] = (d, d, kernel)
    shapes["upsample.convtr.convtr.convtr.weight"] = (d, 1, kernel)
    for branch, count in (("rvq_first", 1), ("rvq_rest", config.codebooks - 1)):
        shapes |= _quantizer_shapes(f"quantizer.{branch}.", count, config)
    return shapes


def _conv(name: str, out: int, into: int, kernel: int) -> dict[str, Shape]:
    return {f"{name}.conv.conv.weight": (out, into, kernel), f"{name}.conv.conv.bias": (out,)}


def _residual(name: str, width: int, c: MimiConfig) -> dict[str, Shape]:
    hidden = width // c.compress
    first = _conv(f"{name}.block.1", hidden, width, c.residual_kernel_size)
    return first | _conv(f"{name}.block.3", width, hidden, 1)


def _encoder_shapes(c: MimiConfig) -> dict[str, Shape]:
    shapes, index, width = _conv("encoder.model.0", c.n_filters, 1, c.kernel_size), 1, c.n_filters
    for ratio in reversed(c.ratios):
        for _ in range(c.n_residual_layers):
            shapes |= _residual(f"encoder.model.{index}", width, c)
            index += 1
        shapes |= _conv(f"encoder.model.{index + 1}", 2 * width, width, 2 * ratio)
        index, width = index + 2, 2 * width
    return shapes | _conv(f"encoder.model.{index + 1}", c.dimension, width, c.last_kernel_size)


def _decoder_shapes(c: MimiConfig) -> dict[str, Shape]:
    width = c.n_filters * 2 ** len(c.ratios)
    shapes, index = _conv("decoder.model.0", width, c.dimension, c.kernel_size), 1
    for ratio in c.ratios:
        name = f"decoder.model.{index + 1}.convtr.convtr"
        shapes |= {f"{name}.weight": (width, width // 2, 2 * ratio), f"{name}.bias": (width // 2,)}
        index, width = index + 2, width // 2
        for _ in range(c.n_residual_layers):
            shapes |= _residual(f"decoder.model.{index}", width, c)
            index += 1
    return shapes | _conv(f"decoder.model.{index + 1}", 1, width, c.last_kernel_size)


def _layer_shapes(name: str, c: MimiConfig) -> dict[str, Shape]:
    d, ff = c.dimension, c.dim_feedforward
    shapes: dict[str, Shape] = {
        f"{name}self_attn.in_proj_weight": (3 * d, d),
        f"{name}self_attn.out_proj.weight": (d, d),
        f"{name}linear1.weight": (ff, d),
        f"{name}linear2.weight": (d, ff),
        f"{name}layer_scale_1.scale": (d,),
        f"{name}layer_scale_2.scale": (d,),
    }
    for norm in ("norm1", "norm2"):
        shapes |= {f"{name}{norm}.weight": (d,), f"{name}{norm}.bias": (d,)}
    return shapes


def _quantizer_shapes(name: str, count: int, c: MimiConfig) -> dict[str, Shape]:
    d, inner = c.dimension, c.codebook_dim
    shapes: dict[str, Shape] = {
        f"{name}input_proj.weight": (inner, d, 1),
        f"{name}output_proj.weight": (d, inner, 1),
    }
    for i in range(count):
        book = f"{name}vq.layers.{i}._codebook."
        shapes |= {f"{book}_initialized": (1,), f"{book}cluster_usage": (c.card,)}
        shapes |= {f"{book}embedding_sum": (c.card, inner)}
    return shapes

"""The convolutional halves of Mimi: sound to latent steps and back (SEANet, arXiv:2009.02095). Channels last.

They own the order of the layers and the names of their tensors; the convolutions and their state are streamconv.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from runtime.model.mimi_config import MimiConfig
from runtime.model.streamconv import StreamConv, StreamUpsample, TailList

Layer = Callable[[Tensor, list[Tensor], Tensor], Tensor]


def _conv(
    w: Mapping[str, Tensor], name: str, tails: TailList, *, stride: int = 1, dilation: int = 1
) -> StreamConv:
    weight, bias = w[f"{name}.conv.conv.weight"], w[f"{name}.conv.conv.bias"]
    return StreamConv(weight, bias, tails, stride=stride, dilation=dilation)


def elu(x: Tensor) -> Tensor:
    """max(x, exp(min(x, 0)) - 1). The library's own spends three times as long on exact places far below one step of
    16 bit: exp(x) - 1 is wrong by 6e-8 at most."""
    below = x.clamp(max=0).exp_().sub_(1)
    return torch.maximum(x, below, out=below)


class Residual:
    """ELU, kernel 3 to fewer channels, ELU, kernel 1 back, and the input added."""

    def __init__(self, w: Mapping[str, Tensor], name: str, tails: TailList, dilation: int) -> None:
        self.narrow = _conv(w, f"{name}.block.1", tails, dilation=dilation)
        self.widen = _conv(w, f"{name}.block.3", tails)

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        hidden = self.narrow(elu(x), tails, keep)
        return self.widen(elu(hidden), tails, keep).add_(x)


class Activated:
    """ELU before a convolution."""

    def __init__(self, layer: StreamConv | StreamUpsample) -> None:
        self.layer = layer

    def __call__(self, x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
        return self.layer(elu(x), tails, keep)


def decoder_layers(w: Mapping[str, Tensor], c: MimiConfig, tails: TailList) -> list[Layer]:
    """Latent steps [B, T, dimension] to sound [B, T * hop, 1]."""
    layers: list[Layer] = [_conv(w, "decoder.model.0", tails)]
    index = 1
    for ratio in c.ratios:
        name = f"decoder.model.{index + 1}.convtr.convtr"
        layers.append(Activated(StreamUpsample(w[f"{name}.weight"], w[f"{name}.bias"], tails, stride=ratio)))
        index += 2
        for j in range(c.n_residual_layers):
            layers.append(Residual(w, f"decoder.model.{index}", tails, c.dilation_base**j))
            index += 1
    layers.append(Activated(_conv(w, f"decoder.model.{index + 1}", tails)))
    return layers


def encoder_layers(w: Mapping[str, Tensor], c: MimiConfig, tails: TailList) -> list[Layer]:
    """Sound [B, T * hop, 1] to latent steps [B, T, dimension]."""
    layers: list[Layer] = [_conv(w, "encoder.model.0", tails)]
    index = 1
    for ratio in reversed(c.ratios):
        for j in range(c.n_residual_layers):
            layers.append(Residual(w, f"encoder.model.{index}", tails, c.dilation_base**j))
            index += 1
        layers.append(Activated(_conv(w, f"encoder.model.{index + 1}", tails, stride=ratio)))
        index += 2
    layers.append(Activated(_conv(w, f"encoder.model.{index + 1}", tails)))
    return layers


def run_layers(layers: list[Layer], x: Tensor, tails: list[Tensor], keep: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, tails, keep)
    return x

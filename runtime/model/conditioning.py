"""What a stream is told besides text: guidance strength, control words, the voice. Computed once per stream, float32.

Shapes: D temporal width, S positions to attend to, T positions of one voice embedding, V its width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import SpecInvalid
from runtime.model_config import Conditioner, ModelConfig
from runtime.port import SPEAKERS_MAX


@dataclass(slots=True)
class ConditionWeights:
    """One condition's matrices. `embed` is there for conditions chosen by name."""

    spec: Conditioner
    w_out: Tensor  # [D, dim]
    padding: Tensor  # [D]: stands for "not given"
    embed: Tensor | None  # [bins + 1, dim]


class Conditioning:
    """All conditions of a model and how they are fused: added to the input, or attended to."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, ConditionWeights]) -> None:
        self._config, self._weights = config, dict(weights)

    def added(self, given: Mapping[str, str]) -> Tensor | None:
        """The sum [D] of the conditions added to every step's input; one not given counts as its padding."""
        total: Tensor | None = None
        for name in self._config.sum_conditions:
            part = self._chosen(self._weights[name], given.get(name))
            total = part if total is None else total + part
        return total

    def attended(self, voices: Sequence[Tensor], positions: int) -> Tensor | None:
        """The source [S, D] of the cross-attention, S = SPEAKERS_MAX * positions, from voice embeddings [T, V].

        Every place without a voice holds the padding; all of them, if there is none. T must equal `positions`.
        """
        if not self._config.cross_conditions:
            return None
        parts = []
        for name in self._config.cross_conditions:
            weights = self._weights[name]
            if weights.spec.kind == "tensor":
                parts.append(self._speakers(weights, voices, positions))
            else:
                parts.append(self._chosen(weights, None).unsqueeze(0))
        source = torch.cat(parts, dim=0)
        if self._config.cross_pos_emb:
            source = source + self._config.cross_pos_scale * _sinusoids(*source.shape, device=source.device)
        return source

    def _speakers(self, weights: ConditionWeights, voices: Sequence[Tensor], positions: int) -> Tensor:
        source = weights.padding.repeat(SPEAKERS_MAX * positions, 1)
        for place, voice in enumerate(voices):
            source[place * positions : (place + 1) * positions] = F.linear(voice.to(source), weights.w_out)
        return source

    def _chosen(self, weights: ConditionWeights, value: str | None) -> Tensor:
        if value is None or weights.embed is None:
            return weights.padding
        if value not in weights.spec.values:
            raise SpecInvalid(weights.spec.name, f"must be one of {', '.join(weights.spec.values)}, is {value}")
        return F.linear(weights.embed[weights.spec.values.index(value)], weights.w_out)


def _sinusoids(length: int, dim: int, *, device: torch.device) -> Tensor:
    """Positions [length, dim]: cosines in the first half, sines in the second, as the reference has them."""
    half = dim // 2
    exponents = torch.arange(half, device=device, dtype=torch.float32) / (half - 1)
    phase = torch.arange(length, device=device, dtype=torch.float32).unsqueeze(1) / (10000.0**exponents)
    return torch.cat((torch.cos(phase), torch.sin(phase)), dim=-1)

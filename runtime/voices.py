"""The voices of a checkpoint: which there are, what a mix of them is. It owns no speech and no sound.

A voice of a model that attends to voices is a file `<name>.<sig>@<epoch>.safetensors` with one tensor, in the
checkpoint's directory or below its `voices` folder. A model that continues a sound takes a sound file instead. A model
with neither has the one voice it was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from runtime import weights
from runtime.errors import CheckpointInvalid, NameUnknown, SpecInvalid
from runtime.model_config import ModelConfig
from runtime.port import SPEAKERS_MAX

ONLY_VOICE = "default"  # the name of the voice of a model that has just one
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
TENSOR = "speaker_wavs"


@dataclass(frozen=True, slots=True)
class Part:
    """One voice of a mix and its share; the shares of a mix sum to 1."""

    name: str
    share: float


def parse_mix(text: str) -> tuple[Part, ...]:
    """ "anna" or "anna:0.7+ben:0.3"; weights need not sum to 1, a missing one is 1. Raises SpecInvalid."""
    parts = []
    for piece in text.split("+"):
        name, colon, weight = piece.strip().rpartition(":")
        if not colon:
            name, weight = weight, "1"
        try:
            share = float(weight)
        except ValueError:
            share = -1.0
        if not name or not 0 < share < 1e6:
            raise SpecInvalid("voice", f"{text!r} is neither a name nor a mix such as anna:0.7+ben:0.3")
        parts.append((name.strip(), share))
    total = sum(share for _, share in parts)
    return tuple(Part(name, share / total) for name, share in parts)


class Voices:
    """All voices of one checkpoint."""

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self._config = config
        self._files = _find(directory, config)
        self._loaded: dict[str, Tensor] = {}
        self._cloned: set[str] = set()
        self.positions = 0
        if config.speaks_by_embedding and self._files:
            self.positions = self._embedding(self.names[0]).shape[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._files)) if self._files else (ONLY_VOICE,)

    def file(self, name: str) -> Path | None:
        """The voice's file, None for a cloned voice and for the only one of a model.

        Raises NameUnknown, which lists those there are.
        """
        if name in self._cloned:
            return None
        if not self._files and name == ONLY_VOICE:
            return None
        for known in (name, f"{name}.wav"):
            if known in self._files:
                return self._files[known]
        raise NameUnknown("voice", name, self.names)

    def admit(self, name: str) -> None:
        """From now on there is a voice of that name, which is no file."""
        self._cloned.add(name)

    def dismiss(self, name: str) -> None:
        self._cloned.discard(name)

    def check(self, voices: Sequence[str]) -> tuple[tuple[Part, ...], ...]:
        """The parsed voices of a stream, all of them known; the first one there is if none is named."""
        if len(voices) > SPEAKERS_MAX:
            raise SpecInvalid("voices", f"at most {SPEAKERS_MAX}, are {len(voices)}")
        mixes = tuple(parse_mix(v) for v in voices or self.names[:1])
        for mix in mixes:
            for part in mix:
                self.file(part.name)
        return mixes

    def embedding(self, mix: Sequence[Part]) -> Tensor:
        """The voice [T, V] that a mix is: the weighted mean of its parts."""
        return torch.stack([self._embedding(p.name) * p.share for p in mix]).sum(dim=0)

    def _embedding(self, name: str) -> Tensor:
        path = self.file(name)
        assert path is not None
        if name not in self._loaded:
            tensors = weights.read(path)
            spec = self._config.conditioner(TENSOR)
            width = spec.dim if spec else 0
            found = tensors.get(TENSOR)
            if found is None or found.dim() != 3 or found.shape[:2] != (1, width):
                shape = "missing" if found is None else list(found.shape)
                raise CheckpointInvalid(f"{path.name}: {TENSOR}", f"must have shape [1, {width}, T], is {shape}")
            if self.positions and found.shape[2] != self.positions:
                raise CheckpointInvalid(f"{path.name}: {TENSOR}", f"must be {self.positions} long as the others are")
            if not weights.finite(found):
                raise CheckpointInvalid(f"{path.name}: {TENSOR}", "holds values that are not finite")
            self._loaded[name] = found[0].float().t().contiguous()
        return self._loaded[name]


def _find(directory: Path, config: ModelConfig) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root in (directory, directory / "voices"):
        if not root.is_dir():
            continue
        for path in sorted(root.rglob("*") if root.name == "voices" else root.iterdir()):
            name = path.relative_to(root).as_posix()
            if config.speaks_by_embedding:
                if name.endswith(config.voice_suffix):
                    found[name.removesuffix(config.voice_suffix)] = path
            elif path.suffix.lower() in SOUNDS:
                found[name] = path
    if config.speaks_by_embedding and not found:
        raise CheckpointInvalid(str(directory), f"holds no voice; expected files named *{config.voice_suffix}")
    return found

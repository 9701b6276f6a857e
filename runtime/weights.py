"""Tensors on disk: reading them without a copy, checking them against what the model needs, writing them.

The only module that names safetensors. Loading is strict: a tensor that is missing, extra, misshapen, of an unfit type
or not finite is one line naming it. It does not know what the tensors mean; runtime/model/layout.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runtime.errors import CheckpointInvalid

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Shape = tuple[int, ...]


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, memory-mapped: pages are read when they are used. Raises CheckpointInvalid."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise CheckpointInvalid(str(path), "there is no such file") from None
    except (OSError, SafetensorError) as why:
        raise CheckpointInvalid(str(path), f"is not a readable safetensors file: {why}") from None


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file of tensors."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, dict(metadata or {}))


def check(tensors: Mapping[str, Tensor], expected: Mapping[str, Shape], where: str, *, values: bool = True) -> None:
    """Raises CheckpointInvalid unless `tensors` are exactly the expected ones, of a float type and finite.

    `values` False skips the last check, which reads every byte (about 1 s for 3.7 GB from memory).
    """
    for name in sorted(expected.keys() - tensors.keys()):
        raise CheckpointInvalid(f"{where}: {name}", f"is missing; expected shape {list(expected[name])}")
    for name in sorted(tensors.keys() - expected.keys()):
        raise CheckpointInvalid(f"{where}: {name}", "is not part of the model that config.json describes")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointInvalid(f"{where}: {name}", f"has shape {list(tensor.shape)}, expected {list(shape)}")
        if tensor.dtype not in FLOATS:
            raise CheckpointInvalid(f"{where}: {name}", f"has type {tensor.dtype}, expected a float type")
        if values and not finite(tensor):
            raise CheckpointInvalid(f"{where}: {name}", "holds values that are not finite")


def finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite. One pass: any such value makes both extremes unusable."""
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))

"""Tensors on disk: reading them without a copy, checking them against what the model needs, writing them.

The only module that names safetensors. Loading is strict: a tensor that is missing, extra, misshapen, of an unfit type
or not finite is one line naming it. It does not know what the tensors mean; runtime/model/layout.py does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.whole_file import beside

# Long enough to be read at the disk's speed, short enough that the second thread is never far behind the first.
AHEAD_BYTES, AHEAD_THREADS = 8 << 20, 2
SAMPLES = 32
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Shape = tuple[int, ...]


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, memory-mapped: nothing is copied. Raises CheckpointInvalid."""
    try:
        with ahead(path), safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise CheckpointInvalid(str(path), "there is no such file") from None
    except (OSError, SafetensorError) as why:
        raise CheckpointInvalid(str(path), f"is not a readable safetensors file: {why}") from None


@contextmanager
def ahead(path: Path) -> Iterator[None]:
    """Have the kernel read a file that is not in memory while the block maps it.

    One reader of a mapping waits for each stretch that it faults in; two that ask for the next ones keep the disk busy
    (1 GB cold: 0.66 s, 0.89 s without). A file in memory costs a look at a few of its pages.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        starts = iter(() if _in_memory(descriptor, size) else range(0, size, AHEAD_BYTES))

        def ask() -> None:
            with suppress(OSError):  # Advice only: what cannot be read ahead is read, or refused, by who maps it.
                for start in starts:  # Shared: whoever is free takes the next stretch.
                    os.posix_fadvise(descriptor, start, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

        readers = [Thread(target=ask, name="read-ahead", daemon=True) for _ in range(AHEAD_THREADS)]
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            for reader in readers:
                reader.join()
    finally:
        os.close(descriptor)


def _in_memory(descriptor: int, size: int) -> bool:
    """Whether pages all over the file can be had without the disk: a guess that costs microseconds."""
    page = bytearray(1)
    try:
        return all(os.preadv(descriptor, [page], size * i // SAMPLES, os.RWF_NOWAIT) for i in range(SAMPLES))
    except OSError:  # It would have to wait; or a file system that cannot say.
        return False


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file of tensors, whole or not at all: what stood under the name stands there until all is on disk."""
    partial = beside(path)
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, dict(metadata or {}))
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The same file in memory, for who writes it by other means."""
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(metadata))


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

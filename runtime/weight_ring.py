"""Weights straight to a device: parallel reads into a small ring of pinned buffers, each copied on while others fill.

For a device a mapping is the slow way: every page is faulted in by one thread and then staged by the driver. Here the
pinned memory is bounded (`THREADS` x 2 buffers: pinning the whole model would take longer than reading it) and all data
lands in one allocation, of which the tensors are views. On the CPU use weights.py: there a mapping copies nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid

# Large enough for a disk or a page cache to be read at its speed, small enough to pin in a moment (64 MiB in all).
BUFFER_BYTES = 8 << 20
THREADS = 4
# The format's own bound on the header; a larger one is an error page or an attack.
HEADER_BYTES_MAX = 100_000_000
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in the data part of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def read_to(
    path: Path, device: torch.device, *, buffer_bytes: int = BUFFER_BYTES, threads: int = THREADS
) -> dict[str, Tensor]:
    """All tensors of a file on the device. Raises CheckpointInvalid for a file that is not what its header says."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as why:
        raise CheckpointInvalid(str(path), f"cannot be opened: {why.strerror}") from None
    try:
        base, places = _header(path, descriptor)
        length = os.fstat(descriptor).st_size - base
        target = torch.empty(length, dtype=torch.uint8, device=device)
        _fill(path, descriptor, base, target, buffer_bytes, threads)
    finally:
        os.close(descriptor)
    return {name: _view(target, place) for name, place in places.items()}


def _header(path: Path, descriptor: int) -> tuple[int, dict[str, Place]]:
    """Offset of the data and the place of every tensor, each checked to lie in the file and to fit its shape."""
    file_bytes = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if file_bytes < 8 or not 2 <= length <= min(HEADER_BYTES_MAX, file_bytes - 8):
        raise CheckpointInvalid(str(path), "is not a safetensors file: its header's length is impossible")
    try:
        raw = json.loads(os.pread(descriptor, length, 8))
        data_bytes = file_bytes - 8 - length
        return 8 + length, {n: _place(p, data_bytes) for n, p in raw.items() if n != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise CheckpointInvalid(str(path), f"has a broken safetensors header: {why}") from None


def _place(raw: dict[str, object], data_bytes: int) -> Place:
    dtype, shape = DTYPES[str(raw["dtype"])], raw["shape"]
    offsets = raw["data_offsets"]
    if not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise ValueError("a tensor without shape or offsets")
    start, stop = (int(o) for o in offsets)
    sizes = tuple(int(n) for n in shape)
    wanted = math.prod(sizes) * dtype.itemsize
    if min(sizes, default=1) < 0 or not 0 <= start <= stop <= data_bytes or stop - start != wanted:
        raise ValueError(f"a tensor of {wanted} bytes at {start} .. {stop} of {data_bytes}")
    return Place(dtype, sizes, start, stop)


def _view(target: Tensor, place: Place) -> Tensor:
    part = target[place.start : place.stop]
    if place.start % place.dtype.itemsize:
        part = part.clone()  # a view must begin on a multiple of its type; published files do
    return part.view(place.dtype).view(place.shape)


def _fill(path: Path, descriptor: int, base: int, target: Tensor, buffer_bytes: int, threads: int) -> None:
    # One counter shared by all threads: whoever is free takes the next piece (`next` on it is atomic in CPython).
    starts = iter(range(0, len(target), buffer_bytes))
    workers = [_Worker(path, descriptor, base, target, buffer_bytes) for _ in range(threads)]
    with ThreadPoolExecutor(threads, thread_name_prefix="weights") as pool:
        for done in [pool.submit(worker.run, starts) for worker in workers]:
            done.result()
    if target.is_cuda:
        torch.cuda.synchronize(target.device)


class _Worker:
    """One thread's two buffers: it reads into one while the other is still being copied to the device."""

    def __init__(self, path: Path, descriptor: int, base: int, target: Tensor, buffer_bytes: int) -> None:
        self._path, self._descriptor, self._base, self._target = path, descriptor, base, target
        cuda = target.is_cuda
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._stream = torch.cuda.Stream(target.device) if cuda else None  # type: ignore[no-untyped-call]
        self._copied = [torch.cuda.Event() for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]

    def run(self, starts: Iterator[int]) -> None:
        for turn, start in zip(itertools.cycle((0, 1)), starts, strict=False):
            if self._copied:
                self._copied[turn].synchronize()
            count = min(len(self._buffers[turn]), len(self._target) - start)
            self._read(self._buffers[turn][:count], self._base + start)
            self._copy(turn, start, count)

    def _read(self, buffer: Tensor, offset: int) -> None:
        view, done = memoryview(buffer.numpy()), 0  # type: ignore[arg-type]
        while done < len(view):
            got = os.preadv(self._descriptor, [view[done:]], offset + done)
            if not got:
                raise CheckpointInvalid(str(self._path), "became shorter while it was read")
            done += got

    def _copy(self, turn: int, start: int, count: int) -> None:
        part = self._target[start : start + count]
        if self._stream is None:
            part.copy_(self._buffers[turn][:count])
            return
        with torch.cuda.stream(self._stream):
            part.copy_(self._buffers[turn][:count], non_blocking=True)
            self._copied[turn].record(self._stream)

"""Weights through the ring are the file's, whatever the sizes; a file that lies is refused before it is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runtime import weights
from runtime.errors import CheckpointInvalid
from runtime.weight_ring import read_to

CPU = torch.device("cpu")


def written(path: Path) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    tensors = {
        "a.weight": torch.randn(37, 129, generator=g),
        "b.weight": torch.randn(1, 1, 2048, generator=g).bfloat16(),
        "c.bytes": torch.arange(7, dtype=torch.uint8),
        "d.scalar": torch.tensor(3.5),
        "e.empty": torch.zeros(0, 4),
        "f.half": torch.randn(3, generator=g).half(),
    }
    weights.write(path, tensors, {"sig": "x"})
    return tensors


@pytest.mark.parametrize(("buffer_bytes", "threads"), [(1000, 3), (7, 1), (1 << 20, 4)])
def test_every_tensor_arrives_whole(tmp_path: Path, buffer_bytes: int, threads: int) -> None:
    expected = written(tmp_path / "m.safetensors")
    found = read_to(tmp_path / "m.safetensors", CPU, buffer_bytes=buffer_bytes, threads=threads)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_every_tensor_arrives_on_the_device(tmp_path: Path) -> None:
    expected = written(tmp_path / "m.safetensors")
    found = read_to(tmp_path / "m.safetensors", torch.device("cuda"), buffer_bytes=1000, threads=3)
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu(), tensor), name


def header(entries: object, data: bytes = b"\0" * 8) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


LIES = {
    "empty": b"",
    "an error page": b"<html><body>503 Service Unavailable</body></html>",
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "no JSON": header(b"{nope}"),
    "a list": header([1]),
    "past the end": header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}),
    "not its shape": header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
    "backwards": header({"a": {"dtype": "F32", "shape": [0], "data_offsets": [8, 0]}}),
    "negative": header({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}),
    "unknown type": header({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}),
    "no offsets": header({"a": {"dtype": "F32", "shape": [2]}}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused_and_named(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(LIES[lie])
    with pytest.raises(CheckpointInvalid, match=r"m\.safetensors"):
        read_to(path, CPU)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match=r"m\.safetensors: cannot be opened: No such file"):
        read_to(tmp_path / "m.safetensors", CPU)

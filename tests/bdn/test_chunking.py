"""Cuts add up, stay within bounds, and follow tensors wherever they move."""

from __future__ import annotations

import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from bdn.chunking import (
    CHUNK_BYTES,
    Small,
    fixed_cuts,
    longest_chunk,
    packs,
    safetensors_boundaries,
    safetensors_header_bytes,
    tensor_cuts,
)
from bdn.manifest import CHUNK_BYTES_MAX


@given(st.integers(0, 200 << 20))
def test_fixed_cuts_add_up(size: int) -> None:
    cuts = fixed_cuts(size)
    assert sum(cuts) == size and all(0 < c <= CHUNK_BYTES for c in cuts)


@given(st.lists(st.integers(1, 60 << 20), max_size=30))
def test_tensor_cuts_add_up_within_bounds(tensors: list[int]) -> None:
    boundaries, at = [], 0
    for size in tensors:
        at += size
        boundaries.append(at)
    cuts = tensor_cuts(at, boundaries)
    assert sum(cuts) == at and all(0 < c <= min(longest_chunk(), CHUNK_BYTES_MAX) for c in cuts)


@given(st.lists(st.integers(-5, 300 << 20), max_size=30), st.integers(0, 100 << 20))
def test_any_boundaries_give_valid_cuts(boundaries: list[int], size: int) -> None:
    cuts = tensor_cuts(size, boundaries)
    assert sum(cuts) == size and all(0 < c <= longest_chunk() for c in cuts)


@given(
    st.lists(st.integers(1, 300 << 20), max_size=20), st.integers(1, 64), st.integers(0, 200 << 20)
)  # fmt: skip
def test_whatever_length_is_asked_for_no_chunk_is_longer_than_a_reader_takes(
    tensors: list[int], mib: int, size: int
) -> None:
    boundaries, at = [], 0
    for tensor in tensors:
        at += tensor
        boundaries.append(at)
    longest = longest_chunk(mib << 20)
    assert longest <= CHUNK_BYTES_MAX
    for cuts, total in ((tensor_cuts(at, boundaries, mib << 20), at), (fixed_cuts(size, mib << 20), size)):
        assert sum(cuts) == total and all(0 < c <= longest for c in cuts)


@given(st.integers(CHUNK_BYTES, 50 << 20), st.integers(0, 3 << 20), st.integers(0, 30 << 20))
def test_a_large_tensor_is_cut_alike_wherever_it_lies(tensor: int, before: int, after: int) -> None:
    alone = tensor_cuts(tensor, [])
    cuts, at, found = tensor_cuts(before + tensor + after, [before, before + tensor]), 0, []
    for cut in cuts:
        if before <= at < before + tensor:
            found.append(cut)
        at += cut
    assert tuple(found) == alone


def test_a_safetensors_header_gives_its_tensors_starts_and_a_lying_one_gives_nothing() -> None:
    entries = {"a": {"data_offsets": [0, 10]}, "b": {"data_offsets": [10, 30]}, "__metadata__": {"x": "y"}}
    text = json.dumps(entries).encode()
    header = struct.pack("<Q", len(text)) + text
    assert safetensors_header_bytes(header[:8]) == len(header)
    assert safetensors_boundaries(header, len(header) + 30) == (len(header), len(header) + 10)
    assert safetensors_header_bytes(b"\xff" * 8) is None
    for lie in (b"[]", b"{", b'{"a": 5}', b'{"a": {"data_offsets": ["x"]}}', b'{"a": {}}'):
        assert safetensors_boundaries(struct.pack("<Q", len(lie)) + lie, 1000) == ()


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 1 << 20), max_size=60))
def test_packs_hold_every_file_once_within_bounds_whatever_the_order(files: dict[str, int]) -> None:
    small = [Small(p, s) for p, s in files.items()]
    groups = packs(small)
    assert groups == packs(reversed(small))
    assert sorted(f.path for g in groups for f in g) == sorted(p for p, s in files.items() if s)
    assert all(sum(f.size for f in g) <= CHUNK_BYTES for g in groups)

"""Which rows of a large memory a step works on, and how attention reads them where they lie.

A lane's keys and values are far larger than all else it carries. A step over scattered lanes copies the rest and leaves
them: it writes by index, and reads one run of neighbouring rows after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step, in order: its row k is row `index[k]` of the memory.

    runs: (first, last + 1, where the first lies) of each stretch of the step's rows that are neighbours there.
    """

    index: Tensor  # [R] int64
    runs: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(rows: Sequence[int], device: torch.device) -> Rows:
        """These rows, in any order."""
        starts = [k for k in range(len(rows)) if k == 0 or rows[k] != rows[k - 1] + 1]
        stops = [*starts[1:], len(rows)]
        runs = tuple((start, stop, rows[start]) for start, stop in zip(starts, stops, strict=True))
        return Rows(torch.tensor(rows, dtype=torch.int64, device=device), runs)

    def each_way(self, ways: int) -> Rows:
        """The rows of these lanes, `ways` of each side by side."""
        if ways == 1:
            return self
        return Rows.of([lane * ways + way for lane in self.index.tolist() for way in range(ways)], self.index.device)

    def span(self, start: int, stop: int) -> Rows:
        """Rows start .. stop - 1 of these, which are one run."""
        ((first, _, at),) = self.runs
        return Rows(self.index[start:stop], ((0, stop - start, at + start - first),))


def attend_rows(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: Rows) -> Tensor:
    """Attention of query [R, H, T, E] over keys and values [all R, H, C, E] where they lie: [R, H, T, E].

    mask: [R, 1, T, C], 0 or minus infinity.
    """
    parts = [
        F.scaled_dot_product_attention(
            query[start:stop], keys[at : at + stop - start], values[at : at + stop - start], mask[start:stop]
        )
        for start, stop, at in rows.runs
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)

"""How the rows of a step attend to their voices: each to a copy of its own, or all who hear one voice together.

It owns who hears what; the voices are made by conditioning.py and temporal.py, and the engine says who hears which.
Shapes: R rows, H heads, E head width, D = H E, S positions of a voice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from runtime.model.layers import attend
from runtime.model.matrices import ROWS_MIN, padded
from runtime.model.rows import Rows

# A row's bits among so many are compared with those among the most, the last of them; see `products_are_steady`.
TRIED_ROWS = (*range(1, 41), 48, 63, 64, 65, 100, 200)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Voice:
    """The keys and values that are attended to, of each layer, in the form that `Hearing.voice` gave them."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class Hearing(Protocol):
    """What the rows of some lanes hear. `span`, `room` and `gathered` are as those of the lanes' memory in lanes.py."""

    def voice(self, layers: Sequence[Tensor]) -> Voice:
        """A voice as it is held here, from keys and values [2, H, S, E] of each layer."""

    def hear(self, row: int, voice: Voice | None) -> None:
        """From now on the row hears this voice; None: it is in no step until it hears one."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """What each row hears, [R, D] for queries [R, H, E]. Of the queries there may be more, which mean nothing.

        Of the rows that come back too, but never more than there are queries.
        """

    def span(self, start: int, stop: int) -> Hearing:
        """Of rows start .. stop - 1 alone, the same as here."""

    def room(self, rows: int) -> Hearing:
        """For a gathering of so many rows."""

    def gathered(self, rows: Rows, source: Hearing) -> Hearing:
        """What some rows of `source` hear, in that order; copied, if at all, into this one's memory."""


class OwnVoices:
    """A copy of its voice for each row, at an address that never changes: for compiled and captured steps."""

    def __init__(self, memory: Sequence[Tensor]) -> None:
        """memory: per layer [2, R, H, S, E]."""
        self._memory = list(memory)

    def voice(self, layers: Sequence[Tensor]) -> Voice:
        return Voice([both[0] for both in layers], [both[1] for both in layers])

    def hear(self, row: int, voice: Voice | None) -> None:
        if voice is not None:
            for memory, keys, values in zip(self._memory, voice.keys, voice.values, strict=True):
                memory[0, row].copy_(keys)
                memory[1, row].copy_(values)

    def attend(self, layer: int, query: Tensor) -> Tensor:
        keys, values = self._memory[layer]
        return attend(query[: len(keys)], keys, values, None)

    def span(self, start: int, stop: int) -> OwnVoices:
        return OwnVoices([memory[:, start:stop] for memory in self._memory])

    def room(self, rows: int) -> OwnVoices:
        return OwnVoices([m.new_empty((2, rows, *m.shape[2:])) for m in self._memory])

    def gathered(self, rows: Rows, source: Hearing) -> OwnVoices:
        assert isinstance(source, OwnVoices)
        for memory, held in zip(self._memory, source._memory, strict=True):
            torch.index_select(held, 1, rows.index, out=memory)
        return self


class _Groups(Protocol):
    """The rows of a step, grouped. It names no voice: what is kept from step to step must not keep one of the past."""

    def attend(self, layer: int, query: Tensor, heard: Sequence[Voice]) -> Tensor:
        """As `Hearing.attend`; heard: what each group hears."""


class _Attends(Protocol):
    """How groups of rows attend to a voice each."""

    def voice(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The form in which a layer's keys and values [H, S, E] are held."""

    def groups(self, members: Sequence[list[int]]) -> _Groups:
        """members: the rows of each group; each row of the step is in one of them."""


class _Products:
    """Two products a group, for float32: the more rows, the less each costs. It owns the memory of every step."""

    def __init__(self, rows: int, heads: int, positions: int, width: int) -> None:
        self._heads = heads
        places = heads * rows * ROWS_MIN  # each row may be a group
        self._memory = torch.zeros(places, width), torch.zeros(places, positions), torch.zeros(places, width)

    def voice(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        # Where keys lie as values do, MKL has roundings of its own for up to five rows.
        return (keys * keys.shape[-1] ** -0.5).transpose(1, 2).contiguous(), values.contiguous()

    def groups(self, members: Sequence[list[int]]) -> _Groups:
        """A group has its queries together, head after head; one of too few rows has some of them again."""
        if len(members) == 1:
            return _OneGroup()
        heads = self._heads
        filled = [rows * -(-ROWS_MIN // len(rows)) if len(rows) < ROWS_MIN else rows for rows in members]
        counts = np.array([len(rows) for rows in filled])
        row, count = np.concatenate(filled), np.repeat(counts, counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        every = np.arange(heads)
        place = (before * heads + np.arange(len(row)) - before)[:, None] + count[:, None] * every
        order, back = np.empty(place.size, np.int64), np.empty((row.max() + 1, heads), np.int64)
        order[place] = row[:, None] * heads + every
        back[row] = place
        query, scores, mixed = (whole[: place.size] for whole in self._memory)
        parts = (torch.split(whole, (counts * heads).tolist()) for whole in (query, scores, mixed))
        views = [[part.view(heads, len(part) // heads, -1) for part in group] for group in zip(*parts, strict=True)]
        return _ProductGroups(torch.from_numpy(order), torch.from_numpy(back.ravel()), query, scores, mixed, views)


class _OneGroup:
    """All rows hear one voice: their queries are taken as they lie."""

    def attend(self, layer: int, query: Tensor, heard: Sequence[Voice]) -> Tensor:
        (voice,) = heard
        scores = torch.bmm(padded(query, ROWS_MIN).transpose(0, 1), voice.keys[layer])
        torch.softmax(scores, -1, out=scores)
        return torch.bmm(scores, voice.values[layer]).transpose(0, 1).flatten(1)[: len(query)]


@dataclass(frozen=True, slots=True)
class _ProductGroups:
    order: Tensor  # [H P]: which of the queries [R H, E] come one after the other
    back: Tensor  # [R H]: where each of them is then
    query: Tensor  # [H P, E]
    scores: Tensor  # [H P, S]
    mixed: Tensor  # [H P, E]
    views: Sequence[Sequence[Tensor]]  # each group's query [H, n, E], scores [H, n, S] and mixed [H, n, E]

    def attend(self, layer: int, query: Tensor, heard: Sequence[Voice]) -> Tensor:
        torch.index_select(query.view(-1, query.shape[-1]), 0, self.order, out=self.query)
        for voice, (asked, scores, _) in zip(heard, self.views, strict=True):
            torch.bmm(asked, voice.keys[layer], out=scores)
        torch.softmax(self.scores, -1, out=self.scores)
        for voice, (_, scores, mixed) in zip(heard, self.views, strict=True):
            torch.bmm(scores, voice.values[layer], out=mixed)
        return self.mixed.index_select(0, self.back).view(-1, query[0].numel())


class _RowByRow:
    """The library's attention, which computes each row by itself: any kind of numbers, and steady everywhere."""

    def voice(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys.contiguous(), values.contiguous()

    def groups(self, members: Sequence[list[int]]) -> _RowGroups:
        return _RowGroups([torch.tensor(rows) for rows in members])


@dataclass(frozen=True, slots=True)
class _RowGroups:
    rows: Sequence[Tensor]  # of each group

    def attend(self, layer: int, query: Tensor, heard: Sequence[Voice]) -> Tensor:
        if len(heard) == 1:
            return self._together(layer, query[: len(self.rows[0])], heard[0])
        mixed = query.new_empty(query.shape).flatten(1)
        for voice, rows in zip(heard, self.rows, strict=True):
            mixed.index_copy_(0, rows, self._together(layer, query.index_select(0, rows), voice))
        return mixed

    def _together(self, layer: int, query: Tensor, voice: Voice) -> Tensor:
        every = (len(query), -1, -1, -1)
        return attend(query, voice.keys[layer].expand(every), voice.values[layer].expand(every), None)


@dataclass(slots=True)
class _Book:
    """Who hears what: one for all views of the lanes."""

    attends: _Attends
    heard: dict[int, Voice]  # by each row that is in use
    changes: int = 0


class SharedVoices:
    """One voice for all rows that hear it, grouped anew after each change: for eager steps on a processor."""

    def __init__(self, book: _Book, rows: Sequence[int]) -> None:
        """rows: which of the book's they are."""
        self._book, self._rows = book, rows
        self._changes = -1  # that the groups know of
        self._groups: _Groups
        self._leaders: list[int]  # a row of each group: what it hears is what all of them hear

    def voice(self, layers: Sequence[Tensor]) -> Voice:
        held = [self._book.attends.voice(*both) for both in layers]
        return Voice([keys for keys, _ in held], [values for _, values in held])

    def hear(self, row: int, voice: Voice | None) -> None:
        heard = self._book.heard
        if voice is None:
            heard.pop(self._rows[row], None)
        else:
            heard[self._rows[row]] = voice
        self._book.changes += 1

    def attend(self, layer: int, query: Tensor) -> Tensor:
        book = self._book
        if self._changes != book.changes:
            self._group()
        return self._groups.attend(layer, query, [book.heard[row] for row in self._leaders])

    def span(self, start: int, stop: int) -> SharedVoices:
        return SharedVoices(self._book, self._rows[start:stop])

    def room(self, rows: int) -> SharedVoices:
        return SharedVoices(self._book, self._rows[:rows])

    def gathered(self, rows: Rows, source: Hearing) -> SharedVoices:
        assert isinstance(source, SharedVoices)
        there = [source._rows[row] for row in rows.index.tolist()]
        if there != self._rows:
            self._rows, self._changes = there, -1
        return self

    def _group(self) -> None:
        members: dict[Voice, list[int]] = {}
        for place, row in enumerate(self._rows):
            members.setdefault(self._book.heard[row], []).append(place)
        self._leaders = [self._rows[places[0]] for places in members.values()]
        self._groups, self._changes = self._book.attends.groups(list(members.values())), self._book.changes


def shared_voices(rows: int, *, heads: int, positions: int, width: int, dtype: torch.dtype) -> SharedVoices:
    """For so many rows, by products where those keep a row's bits in any company."""
    attends: _Attends = _RowByRow()
    if dtype == torch.float32 and products_are_steady(heads, positions, width):
        attends = _Products(rows, heads, positions, width)
    return SharedVoices(_Book(attends, {}), range(rows))


@cache
def products_are_steady(heads: int, positions: int, width: int) -> bool:
    """Whether this machine's library gives a row the same bits in every number of rows: seen by trying."""
    draws, most = torch.Generator().manual_seed(0), TRIED_ROWS[-1]
    products = _Products(most, heads, positions, width)
    keys, values = torch.randn(2, heads, positions, width, generator=draws)
    voice = Voice(*([each] for each in products.voice(keys, values)))
    query = torch.randn(most, heads, width, generator=draws)

    def heard(rows: Tensor, groups: int = 1) -> Tensor:
        members = list(range(len(rows)))
        parted = products.groups([members[part::groups] for part in range(groups)])
        return parted.attend(0, query[rows], [voice] * groups)

    whole = heard(torch.arange(most))
    orders = [torch.randperm(most, generator=draws)[:count] for count in TRIED_ROWS]
    return all(
        torch.equal(heard(rows, groups), whole[rows])
        for rows in orders
        for groups in {1, min(2, len(rows))}
    )

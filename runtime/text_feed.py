"""The text front end as the engine's TextFeed: items to entries. It owns no reading rules and no costs of words."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.entries import EntryMaker
from runtime.port import Entry
from runtime.text import Item, Pause, TextFrontEnd, Turn, Word


class ProseFeed:
    """A TextFeed for prose: numbers, dates and the rest read out, markup obeyed, what cannot be said left out.

    `<flush>` only ends the word here: who serves the stream sees the tag first and flushes the engine too.
    """

    def __init__(self, front: TextFrontEnd, maker: EntryMaker) -> None:
        self._front, self._maker = front, maker

    def push(self, piece: str) -> tuple[Entry, ...]:
        return self._entries(self._front.push(piece))

    def flush(self) -> tuple[Entry, ...]:
        return self._entries(self._front.flush())

    def end(self) -> tuple[Entry, ...]:
        return self.flush()

    def _entries(self, items: Iterable[Item]) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for item in items:
            match item:
                case Word(spoken, written):
                    entries += self._maker.word(spoken, written)
                case Pause(seconds):
                    entries += self._maker.pause(seconds)
                case Turn(speaker):
                    self._maker.turn(speaker - 1)
        return tuple(entries)

"""The text front end: text in pieces of any size to words a voice can say, pauses, flushes and speaker turns.

    text -> Scanner (text_scan) -> pronunciations and rules (text_rules*) -> items

However the text is cut into pieces the items are the same, and memory is bounded: at most one unfinished word and the
few words that a rule is still looking at are held. Any Unicode is taken; text with nothing sayable in it gives nothing.
No torch, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from runtime.port import SPEAKERS_MAX, Pronunciation
from runtime.text_lang import Language
from runtime.text_rules import rules_of
from runtime.text_scan import Scanner, Tag, Token, token_of
from runtime.text_window import NeedMore, Reading, Rule, Window

# What Gradium's and moshi's servers accept for one break; longer ones are shortened.
BREAK_S_MAX = 10.0
# Words in a pronunciation's original; it bounds how far a word waits.
PRONUNCIATION_WORDS_MAX = 6


@dataclass(frozen=True, slots=True)
class Word:
    """One word to be said. `written` is what stood in the text; of several words for one written, only the first's."""

    spoken: str
    written: str


@dataclass(frozen=True, slots=True)
class Pause:
    """`<break time="1.5s"/>`"""

    seconds: float


@dataclass(frozen=True, slots=True)
class Flush:
    """`<flush>`: say what you have now."""


@dataclass(frozen=True, slots=True)
class Turn:
    """`<speaker 2>`: the words from here on are this speaker's, from 1."""

    speaker: int


Item = Word | Pause | Flush | Turn


class TextFrontEnd:
    """Text of one stream to items. `rules` are names from text_rules, or "en", "fr" for all of a language's.

    Raises NameUnknown for a rule that does not exist.
    """

    def __init__(self, rules: Sequence[str] = ("en",), pronunciations: Iterable[Pronunciation] = ()) -> None:
        self._rules = rules_of(tuple(rules))
        self._dictionary = _dictionary(tuple(pronunciations))
        self._scanner = Scanner()
        self._waiting: deque[Token] = deque()
        self._before = ""

    def push(self, piece: str) -> list[Item]:
        """The items that became certain by this piece."""
        return self._taken(self._scanner.push(piece))

    def flush(self) -> list[Item]:
        """What is held back, as if the text ended here; the next piece begins a new word."""
        items = self._taken(self._scanner.flush())
        self._read(items, final=True)
        return items

    def _taken(self, found: Iterable[Token | Tag]) -> list[Item]:
        items: list[Item] = []
        for each in found:
            if isinstance(each, Token):
                self._waiting.append(each)
                self._read(items, final=False)
            elif (item := item_of_tag(each)) is not None:
                self._read(items, final=True)
                items.append(item)
        return items

    def _read(self, items: list[Item], *, final: bool) -> None:
        """Adds the items of the words that wait, as far as they are certain."""
        while self._waiting:
            token = self._waiting[0]
            rules = self._rules.of(token)
            entries = self._dictionary.get(token.core.casefold(), ()) if self._dictionary else ()
            if token.plain and not rules and not entries:  # most words: what follows would come to the same
                self._waiting.popleft()
                self._before = token.core.lower()
                items.append(Word(token.core + token.mark, token.written))
                continue
            window = Window(self._waiting, final=final, before=self._before)
            try:
                reading = self._reading(window, entries, rules)
            except NeedMore:
                return
            items += self._words(reading)

    def _reading(self, window: Window, entries: Iterable[_Entry], rules: Iterable[tuple[Rule, Language]]) -> Reading:
        if not window.first.core:
            return Reading(1, "")  # a mark by itself
        for entry in entries:
            if reading := entry.match(window):
                return reading
        for rule, language in rules:
            if reading := rule(window, language):
                return reading
        return Reading(1, self._waiting[0].core)

    def _words(self, reading: Reading) -> list[Item]:
        tokens = [self._waiting.popleft() for _ in range(reading.taken)]
        self._before = tokens[-1].core.lower()
        mark = tokens[-1].mark if reading.mark is None else reading.mark
        spoken = [word for word in reading.spoken.split() if any(c.isalnum() for c in word)]
        if not spoken:
            return []
        spoken[-1] = spoken[-1].rstrip(",") + mark
        written = [" ".join(t.written for t in tokens), *[""] * (len(spoken) - 1)]
        return [Word(s, w) for s, w in zip(spoken, written, strict=True)]


class _Entry:
    """A pronunciation made ready for comparing."""

    def __init__(self, p: Pronunciation) -> None:
        tokens = [token_of(word) for word in p.original.split()]
        self._fold = not p.case_sensitive
        self._cores = [self._folded(t.core) for t in tokens if t is not None][:PRONUNCIATION_WORDS_MAX]
        self._rewrite = p.rewrite

    @property
    def first(self) -> str:
        """The word that it begins with, whatever its case; empty where it has none."""
        return self._cores[0].casefold() if self._cores else ""

    def match(self, window: Window) -> Reading | None:
        """The rewrite if the words from here are the original, whatever marks stand around them."""
        for i, core in enumerate(self._cores):
            token = window.at(i)
            if token is None or self._folded(token.core) != core:
                return None
        return Reading(len(self._cores), self._rewrite)

    def _folded(self, text: str) -> str:
        return text.casefold() if self._fold else text


# A dictionary has up to 1,000 entries, is the same for all of a caller's streams, and takes 3 ms to make ready.
@lru_cache(maxsize=16)
def _dictionary(pronunciations: tuple[Pronunciation, ...]) -> Mapping[str, Sequence[_Entry]]:
    """The entries by the word that they begin with, in their order."""
    table: dict[str, list[_Entry]] = {}
    for entry in map(_Entry, pronunciations):
        if entry.first:
            table.setdefault(entry.first, []).append(entry)
    return table


def item_of_tag(tag: Tag) -> Item | None:
    """What a tag asks for; a tag we do not know (HTML) is silently dropped."""
    if tag.name == "flush":
        return Flush()
    if tag.name == "break":
        return Pause(seconds_of(tag.attributes.get("time", "1s")))
    if tag.name == "speaker":
        number = tag.attributes.get("id") or tag.attributes.get("")
        if number and number.isascii() and number.isdecimal() and 1 <= int(number) <= SPEAKERS_MAX:
            return Turn(int(number))
    return None


def seconds_of(text: str) -> float:
    """Seconds of "1.5s", "500ms" or "2", within 0 .. BREAK_S_MAX; what is none of these is no pause."""
    number, scale = text.strip().lower(), 1.0
    if number.endswith("ms"):
        number, scale = number[:-2], 0.001
    else:
        number = number.removesuffix("s")
    try:
        seconds = float(number.replace(",", ".")) * scale
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), BREAK_S_MAX) if seconds == seconds else 0.0


def items_of(text: str, rules: Sequence[str] = ("en",), pronunciations: Iterable[Pronunciation] = ()) -> list[Item]:
    """The items of a whole text."""
    front = TextFrontEnd(rules, pronunciations)
    return [*front.push(text), *front.flush()]


def spoken_text(text: str, rules: Sequence[str] = ("en",), pronunciations: Iterable[Pronunciation] = ()) -> str:
    """The words of a whole text in one line, without pauses and turns."""
    return " ".join(item.spoken for item in items_of(text, rules, pronunciations) if isinstance(item, Word))

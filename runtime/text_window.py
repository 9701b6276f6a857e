"""How rules look at text: a window that asks for more only when a rule really looks further.

Asking for a token that has not come yet raises NeedMore, and the caller tries again when there is more; so a rule
written as if the whole text were there gives the same words for any split, and a word waits only for as many words as
some rule looks at (`AHEAD_MAX` at most).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.text_lang import Language
from runtime.text_scan import Token

# The longest group there is: an international phone number in pairs, and the word after it.
AHEAD_MAX = 8


class NeedMore(Exception):
    """A rule asked for a token that has not come yet."""


class Window:
    """The tokens from the one being read on; `before` is the core of the one read last, in lower case."""

    def __init__(self, tokens: Sequence[Token], *, final: bool, before: str = "") -> None:
        self._tokens, self._final, self.before = tokens, final, before

    @property
    def first(self) -> Token:
        """The token being read; the caller asks rules only when there is one."""
        return self._tokens[0]

    def at(self, ahead: int) -> Token | None:
        """The token `ahead` places on, None past the end of the text. Raises NeedMore where it is still to come."""
        if ahead > AHEAD_MAX:
            return None
        if ahead < len(self._tokens):
            return self._tokens[ahead]
        if self._final:
            return None
        raise NeedMore

    def open(self, ahead: int) -> Token | None:
        """The token `ahead` places on if nothing closes between the first and it."""
        for i in range(ahead):
            token = self.at(i)
            if token is None or not token.open:
                return None
        return self.at(ahead)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule made of the first `taken` tokens. `mark` None: the mark of the last of them."""

    taken: int
    spoken: str
    mark: str | None = None


Rule = Callable[[Window, Language], Reading | None]

"""Pronunciation rules over text that arrives in pieces: whole words are replaced before the text front end sees them.

Pure. It holds back only what could still grow into a rule's original, and gives the same text however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# A rule of more words than this would hold back too much of a stream's text.
RULE_CHARS_MAX = 200
RULES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Rule:
    original: str
    rewrite: str
    case_sensitive: bool = False


class Rewriter:
    """One per stream. Longer originals win; a rewritten word is not looked at again."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        longest_first = sorted(rules, key=lambda r: -len(r.original))
        self._exact = {_key(r.original): r.rewrite for r in longest_first if r.case_sensitive}
        self._folded = {_key(r.original).casefold(): r.rewrite for r in longest_first if not r.case_sensitive}
        self._words_max = max((len(r.original.split()) for r in rules), default=1)
        any_original = "|".join(r"\s+".join(map(re.escape, r.original.split())) for r in longest_first)
        self._pattern = re.compile(rf"(?<!\w)(?:{any_original})(?!\w)", re.IGNORECASE)
        self._held = ""

    def push(self, piece: str) -> str:
        """The text that no later piece can change any more."""
        text = self._held + piece
        # The last words, as many as the longest rule has, might still be the start of an original.
        spaces = [m.start() for m in re.finditer(r"\s+(?=\S)|\s+$", text)]
        cut = spaces[-self._words_max] if len(spaces) >= self._words_max else 0
        cut = self._outside_match(text, cut)
        self._held = text[cut:]
        return self._rewritten(text[:cut])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return self._rewritten(held)

    def _outside_match(self, text: str, cut: int) -> int:
        for match in self._pattern.finditer(text):
            if match.start() < cut < match.end():
                return match.start()
        return cut

    def _rewritten(self, text: str) -> str:
        return self._pattern.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        found = _key(match[0])
        return self._exact.get(found, self._folded.get(found.casefold(), match[0]))


def _key(text: str) -> str:
    return " ".join(text.split())

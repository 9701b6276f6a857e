"""From characters to written words: cleaning, markup, markdown. It owns no language and reads nothing out.

`Scanner` takes text in pieces of any size and gives the same tokens whatever the pieces are, because a token is given
only once the characters after it can no longer change it. It holds at most one token or one unfinished tag.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass

# A written word longer than this is cut: memory stays bounded however long a text without spaces is.
TOKEN_CHARS_MAX = 200
# A "<" followed by a letter may be a tag until this many characters have come without a ">".
TAG_CHARS_MAX = 120


@dataclass(frozen=True, slots=True)
class Token:
    """One written word. `core` is what rules read; `lead` and `trail` are quotes, brackets and marks around it."""

    written: str
    lead: str
    core: str
    trail: str
    plain: bool = False  # the core is letters alone, or such words joined by - and ': most rules need more than that

    @property
    def mark(self) -> str:
        """The one punctuation mark that the voice should hear after the word."""
        return mark_of(self.trail)

    @property
    def open(self) -> bool:
        """Whether the next token may belong to the same group: nothing closes after this one."""
        return not self.trail


@dataclass(frozen=True, slots=True)
class Tag:
    """One `<...>`: its name in lower case, and its attributes (`<speaker 2>` has the value under "")."""

    name: str
    attributes: dict[str, str]


_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9_-]*)([^<>]*)>")
_ATTRIBUTE = re.compile(r"([A-Za-z_-]+)\s*=\s*[\"'“”]?([^\"'“”\s/>]*)|([^\s/\"'=]+)")
_TAG_START = re.compile(r"<(?=[A-Za-z/])")

_STRAIGHT = str.maketrans(
    {
        "’": "'", "‘": "'", "‛": "'", "ʼ": "'", "´": "'", "‚": "'", "′": "'",
        "“": '"', "”": '"', "„": '"', "‟": '"', "″": '"',
        "‐": "-", "‑": "-", "‒": "–", "―": "—", "−": "-",
    }
)  # fmt: skip
# NFKC would turn these into something that reads differently (1½ into 11/2, m² into m2).
_KEPT_FROM_NFKC = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞²³№…"
_KEPT = re.compile(f"([{_KEPT_FROM_NFKC}])")
_KEPT_SYMBOLS = "°№"
_DROPPED_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "So", "Me"}
_LINK = re.compile(r"\]\([^)\s]*\)?|\]\[[^\]\s]*\]?")
_LINE_START_ONLY = re.compile(r"[-*+•‣◦>#|]+|[-=_*~#|:+]{3,}|```\S*|~~~\S*|\[[ xX]\]")
_RULE_LINE = re.compile(r"[-=_*~|:+]{3,}|-{2,}|[|–—]")
# A word of letters that cleaning leaves as they are, NFKC included.
_LETTERS = "[A-Za-zÀ-ÖØ-öø-ÿŒœ]+"
_PLAIN = re.compile(f"{_LETTERS}(?:['-]{_LETTERS})*")
# The same as it is mostly written; nothing in it is markup, an entity, or a mark of a line's start.
_PLAINLY_WRITTEN = re.compile(f"({_LETTERS}(?:['’-]{_LETTERS})*)([.,;:!?]*)")
_GAP = re.compile(r"\s*")
_LINE_END = re.compile(r"[\n\r\u2028\u2029]")
_STOP = re.compile(r"[\s<]")
_LEAD = re.compile(r"[\"'(\[{«‹<¿¡]*")
_TRAIL = re.compile(r"[\"')\]}»›>.,;:!?…]*$")


def mark_of(trail: str) -> str:
    """The strongest mark in a run of closing punctuation; a colon sounds like a comma."""
    if not trail:
        return ""
    for mark, heard in (("?", "?"), ("!", "!"), ("…", "..."), ("...", "..."), (".", "."), (";", ";")):
        if mark in trail:
            return heard
    return "," if "," in trail or ":" in trail else ""


def cleaned(text: str) -> str:
    """One written word without what no voice can say: emoji, controls, half surrogates; straight quotes, NFKC."""
    parts = _KEPT.split(text.translate(_STRAIGHT))
    folded = "".join(part if part in _KEPT_FROM_NFKC else unicodedata.normalize("NFKC", part) for part in parts)
    return "".join(c for c in folded.translate(_STRAIGHT) if _speakable(c))


def _speakable(char: str) -> bool:
    if char < "\x7f":
        return char >= " "
    if "\ufe00" <= char <= "\ufe0f" or "\U0001f3fb" <= char <= "\U0001f3ff":  # variation selectors, skin tones
        return False
    return char in _KEPT_SYMBOLS or unicodedata.category(char) not in _DROPPED_CATEGORIES


class Scanner:
    """Characters in, tokens and tags out, in order."""

    def __init__(self) -> None:
        self._text = ""
        self._line_start = True

    def push(self, piece: str) -> list[Token | Tag]:
        self._text += piece
        return self._scanned(final=False)

    def flush(self) -> list[Token | Tag]:
        """What is held, as if the text ended here."""
        return self._scanned(final=True)

    def _scanned(self, *, final: bool) -> list[Token | Tag]:
        found: list[Token | Tag] = []
        at, text = 0, self._text
        while True:
            word = _GAP.match(text, at).end()  # type: ignore[union-attr]
            if word > at and not self._line_start:
                self._line_start = bool(_LINE_END.search(text, at, word))
            at = word
            end, tag = _end(text, at, final)
            if end is None:
                break
            if tag is not None:
                found.append(tag)
            elif token := token_of(text[at:end], line_start=self._line_start):
                found.append(token)
                self._line_start = False
            at = end
        self._text = text[at:]
        return found


def _end(text: str, at: int, final: bool) -> tuple[int | None, Tag | None]:
    """Where the token that begins at `at` ends, and the tag it is, if it is one; None where more text may decide."""
    if at >= len(text):
        return None, None
    first = at
    if text[at] == "<":
        if match := _TAG.match(text, at, at + TAG_CHARS_MAX):
            return match.end(), _tag(match)
        if not final and _may_become_tag(text[at : at + TAG_CHARS_MAX]):
            return None, None
        first = at + 1
    limit = min(len(text), at + TOKEN_CHARS_MAX)
    while stop := _STOP.search(text, first, limit):
        i = stop.start()
        if text[i] != "<" or _TAG_START.match(text, i):
            return i, None
        if i + 1 == len(text) and not final:
            return None, None
        first = i + 1
    if limit < len(text) or limit - at == TOKEN_CHARS_MAX or final:
        return limit, None
    return None, None


def _may_become_tag(rest: str) -> bool:
    return len(rest) < TAG_CHARS_MAX and (len(rest) == 1 or bool(re.fullmatch(r"</?([A-Za-z][^<>]*)?", rest)))


def _tag(match: re.Match[str]) -> Tag:
    pairs = _ATTRIBUTE.findall(match[2])
    return Tag(match[1].lower(), {name.lower(): value if name else bare for name, value, bare in pairs})


def token_of(written: str, *, line_start: bool = False) -> Token | None:
    """The written word, cleaned and cut into its parts; None where nothing sayable is in it."""
    if quick := _PLAINLY_WRITTEN.fullmatch(written):
        return Token(written, "", quick[1].replace("’", "'"), quick[2], plain=True)
    # An entity may stand for a space ("5&nbsp;km"); a word holds none.
    text = "".join(cleaned(html.unescape(written)).split())
    if (line_start and _LINE_START_ONLY.fullmatch(text)) or _RULE_LINE.fullmatch(text):
        return None
    text = _LINK.sub("", text.replace("![", "["))
    text = text.replace("`", "").replace("|", "").replace("~~", "").replace("**", "").replace("__", "")
    text = text.strip("*_") if text.strip("*_") else text
    lead = _LEAD.match(text)[0]  # type: ignore[index]
    rest = text[len(lead) :]
    trail = _TRAIL.search(rest)[0]  # type: ignore[index]
    core = rest[: len(rest) - len(trail)].strip("*_")
    if text in ("<", ">", "*"):
        return Token(written, "", text, "")
    if not core and not mark_of(trail):
        return None
    return Token(written, lead, core, trail, plain=_PLAIN.fullmatch(core) is not None)

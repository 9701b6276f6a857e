"""The slow twin of the text front end: every character looked at, every word cleaned, every rule asked about it.

It takes a whole text: what is read out does not depend on how it is cut. The rules themselves are the product's.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Sequence

from runtime.port import Pronunciation
from runtime.text import PRONUNCIATION_WORDS_MAX, Item, Word, item_of_tag
from runtime.text_rules import chosen_rules
from runtime.text_scan import TAG_CHARS_MAX, TOKEN_CHARS_MAX, Tag, Token, cleaned, mark_of
from runtime.text_window import Reading, Window

TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9_-]*)([^<>]*)>")
ATTRIBUTE = re.compile(r"([A-Za-z_-]+)\s*=\s*[\"'“”]?([^\"'“”\s/>]*)|([^\s/\"'=]+)")
LINE_START_ONLY = re.compile(r"[-*+•‣◦>#|]+|[-=_*~#|:+]{3,}|```\S*|~~~\S*|\[[ xX]\]")
RULE_LINE = re.compile(r"[-=_*~|:+]{3,}|-{2,}|[|–—]")


def twin_items(text: str, rules: Sequence[str], pronunciations: Sequence[Pronunciation] = ()) -> list[Item]:
    """What `items_of(text, rules, pronunciations)` must give."""
    items: list[Item] = []
    waiting: deque[Token] = deque()
    before = ""

    def read_all() -> None:
        nonlocal before
        while waiting:
            window = Window(waiting, final=True, before=before)
            reading = Reading(1, waiting[0].core)
            if waiting[0].core:
                said = (twin_said(window, p) for p in pronunciations)
                read = (rule(window, language) for rule, language in chosen_rules(rules))
                reading = next((r for r in (*said, *read) if r), reading)
            tokens = [waiting.popleft() for _ in range(reading.taken)]
            before = tokens[-1].core.lower()
            mark = mark_of(tokens[-1].trail) if reading.mark is None else reading.mark
            spoken = [word for word in reading.spoken.split() if any(c.isalnum() for c in word)]
            if spoken:
                spoken[-1] = spoken[-1].rstrip(",") + mark
                written = [" ".join(t.written for t in tokens), *[""] * (len(spoken) - 1)]
                items.extend(Word(s, w) for s, w in zip(spoken, written, strict=True))

    for found in twin_tokens(text):
        if isinstance(found, Token):
            waiting.append(found)
        elif (item := item_of_tag(found)) is not None:
            read_all()
            items.append(item)
    read_all()
    return items


def twin_said(window: Window, p: Pronunciation) -> Reading | None:
    tokens = [twin_token(word, line_start=False) for word in p.original.split()]
    original = [token.core for token in tokens if token][:PRONUNCIATION_WORDS_MAX]
    text = [token.core if (token := window.at(i)) else "" for i in range(len(original))]
    if not p.case_sensitive:
        original, text = [[core.casefold() for core in cores] for cores in (original, text)]
    return Reading(len(original), p.rewrite) if original and original == text else None


def twin_tokens(text: str) -> list[Token | Tag]:
    found: list[Token | Tag] = []
    at, line_start = 0, True
    while True:
        while at < len(text) and text[at].isspace():
            line_start |= text[at] in "\n\r\u2028\u2029"
            at += 1
        if at == len(text):
            return found
        if match := TAG.match(text, at, at + TAG_CHARS_MAX):
            pairs = ATTRIBUTE.findall(match[2])
            found.append(Tag(match[1].lower(), {name.lower(): value if name else bare for name, value, bare in pairs}))
            at = match.end()
            continue
        end = at + 1
        while end < min(len(text), at + TOKEN_CHARS_MAX) and not text[end].isspace():
            if re.match(r"<[A-Za-z/]", text[end : end + 2]):
                break
            end += 1
        if token := twin_token(text[at:end], line_start=line_start):
            found.append(token)
            line_start = False
        at = end


def twin_token(written: str, *, line_start: bool) -> Token | None:
    text = "".join(cleaned(html.unescape(written)).split())
    if (line_start and LINE_START_ONLY.fullmatch(text)) or RULE_LINE.fullmatch(text):
        return None
    text = re.sub(r"\]\([^)\s]*\)?|\]\[[^\]\s]*\]?", "", text.replace("![", "["))
    for marks in ("`", "|", "~~", "**", "__"):
        text = text.replace(marks, "")
    text = text.strip("*_") if text.strip("*_") else text
    rest = text.lstrip("\"'([{«‹<¿¡")
    trail = rest[len(rest.rstrip("\"')]}»›>.,;:!?…")) :]
    core = rest[: len(rest) - len(trail)].strip("*_")
    if text in ("<", ">", "*"):
        return Token(written, "", text, "")
    if not core and not mark_of(trail):
        return None
    return Token(written, text[: len(text) - len(rest)], core, trail)

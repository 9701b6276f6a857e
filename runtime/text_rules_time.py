"""Rules for times of day, dates and telephone numbers."""

from __future__ import annotations

import re

from runtime.text_lang import Language
from runtime.text_numbers import cardinal, digits, ordinal, year
from runtime.text_rules_words import after_stop
from runtime.text_scan import Token
from runtime.text_window import Reading, Window

_HALF_DAY = re.compile(r"(?i)([ap])\.?m\.?")


def clock(w: Window, lang: Language) -> Reading | None:
    """5:30, 17:05:10, 5pm, 5 p.m.; in French also 17h30, 17 h 30."""
    first = w.first
    if lang.code == "fr":
        return _french_clock(w, first)
    match = re.fullmatch(r"(?i)(\d{1,2})(?::(\d{2})(?::(\d{2}))?|\.(\d{2})(?=\s*[ap]\.?m))?\s*([ap]\.?m)?", first.core)
    if not match or int(match[1]) > 24:
        return None
    minutes, seconds, half = match[2] or match[4], match[3], match[5]
    if (minutes and int(minutes) > 59) or (seconds and int(seconds) > 59):
        return None
    taken, mark = 1, None
    if half:
        mark = _half_day_mark(w, first, 0)
    else:
        nxt = w.open(1)
        if nxt is not None and (half_match := _HALF_DAY.fullmatch(nxt.core)):
            half, taken = half_match[1], 2
            mark = _half_day_mark(w, nxt, 1)
    if not minutes and not half:
        return None
    words = _clock_words(int(match[1]), minutes, seconds, plain=not half)
    return Reading(taken, f"{words} {half[0].upper()} M" if half else words, mark)


def _half_day_mark(w: Window, token: Token, ahead: int) -> str | None:
    """The full stop of "p.m." is its own; that of "pm." ends the sentence."""
    return after_stop(w, ahead) if "." in token.core and token.trail.startswith(".") else None


def _clock_words(hour: int, minutes: str | None, seconds: str | None, *, plain: bool) -> str:
    words = cardinal(hour, "en")
    if minutes and int(minutes):
        words += f" {'oh ' if minutes[0] == '0' else ''}{cardinal(int(minutes), 'en')}"
    elif minutes and plain and not seconds:
        words += " o'clock" if 0 < hour <= 12 else " hundred"
    if seconds:
        words += f" and {cardinal(int(seconds), 'en')} seconds"
    return words


def _french_clock(w: Window, first: Token) -> Reading | None:
    match = re.fullmatch(r"(?i)(\d{1,2})(?:(?:h|:)(\d{2})|h)(?:min)?", first.core)
    taken = 1
    if not match:
        if not re.fullmatch(r"\d{1,2}", first.core):
            return None
        sign = w.open(1)
        if sign is None or sign.core.lower() != "h":
            return None
        minute = w.open(2)
        follows = minute is not None and re.fullmatch(r"[0-5]\d", minute.core)
        hour, minutes, taken = int(first.core), minute.core if follows and minute else None, 3 if follows else 2
    else:
        hour, minutes = int(match[1]), match[2]
    if hour > 24 or (minutes and int(minutes) > 59):
        return None
    words = _feminine(cardinal(hour, "fr")) + (" heure" if hour < 2 else " heures")
    if minutes and int(minutes):
        words += f" {_feminine(cardinal(int(minutes), 'fr'))}"
    return Reading(taken, words)


def _feminine(words: str) -> str:
    return words + "e" if words.endswith(("un", "et un")) else words


def date(w: Window, lang: Language) -> Reading | None:
    """2026-11-30, 11/30/2026, 30.11.2026, May 5th, 2026, 5 May 2026, 1er mai."""
    first = w.first
    return (
        _numeric_date(first, lang) or _month_first(w, first, lang) or _day_first(w, first, lang) or _decade(w, lang)
    )


def _decade(w: Window, lang: Language) -> Reading | None:
    """1990s, '80s, the 80s; 80s alone is eighty seconds."""
    match = re.fullmatch(r"(\d{4}|\d0)'?s", w.first.core) if lang.code == "en" else None
    if not match or (len(match[1]) == 2 and "'" not in w.first.lead and w.before != "the"):
        return None
    word = year(int(match[1]), "en") if len(match[1]) == 4 else cardinal(int(match[1]), "en")
    return Reading(1, word[:-1] + "ies" if word.endswith("y") else word + "s")


def _numeric_date(first: Token, lang: Language) -> Reading | None:
    if match := re.fullmatch(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})", first.core):
        y, month, day = int(match[1]), int(match[3]), int(match[4])
    elif match := re.fullmatch(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})", first.core):
        a, b, y = int(match[1]), int(match[3]), int(match[4])
        month_first = lang.code == "en" and match[2] != "." and a <= 12
        month, day = (a, b) if month_first else (b, a)
    else:
        return None
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return Reading(1, _date_words(day, month, y, lang))


def _date_words(day: int, month: int, y: int | None, lang: Language, *, day_first: bool = False) -> str:
    name = lang.months[month - 1]
    if lang.code == "fr":
        words = f"{'premier' if day == 1 else cardinal(day, 'fr')} {name}"
    elif day_first:
        words = f"the {ordinal(day, lang.code)} of {name}"
    else:
        words = f"{name} {ordinal(day, lang.code)}"
    return f"{words} {year(y, lang.code)}" if y is not None else words


_DAY = re.compile(r"(?i)([12]?\d|3[01])(?:st|nd|rd|th|er)?")


def _month_first(w: Window, first: Token, lang: Language) -> Reading | None:
    if lang.code == "fr" or not _is_month(first, lang) or not first.core[:1].isupper():
        return None
    if first.trail not in ("", "."):
        return None
    nxt = w.at(1)
    match = _DAY.fullmatch(nxt.core) if nxt is not None else None
    if nxt is None or not match or match[1] == "0":
        return None
    taken, y = 2, None
    if nxt.trail in ("", ","):
        after = w.at(2)
        if after is not None and re.fullmatch(r"1[0-9]\d\d|20\d\d", after.core):
            taken, y = 3, int(after.core)
    return Reading(taken, _date_words(int(match[1]), lang.month_names[first.core.lower()], y, lang))


def _day_first(w: Window, first: Token, lang: Language) -> Reading | None:
    match = _DAY.fullmatch(first.core)
    if not match or match[1] == "0" or not first.open:
        return None
    month = w.at(1)
    if month is None or not _is_month(month, lang):
        return None
    if lang.code == "en" and not month.core[:1].isupper():
        return None
    taken, y = 2, None
    if month.trail in ("", ",") or (month.trail == "." and len(month.core) <= 4):
        after = w.at(2)
        if after is not None and re.fullmatch(r"1[0-9]\d\d|20\d\d", after.core):
            taken, y = 3, int(after.core)
    day_first = lang.code == "en" and w.before != "the"
    words = _date_words(int(match[1]), lang.month_names[month.core.lower()], y, lang, day_first=True)
    if lang.code == "en" and not day_first:
        words = words.removeprefix("the ")
    return Reading(taken, words)


def _is_month(token: Token, lang: Language) -> bool:
    name = token.core.lower()
    if name not in lang.month_names:
        return False
    return name in {m.lower() for m in lang.months} or token.trail.startswith(".") or token.core[:1].isupper()


_PHONE_PART = re.compile(r"\+?[\d().\-/]*\d[\d().\-/]*")
_INTERNATIONAL = re.compile(r"\+\d{1,3}(?:[ .\-/]?\(?\d{1,4}\)?){2,6}")
_AMERICAN = re.compile(r"(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}|\d{3}-\d{4}")
_FRENCH = re.compile(r"0[1-9](?:[ .-]?\d{2}){4}")
PHONE_PARTS_MAX = 7


def phone(w: Window, lang: Language) -> Reading | None:
    """+33 6 12 34 56 78, (415) 555-2671, 06.12.34.56.78: digits by group, a pause after each group."""
    first = w.first
    if not _PHONE_PART.fullmatch(_written_number(first)):
        return None
    if not (first.core.startswith(("+", "0")) or "(" in first.lead or _phone_begins(first.core)):
        return None
    parts: list[str] = []
    best = 0
    while len(parts) < PHONE_PARTS_MAX:
        token = w.at(len(parts))
        if token is None or not _PHONE_PART.fullmatch(_written_number(token)):
            break
        parts.append(_written_number(token))
        if _is_phone(" ".join(parts), lang):
            best = len(parts)
        if any(mark in token.trail for mark in ".,;:!?"):
            break
    if not best:
        return None
    return Reading(best, _phone_words(" ".join(parts[:best]), lang))


def _written_number(token: Token) -> str:
    return token.lead.strip("\"'") + token.core + (")" if ")" in token.trail else "")


def _phone_begins(core: str) -> bool:
    return bool(re.fullmatch(r"(1[.-])?\d{3}([.-]\d{3})?([.-]\d{4})?", core))


def _is_phone(text: str, lang: Language) -> bool:
    if lang.code == "fr" and _FRENCH.fullmatch(text):
        return True
    if _AMERICAN.fullmatch(text):
        return True
    return bool(_INTERNATIONAL.fullmatch(text)) and 8 <= sum(c.isdecimal() for c in text) <= 15


def _phone_words(text: str, lang: Language) -> str:
    groups = re.findall(r"\d+", text)
    if lang.code == "fr":
        if len(groups) == 1:
            groups = re.findall(r"\d{2}", groups[0])
        words = [_pair(g) for g in groups]
    else:
        words = [digits(g, lang.code) for g in groups]
    plus = f"{lang.symbols['+']} " if text.startswith("+") else ""
    return plus + ", ".join(words)


def _pair(group: str) -> str:
    return digits(group, "fr") if group.startswith("0") or len(group) > 2 else cardinal(int(group), "fr")

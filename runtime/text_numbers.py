"""Numbers as words, through the num2words library; years, digits and decimals, which it does not read as people do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# More digits than this are an identifier, not a quantity: they are read one by one.
QUANTITY_DIGITS_MAX = 15


@dataclass(frozen=True, slots=True)
class Number:
    """A parsed number: its digits as text, so that nothing is lost to floating point."""

    whole: str
    fraction: str = ""
    negative: bool = False

    @property
    def is_one(self) -> bool:
        return self.whole.lstrip("0") == "1" and not self.fraction.strip("0")


@lru_cache(maxsize=4096)
def cardinal(value: int, lang: str) -> str:
    """The value in words, without the commas that would make the voice pause."""
    return _num2words(value, lang, "cardinal")


@lru_cache(maxsize=1024)
def ordinal(value: int, lang: str) -> str:
    return _num2words(value, lang, "ordinal")


def _num2words(value: int, lang: str, to: str) -> str:
    # Imported here: it brings in every language it knows, 90 ms.
    from num2words import num2words  # type: ignore[import-untyped]

    return str(num2words(value, lang=lang, to=to)).replace(",", "")


def digits(text: str, lang: str) -> str:
    """Each digit by itself."""
    return " ".join(cardinal(int(c), lang) for c in text if c.isdecimal())


def whole_words(text: str, lang: str) -> str:
    """A run of digits as a quantity, or digit by digit where it is none (leading zero, or very long)."""
    if len(text) > QUANTITY_DIGITS_MAX or (len(text) > 1 and text.startswith("0")):
        return digits(text, lang)
    return cardinal(int(text or "0"), lang)


def year(value: int, lang: str) -> str:
    """1995 as "nineteen ninety-five"; only English splits years."""
    high, low = divmod(value, 100)
    if lang != "en" or not 1100 <= value <= 2099 or 2000 <= value <= 2009 or value % 1000 == 0:
        return cardinal(value, lang).replace(" and ", " ") if lang == "en" else cardinal(value, lang)
    if low == 0:
        return f"{cardinal(high, lang)} hundred"
    return f"{cardinal(high, lang)} {'oh ' if low < 10 else ''}{cardinal(low, lang)}"


@dataclass(frozen=True, slots=True)
class NumberStyle:
    """How a language writes and reads numbers."""

    lang: str
    decimal: str  # the sign before the fraction
    group: str  # the sign that may stand between groups of three
    point: str  # what the decimal sign is called
    minus: str
    fraction_as_number: bool  # 3,14 as "trois virgule quatorze" rather than digit by digit

    def parse(self, text: str) -> Number | None:
        """The number that `text` is, or None."""
        return _parsed(text, self.decimal, self.group)

    def words(self, number: Number) -> str:
        parts = [self.minus] if number.negative else []
        parts.append(whole_words(number.whole, self.lang))
        if number.fraction:
            parts += [self.point, self._fraction(number.fraction)]
        return " ".join(parts)

    def _fraction(self, text: str) -> str:
        if self.fraction_as_number and len(text) <= 3 and not text.startswith("0"):
            return cardinal(int(text), self.lang)
        return digits(text, self.lang)


@lru_cache(maxsize=1024)
def _parsed(text: str, decimal: str, group: str) -> Number | None:
    d, g = re.escape(decimal), re.escape(group)
    match = re.fullmatch(rf"([-+–]?)(\d{{1,3}}(?:{g}\d{{3}})+|\d+)?(?:{d}(\d+))?", text, re.ASCII)
    if not match or not (match[2] or match[3]):
        return None
    whole = (match[2] or "0").replace(group, "")
    return Number(whole, match[3] or "", match[1] in ("-", "–"))


def roman(text: str) -> int:
    """The value of a Roman numeral up to 39; 0 where it is none."""
    if not re.fullmatch(r"X{0,3}(IX|IV|V?I{0,3})", text):
        return 0
    values = [{"I": 1, "V": 5, "X": 10}[c] for c in text]
    return sum(-v if i + 1 < len(values) and v < values[i + 1] else v for i, v in enumerate(values))

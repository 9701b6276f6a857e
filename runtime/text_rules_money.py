"""Rules for quantities: money, units, fractions, ordinals and plain numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from runtime.text_lang import Language, Money
from runtime.text_numbers import Number, cardinal, digits, ordinal, roman, year
from runtime.text_scan import Token
from runtime.text_window import Reading, Window

_VULGAR = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
# Before a long number these say that it is a name, not a quantity.
_IDENTIFIED_BY = {
    "number", "no", "order", "code", "pin", "id", "zip", "account", "invoice", "ticket", "room", "flight", "extension",
    "confirmation", "reference", "case", "numéro", "commande", "compte", "référence", "dossier",
}  # fmt: skip


def grouped(w: Window, lang: Language) -> tuple[str, int]:
    """The number's text and how many tokens it takes: "1 000 000" is three. Spaces group in any language."""
    first = w.first
    text, taken = first.core, 1
    if not re.fullmatch(r"[-+]?[1-9]\d{0,2}", text):
        return text, 1
    group = rf"\d{{3}}({re.escape(lang.numbers.decimal)}\d+)?"
    while (nxt := w.open(taken)) is not None and re.fullmatch(group, nxt.core):
        text, taken = text + nxt.core, taken + 1
    return text, taken


def number(w: Window, lang: Language) -> Reading | None:
    first = w.first
    core = first.core
    if not any(c.isdecimal() for c in core[:3]):
        return None
    parsed_dots = lang.numbers.group == "." and lang.numbers.parse(core) is not None
    spoken = _range(core, lang) or (None if parsed_dots else _dotted(core, lang))
    spoken = spoken or _hashed(core, lang) or _scientific(core, lang)
    if spoken:
        return Reading(1, spoken)
    text, taken = grouped(w, lang)
    parsed = lang.numbers.parse(text)
    if parsed is None:
        if re.fullmatch(r"\d[\d ,.]*\d", text):  # digits with signs that this language does not write
            return Reading(1, digits(text, lang.code))
        return None
    if taken == 1 and ((w.before in _IDENTIFIED_BY and len(core) > 2) or re.fullmatch(r"\d{10,}", core)):
        return Reading(1, digits(core, lang.code))
    if taken == 1 and lang.code == "en" and re.fullmatch(r"1[1-9]\d\d|20\d\d", core):
        return Reading(1, year(int(core), lang.code))
    return Reading(taken, lang.numbers.words(parsed))


def _range(core: str, lang: Language) -> str | None:
    match = re.fullmatch(r"(\d{1,9})[-–](\d{1,9})|(\d{1,3}):(\d{1,3})", core)
    if not match:
        return None
    low, high = (match[1], match[2]) if match[1] else (match[3], match[4])
    both_years = len(low) == len(high) == 4
    words = [year(int(n), lang.code) if both_years else lang.numbers.words(Number(n)) for n in (low, high)]
    return f" {lang.symbols['to']} ".join(words)


def _dotted(core: str, lang: Language) -> str | None:
    """1.2.3 and 192.168.1.1: each number by itself, the dots spoken."""
    if not re.fullmatch(r"v?\d{1,4}(\.\d{1,4}){2,5}", core):
        return None
    dot = lang.symbols["."] if core.count(".") > 2 else lang.numbers.point
    return f" {dot} ".join(lang.numbers.words(Number(n)) for n in core.lstrip("v").split("."))


def _hashed(core: str, lang: Language) -> str | None:
    if match := re.fullmatch(r"(?:#|№|[nN]°)(\d+)", core):
        return f"{lang.symbols['number']} {lang.numbers.words(Number(match[1]))}"
    if match := re.fullmatch(r"([~≈<>≤≥±×])(\d[\d.,]*)", core):
        parsed = lang.numbers.parse(match[2])
        return f"{lang.symbols.get(match[1], '')} {lang.numbers.words(parsed)}".strip() if parsed else None
    if match := re.fullmatch(r"(\d[\d.,]*)\+", core):
        parsed = lang.numbers.parse(match[1])
        return f"{lang.numbers.words(parsed)} {lang.symbols['+']}" if parsed else None
    return None


def _scientific(core: str, lang: Language) -> str | None:
    match = re.fullmatch(r"([-+]?\d[\d.,]*)[eE]([-+]?\d{1,3})", core)
    if not match or "^" not in lang.symbols:
        return None
    base, power = lang.numbers.parse(match[1]), lang.numbers.parse(match[2])
    if base is None or power is None:
        return None
    return f"{lang.numbers.words(base)} {lang.symbols['^']} {lang.numbers.words(power)}"


@cache
def _price(signs: tuple[str, ...]) -> re.Pattern[str]:
    """A price in one token: sign, number, magnitude, in either order."""
    sign = "|".join(re.escape(s) for s in sorted(signs, key=len, reverse=True))
    return re.compile(rf"(?i)([-–+]?)({sign})?([-+–]?[\d.,]*\d)?([a-z]{{1,2}})?({sign})?")


def currency(w: Window, lang: Language) -> Reading | None:
    """$5.50, € 20, 20 €, 5 USD, £3m, $1.2 billion; a sign apart from its number is looked for one token on."""
    first = w.first
    if match := re.fullmatch(r"(.*\d[^/\s]{0,2})/([^\W\d]{1,12})", first.core):  # $5/month
        price = currency(Window([replace(first, core=match[1])], final=True), lang) if lang.per else None
        below = (lang.units.get(match[2]) or (match[2],))[0]
        return Reading(1, f"{price.spoken} {lang.per} {below}") if price else None
    match = _price(tuple(lang.money)).fullmatch(first.core)
    if not match or not (match[2] or match[3]):
        return None
    sign = (match[2] or match[5] or "").lower()
    amount, magnitude, taken = match[3], (match[4] or "").lower(), 1
    if not amount:
        nxt = w.open(1)
        if nxt is None or not re.fullmatch(r"[\d.,]*\d", nxt.core):
            return None
        amount, taken = nxt.core, 2
    if taken == 1 and not magnitude and not match[5] and (match[2] is None or not match[2].isalpha()):
        amount, taken = _regrouped(w, first, amount, lang)
    if magnitude and magnitude not in lang.magnitudes and not sign:
        return None
    magnitude, taken = _spoken_magnitude(w, magnitude, taken, lang, needs_word=not sign)
    if not sign:
        sign, taken = _sign_after(w, taken, lang)
    parsed = lang.numbers.parse(match[1] + amount)
    if sign not in lang.money or parsed is None:
        return None
    return Reading(taken, _money_words(parsed, lang.money[sign], magnitude, lang))


def _regrouped(w: Window, first: Token, amount: str, lang: Language) -> tuple[str, int]:
    """The amount with the groups of three that follow it after spaces."""
    taken = 1
    if re.fullmatch(r"[-+–]?[1-9]\d{0,2}", amount):
        pattern = rf"\d{{3}}({re.escape(lang.numbers.decimal)}\d+)?"
        while (nxt := w.open(taken)) is not None and re.fullmatch(pattern, nxt.core):
            amount, taken = amount + nxt.core, taken + 1
    return amount, taken


def _spoken_magnitude(w: Window, sign: str, taken: int, lang: Language, *, needs_word: bool) -> tuple[str, int]:
    """The magnitude's word, from the sign on the number or from the next token."""
    if sign:
        return lang.magnitudes.get(sign, ""), taken
    nxt = w.open(taken)
    if nxt is None:
        return "", taken
    key = nxt.core.lower()
    if key in lang.magnitudes and (len(key) > 2 or not needs_word):
        return lang.magnitudes[key], taken + 1
    if match := re.fullmatch(r"(?i)(md|m|k)(€|\$|£)", nxt.core):  # "5 M€"
        return lang.magnitudes.get(match[1].lower(), ""), taken
    return "", taken


def _sign_after(w: Window, taken: int, lang: Language) -> tuple[str, int]:
    nxt = w.open(taken)
    if nxt is None:
        return "", taken
    key = re.sub(r"^(md|m|k)(?=[€$£])", "", nxt.core.lower())
    return (key, taken + 1) if key in lang.money else ("", taken)


def _money_words(amount: Number, money: Money, magnitude: str, lang: Language) -> str:
    if magnitude:
        plural = "s" if lang.code == "fr" and magnitude.startswith("mill") and magnitude != "mille" else ""
        plural = "" if amount.whole in ("0", "1") else plural
        of = _of(lang, money.many) if lang.magnitude_of and magnitude != "mille" else ""
        return f"{lang.numbers.words(amount)} {magnitude}{plural} {of}{money.many}"
    cents = (amount.fraction + "0")[:2] if 1 <= len(amount.fraction) <= 2 else ""
    if amount.fraction and not cents:  # $1.255 is a rate, not a price
        return f"{lang.numbers.words(amount)} {money.many}"
    whole = Number(amount.whole, negative=amount.negative)
    number_words = lang.numbers.words(whole)
    # "un million d'euros": in French a round million is a noun.
    of = _of(lang, money.many) if lang.magnitude_of and number_words.endswith(("ion", "ions", "iard", "iards")) else ""
    words = f"{number_words} {of}{_counted(amount.whole, money, lang)}"
    if not cents or cents == "00":
        return words
    if not money.part_many:
        return f"{words} {cardinal(int(cents), lang.code)}"
    part = f"{cardinal(int(cents), lang.code)} {money.part_one if cents == '01' else money.part_many}"
    if int(amount.whole or 0) == 0:
        return f"{lang.numbers.minus} {part}" if amount.negative else part
    return " ".join(p for p in (words, lang.money_between, part) if p)


def _counted(whole: str, money: Money, lang: Language) -> str:
    ones = ("1",) if lang.code == "en" else ("0", "1")
    return money.one if whole.lstrip("0") in ones or (whole in ones) else money.many


def _of(lang: Language, noun: str) -> str:
    return "d'" if noun[0] in "aeiouyhé" else f"{lang.magnitude_of} "


# Signs that are words or letters too are units only when they touch the number ("5 in", "5 h").
_ONLY_TOUCHING = {"in", "s", "h", "m", "g", "l", "v", "w", "t", "to", "b"}


def unit(w: Window, lang: Language) -> Reading | None:
    """5km, 20 °C, 3.5 GB, 100 km/h, 12 %: the number and its unit, in one token or two."""
    first = w.first
    if lang.code == "en" and (match := re.fullmatch(r"(\d{1,2})'(\d{1,2})", first.core)):  # 5'10"
        return Reading(1, f"{cardinal(int(match[1]), 'en')} foot {cardinal(int(match[2]), 'en')}")
    match = re.fullmatch(r"([-+–]?[\d.,]*\d)([^\d\s].*)?", first.core)
    if not match:
        return None
    text, sign, taken = match[1], match[2] or "", 1
    if not sign:
        text, taken = grouped(w, lang)
        nxt = w.open(taken)
        if nxt is None or (nxt.core in _ONLY_TOUCHING and lang.code == "en"):
            return None
        sign, taken = nxt.core, taken + 1
        if sign == "°" and (after := w.open(taken)) is not None and after.core in ("C", "F"):
            sign, taken = f"°{after.core}", taken + 1
    parsed = lang.numbers.parse(text)
    names = unit_names(sign, lang)
    if parsed is None or names is None:
        return None
    one, many = names
    singular = parsed.is_one or (lang.code == "fr" and parsed.whole in ("0", "1"))
    words = "une" if lang.code == "fr" and parsed.is_one and one in ("heure", "minute", "seconde") else None
    return Reading(taken, f"{words or lang.numbers.words(parsed)} {one if singular else many}")


def unit_names(sign: str, lang: Language) -> tuple[str, str] | None:
    """One and many of a unit sign; "km/h" is many kilometers per one hour."""
    direct = lang.units.get(sign) or lang.units.get(sign.lower())
    if direct:
        return direct
    if sign[-1:] in ("2", "3") and (power := lang.units.get(sign[:-1].lower() + {"2": "²", "3": "³"}[sign[-1]])):
        return power
    top, _, bottom = sign.partition("/")
    if bottom and top.lower() in lang.units and bottom.lower() in lang.units:
        one, many = lang.units[top.lower()]
        below = lang.units[bottom.lower()][0]
        return f"{one} {lang.per} {below}", f"{many} {lang.per} {below}"
    return None


def fraction(w: Window, lang: Language) -> Reading | None:
    """½, 1½, 3/4, 1 1/2; 24/7 and the like are read as two numbers."""
    first = w.first
    if match := re.fullmatch(r"(\d{1,4})?([" + "".join(_VULGAR) + "])", first.core):
        return Reading(1, _mixed(match[1], *_VULGAR[match[2]], lang))
    if match := re.fullmatch(r"(\d{1,3})/(\d{1,3})", first.core):
        return Reading(1, _mixed(None, int(match[1]), int(match[2]), lang))
    if not re.fullmatch(r"\d{1,3}", first.core):
        return None
    nxt = w.open(1)
    if nxt is None:
        return None
    if match := re.fullmatch(r"(\d)/(\d{1,2})", nxt.core):
        if int(match[1]) < int(match[2]):
            return Reading(2, _mixed(first.core, int(match[1]), int(match[2]), lang))
    elif nxt.core in _VULGAR:
        return Reading(2, _mixed(first.core, *_VULGAR[nxt.core], lang))
    return None


def _mixed(whole: str | None, top: int, bottom: int, lang: Language) -> str:
    part = _fraction_words(top, bottom, lang, after_whole=bool(whole))
    return f"{lang.numbers.words(Number(whole))} {lang.symbols['and']} {part}" if whole else part


def _fraction_words(top: int, bottom: int, lang: Language, *, after_whole: bool) -> str:
    say = lang.code
    if (top, bottom) == (24, 7):
        return f"{cardinal(24, say)} {cardinal(7, say)}"
    if not 2 <= bottom <= 100 or top >= bottom:
        return f"{cardinal(top, say)} {lang.symbols['over']} {cardinal(bottom, say)}"
    many = "s" if top > 1 else ""
    if say == "fr":
        named = {2: "demi", 3: "tiers", 4: "quart"}.get(bottom) or ordinal(bottom, say)
        return f"{cardinal(top, say)} {named}{'' if named.endswith('s') else many}"
    count = lang.symbols["a"] if top == 1 and after_whole else cardinal(top, say)
    named = {2: lang.symbols["half"], 4: lang.symbols["quarter"]}.get(bottom) or ordinal(bottom, say)
    return f"{count} {named}{many}"


def ordinal_rule(w: Window, lang: Language) -> Reading | None:
    """1st, 22nd; 1er, 2e, 3ème; XXIe."""
    first = w.first
    if lang.code == "en":
        match = re.fullmatch(r"(?i)(\d[\d,]*)(?:st|nd|rd|th)", first.core)
        return Reading(1, ordinal(int(match[1].replace(",", "")), "en")) if match and len(match[1]) < 16 else None
    if match := re.fullmatch(r"(\d{1,9})(ers?|res?|ères?|es?|èmes?|nde?s?|ᵉ|ᵉʳ)", first.core):
        if match[1] == "1":
            return Reading(1, "première" if match[2].startswith(("re", "ère")) else "premier")
        return Reading(1, ordinal(int(match[1]), "fr"))
    if match := re.fullmatch(r"([IVX]{1,6})(?:e|ème|er)", first.core):
        value = roman(match[1])
        return Reading(1, "premier" if value == 1 else ordinal(value, "fr")) if value else None
    return None

"""Rules for single words: addresses, codes of letters and digits, abbreviations, signs."""

from __future__ import annotations

import re

from runtime.text_lang import Language
from runtime.text_numbers import cardinal, digits, ordinal, roman, whole_words
from runtime.text_scan import Token, mark_of
from runtime.text_window import Reading, Window


def url(w: Window, lang: Language) -> Reading | None:
    """https://example.com/a-b as "example dot com slash a dash b"."""
    core = w.first.core
    bare = r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}(?:/\S*)?"
    match = re.fullmatch(rf"(?i)(?:https?://|ftp://)(\S+)|(www\.\S+)|({bare})", core)
    if not match:
        return None
    if match[3] and not _looks_like_host(match[3]):
        return None
    address = (match[1] or match[2] or match[3]).rstrip("/").removeprefix("www.")
    return Reading(1, spelled_address(address, lang))


_TOP_LEVEL = frozenset(
    {
        "com", "org", "net", "io", "ai", "co", "uk", "fr", "de", "es", "pt", "it", "eu", "edu", "gov", "dev",
        "app", "info", "me", "tv", "us", "ca", "ch", "be", "nl", "jp", "cn", "in", "br",
    }
)  # fmt: skip


def _looks_like_host(text: str) -> bool:
    """Whether a word with dots is an address and not a missing space after a full stop, or initials."""
    host = text.split("/")[0].lower()
    return host.rsplit(".", 1)[-1] in _TOP_LEVEL and len(host.split(".")[0]) > 1


def email(w: Window, lang: Language) -> Reading | None:
    core = w.first.core.removeprefix("mailto:")
    if not re.fullmatch(r"[\w.+%-]+@[\w-]+(\.[\w-]+)+", core):
        return None
    return Reading(1, spelled_address(core, lang))


def spelled_address(address: str, lang: Language) -> str:
    """An address part by part: its signs by name, digits one by one, the rest as words."""
    words = []
    for part in re.findall(r"[^\W\d_]+|\d+|[^\w]|_", address):
        if part.isdecimal():
            words.append(_short(part, lang))
        elif part.isalpha():
            words.append(part)
        elif name := lang.symbols.get(part):
            words.append(name)
    return " ".join(words)


def _short(part: str, lang: Language) -> str:
    """Digits inside a name: one or two are a number, more are read one by one."""
    quantity = len(part) <= 2 and (part == "0" or part[0] != "0")
    return cardinal(int(part), lang.code) if quantity else digits(part, lang.code)


def alphanumeric(w: Window, lang: Language) -> Reading | None:
    """Letters and digits mixed (AB12, x86, B2B, covid-19): letters spelled where they are no word, digits read."""
    core = w.first.core
    if not (re.search(r"\d", core) and re.search(r"[^\W\d_]", core) and re.fullmatch(r"[^\W_]+([-./][^\W_]+)*", core)):
        return None
    words = []
    for part in re.findall(r"[^\W\d_]+|\d+", core):
        if part.isdecimal():
            words.append(_short(part, lang))
        else:
            words.append(part if _is_word(part) else " ".join(part.upper()))
    return Reading(1, " ".join(words))


def _is_word(letters: str) -> bool:
    """Whether letters beside digits are said as a word: long enough, and with a vowel."""
    return len(letters) > 3 and bool(re.search(r"[aeiouyàâäéèêëîïôöùûü]", letters.lower()))


# Titles that British English and French write without a full stop, and French's sign for a number.
_BARE = frozenset(
    {
        "mr", "mrs", "dr", "prof", "mme", "mmes", "mlle", "pr", "n°",
    }
)  # fmt: skip
# Abbreviations that often end a sentence; their full stop then ends both.
_ENDING = frozenset(
    {
        "etc", "inc", "ltd", "corp", "co", "jr", "sr", "al", "st", "ave", "rd", "blvd",
    }
)  # fmt: skip


def abbreviation(w: Window, lang: Language) -> Reading | None:
    """Dr. as "Doctor"; e.g. as "for example"; U.S.A. letter by letter. The full stop is part of it."""
    token = w.first
    key = token.core.lower()
    if re.fullmatch(r"(?:[^\W\d_]\.){1,6}[^\W\d_]", token.core) and key not in lang.abbreviations:
        return Reading(1, " ".join(token.core.replace(".", "").upper()), after_stop(w, 0))
    spoken = lang.abbreviations.get(key)
    if spoken is None:
        return None
    if not token.trail.startswith("."):
        bare = key in _BARE and token.open and (key == "n°" or (_capital(token) and _capital(w.at(1))))
        return Reading(1, spoken) if bare else None
    if token.trail.startswith("..") or (_needs_follower(key, lang) and not _follower(w, key)):
        return None
    if lang.code == "en" and key == "st" and w.before[:1].isalpha() and not _capital(w.at(1)):
        spoken = "Street"
    ends = key in _ENDING and spoken != lang.abbreviations["st"]
    return Reading(1, spoken, after_stop(w, 0) if ends else mark_of(token.trail[1:]))


def _needs_follower(key: str, lang: Language) -> bool:
    """Abbreviations that are also words, or nothing without what follows them."""
    return (lang.code == "en" and key in {"no", "fig", "vol", "pp", "co", "al", "gen", "col", "min", "ms", "st"}) or (
        lang.code == "fr" and key in {"m", "mm", "st", "av", "pr"}
    )


def _follower(w: Window, key: str) -> bool:
    after = w.at(1)
    if key in {"no", "fig", "vol", "pp"}:
        return after is not None and after.core[:1].isdecimal()
    if key == "st":
        return True
    if key in {"co", "al", "min"}:
        return bool(w.before)
    return _capital(after)


def after_stop(w: Window, ahead: int) -> str:
    """The mark after an abbreviation's full stop: it ends a sentence only where the text ends or a capital follows."""
    token = w.at(ahead)
    assert token is not None
    rest = mark_of(token.trail[1:])
    if rest or not token.trail.startswith("."):
        return rest
    after = w.at(ahead + 1)
    return "." if after is None or _capital(after) else ""


def _capital(token: Token | None) -> bool:
    return token is not None and token.core[:1].isupper()


_NUMBERED = frozenset(
    {
        "chapter", "part", "section", "volume", "act", "book", "phase", "war", "type", "title", "appendix",
        "level", "class", "mark", "chapitre", "partie", "tome", "acte",
    }
)  # fmt: skip
_CROWNED = frozenset(
    {
        "louis", "henry", "charles", "george", "edward", "elizabeth", "pope", "king", "queen", "francis",
        "pius", "paul", "john", "leo", "napoleon", "alexander", "nicholas", "peter", "james", "william",
        "richard", "philip", "benedict", "henri", "françois",
    }
)  # fmt: skip


def roman_numeral(w: Window, lang: Language) -> Reading | None:
    """Chapter IV, World War II, Louis XIV: a Roman numeral after a word that takes one."""
    core = w.first.core
    value = roman(core)
    if not value:
        return None
    if w.before in _NUMBERED:
        return Reading(1, cardinal(value, lang.code))
    if w.before in _CROWNED and len(core) > 1:
        the = f"the {ordinal(value, 'en')}" if lang.code == "en" else cardinal(value, lang.code)
        return Reading(1, the)
    return None


def symbol(w: Window, lang: Language) -> Reading | None:
    """A sign that stands alone, or joins words: & + = @ / _ ~; those between numbers need both."""
    core = w.first.core
    if len(core) == 1 and not core.isalnum():
        return Reading(1, _lone(core, w, lang))
    if core.isalnum() or not re.search(r"[^\w'’-]|_", core):
        return None
    pieces = []
    for part in re.findall(r"[\w'’-]+|[^\w'’-]", core.replace("_", " ")):
        if part.isdecimal():
            pieces.append(whole_words(part, lang.code))
        elif part[0].isalnum() or part[0] in "'’":
            pieces.append(part)
        elif part in "&@+%=~±≈≤≥×÷§√∞π°№<>#" and (name := lang.symbols.get(part)):
            pieces.append(name)
        elif part == ".":
            pieces.append("")
    return Reading(1, " ".join(p for p in pieces if p.strip("-")))


def _lone(sign: str, w: Window, lang: Language) -> str:
    between_numbers = w.before[-1:].isdecimal()
    if sign in "-–*/·" and between_numbers:
        after = w.at(1)
        if after is not None and after.core[:1].isdecimal():
            return {"-": lang.numbers.minus, "–": lang.symbols["to"], "*": lang.symbols.get("×", "")}.get(
                sign, lang.symbols.get("÷", "")
            )
    return "" if sign in "-–*/·_#.:?^\\" else lang.symbols.get(sign, "")


def spaced_mark(w: Window, lang: Language) -> Reading | None:
    """ "vraiment ?" in French: the mark belongs to the word before its space."""
    token = w.first
    if not lang.spaced_marks or token.trail or not token.core[-1:].isalpha():
        return None
    after = w.at(1)
    if after is None or after.core or not after.mark:
        return None
    return Reading(2, token.core, after.mark)

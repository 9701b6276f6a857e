"""The rewrite rules by name, in the order in which they are tried: the first that matches a word reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from runtime import text_rules_money as money
from runtime import text_rules_time as time
from runtime import text_rules_words as words
from runtime.errors import NameUnknown
from runtime.text_lang import LANGUAGES, Language
from runtime.text_scan import Token
from runtime.text_window import Rule

KINDS: tuple[tuple[str, Rule], ...] = (
    ("Email", words.email),
    ("Url", words.url),
    ("Phone", time.phone),
    ("Date", time.date),
    ("Time", time.clock),
    ("Currency", money.currency),
    ("Unit", money.unit),
    ("Fraction", money.fraction),
    ("Ordinal", money.ordinal_rule),
    ("Number", money.number),
    ("Abbreviation", words.abbreviation),
    ("Roman", words.roman_numeral),
    ("AlNum", words.alphanumeric),
    ("Symbol", words.symbol),
    ("Mark", words.spaced_mark),
)
# Those that may read a plain word; the others need a digit or a sign in it.
OF_PLAIN_WORDS = (
    time.date, money.currency, money.ordinal_rule, words.abbreviation, words.roman_numeral, words.spaced_mark,
)  # fmt: skip
# What languages without full tables have.
BASIC = ("Email", "Url", "Number", "AlNum", "Symbol")


def rule_names() -> dict[str, tuple[Rule, Language]]:
    """Every rule by its public name: what it reads, and in which language."""
    table = {
        f"{kind}{code.capitalize()}": (rule, lang)
        for code, lang in LANGUAGES.items()
        for kind, rule in KINDS
        if code in ("en", "fr") or kind in BASIC
    }
    return table | {"Date": table["DateEn"], "AlNum": table["AlNumEn"]}


# A numeral, and a French one with the ending of an ordinal.
_ROMAN = re.compile(r"[IVX]+(?:e|ème|er)?\b")


class Rules:
    """Chosen rules in the order in which they are tried, and which of them a word need be shown.

    Most words are plain and in no table, and no rule reads those: they cost one look here instead of fifteen there.
    """

    def __init__(self, chosen: Sequence[tuple[Rule, Language]]) -> None:
        self._all = tuple(chosen)
        self._of_plain = tuple(pair for pair in chosen if pair[0] in OF_PLAIN_WORDS)
        # What follows it decides, whatever the word is.
        self._of_any = tuple(p for p in self._of_plain if p[0] is words.spaced_mark and p[1].spaced_marks)
        languages = [lang for _, lang in self._of_plain]
        self._listed = frozenset(word for lang in languages for word in (*lang.month_names, *lang.abbreviations))
        self._signs = tuple({sign for lang in languages for sign in lang.money if sign.isalpha()})

    def of(self, token: Token) -> tuple[tuple[Rule, Language], ...]:
        """Those that may read the word; all others would return None without looking at what follows it."""
        if not token.plain:
            return self._all
        name = token.core.lower()
        if name in self._listed or name.startswith(self._signs) or _ROMAN.match(token.core):
            return self._of_plain
        return self._of_any


# Few are ever asked for by a server's clients; the bound is for those who try all orders.
@lru_cache(maxsize=64)
def rules_of(names: tuple[str, ...]) -> Rules:
    """chosen_rules, made once for all streams that name the same."""
    return Rules(chosen_rules(names))


def chosen_rules(names: Sequence[str]) -> list[tuple[Rule, Language]]:
    """The rules by name, in the given order; "en", "fr", "de", "es", "pt" stand for all of a language.

    Raises NameUnknown, which lists the names.
    """
    table = rule_names()
    chosen: list[tuple[Rule, Language]] = []
    for name in names:
        if name == "none":
            continue
        if name in LANGUAGES:
            suffix = name.capitalize()
            chosen += [pair for key, pair in table.items() if key.endswith(suffix)]
        elif name in table:
            chosen.append(table[name])
        else:
            raise NameUnknown("rewrite rule", name, [*table, *LANGUAGES])
    return chosen

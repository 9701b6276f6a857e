"""The rewrite rules by name, in the order in which they are tried: the first that matches a word reads it."""

from __future__ import annotations

from collections.abc import Sequence

from runtime import text_rules_money as money
from runtime import text_rules_time as time
from runtime import text_rules_words as words
from runtime.errors import NameUnknown
from runtime.text_lang import LANGUAGES, Language
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

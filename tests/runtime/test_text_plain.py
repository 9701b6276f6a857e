"""The short way of plain words gives what the long way gives, and leaves out no rule that would have read one."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.bench.arrivals import PROMPTS
from runtime.port import Pronunciation
from runtime.text import items_of
from runtime.text_lang import LANGUAGES
from runtime.text_rules import chosen_rules, rules_of
from runtime.text_scan import token_of
from runtime.text_window import Window
from tests.runtime.test_text import RULES, TEXTS
from tests.runtime.test_text_readings import ENGLISH, FRENCH, OTHERS, cases
from tests.runtime.text_twin import twin_items

TABLES = [
    word
    for lang in LANGUAGES.values()
    for table in (lang.month_names, lang.abbreviations, lang.money, lang.magnitudes, lang.units, lang.symbols)
    for word in table
]
NUMERALS = ["I", "i", "IV", "XIV", "XL", "XXIe", "Ier", "IIème", "Xe", "I'm", "V-neck", "Louis", "Chapter", "Type"]
ODD = ["o’clock", "d'été", "usdk", "EURm", "eur-usd", "ﬁrst", "ſt", "ªb", "Œuvre", "café", "m-", "'tis", "a_b", "K"]
WORDS = sorted({form for word in (*TABLES, *NUMERALS, *ODD) for form in (word, word.capitalize(), word.upper())})
WRITTEN = [cells[-2] for table in (ENGLISH, FRENCH, OTHERS) for cells in cases(table)]
PROSE = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "", "", ".", ",", "?", "...", ")", "!?", "’s"])), max_size=8
).map(lambda pairs: " ".join(word + mark for word, mark in pairs))


@pytest.mark.parametrize("text", [*PROMPTS, *WRITTEN, " ".join(WRITTEN)])
def test_known_texts_are_read_as_by_the_slow_twin(text: str) -> None:
    for rules in RULES:
        assert items_of(text, rules) == twin_items(text, rules)


@settings(max_examples=200, deadline=None)
@given(text=PROSE | TEXTS | st.text(max_size=40), rules=st.sampled_from(RULES))
@example(text="\n- don’t\u2028> it", rules=("en",))
@example(text="a" * 450 + "<b>c<d", rules=("fr",))
def test_any_text_is_read_as_by_the_slow_twin(text: str, rules: tuple[str, ...]) -> None:
    assert items_of(text, rules) == twin_items(text, rules)


PAIRS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "", *WORDS])), max_size=30)


@settings(max_examples=200, deadline=None)
@given(pairs=PAIRS, sensitive=st.integers(0), order=st.randoms(use_true_random=False), rules=st.sampled_from(RULES))
def test_a_dictionary_is_looked_into_as_by_the_slow_twin(
    pairs: list[tuple[str, str]], sensitive: int, order: Random, rules: tuple[str, ...]
) -> None:
    entries = [
        Pronunciation(f"{first} {second}", f"said {n}", case_sensitive=bool(sensitive >> n & 1))
        for n, (first, second) in enumerate(pairs)
    ]
    words = [word for pair in pairs for word in pair if order.random() < 0.8]
    text = " ".join(order.choice([word, word.lower(), word.title(), word + ","]) for word in words)
    assert items_of(text, rules, entries) == twin_items(text, rules, entries)


def test_a_rule_that_a_plain_word_is_not_shown_would_not_read_it() -> None:
    """Nor look at what follows: it is not there, and asking for it raises NeedMore."""
    plain = 0
    for name in LANGUAGES:
        for word in WORDS:
            token = token_of(word)
            if token is None or not token.plain:
                continue
            shown = [pair[0] for pair in rules_of((name,)).of(token)]
            for rule, language in chosen_rules((name,)):
                if rule not in shown:
                    for before in ("", "the", "chapter", "louis", "5"):
                        window = Window([token], final=False, before=before)
                        assert rule(window, language) is None, (word, rule)
                    plain += 1
    assert plain > 1000


def test_most_words_are_shown_to_no_rule() -> None:
    words = [w for text in PROMPTS for w in text.split()]
    shown = [w for w in words if rules_of(("en",)).of(token_of(w))]  # type: ignore[arg-type]
    assert len(shown) < len(words) / 10, shown
    assert not [w for w in shown if re.fullmatch("[a-z]{5,}", w)]

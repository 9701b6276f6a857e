"""The text front end: the same words however the text arrives, nothing unsayable, no crash on any Unicode."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.entries import EntryMaker
from runtime.errors import NameUnknown
from runtime.text import (
    Flush,
    Item,
    Pause,
    Pronunciation,
    TextFrontEnd,
    Turn,
    Word,
    items_of,
    seconds_of,
    spoken_text,
)
from runtime.text_feed import ProseFeed
from runtime.text_rules import rule_names
from runtime.text_window import AHEAD_MAX

RULES = [("en",), ("fr",), ("de",), ("en", "fr"), ("fr", "en"), ()]

# Pieces of which interesting texts are made: they come together in ways nobody would write down.
PIECES = st.sampled_from(
    [
        "5", "p.m.", "pm", "5:30", "17h30", "h", "1", "000", "12", "345", "000,50", "$", "$5.50", "€", "20",
        "£3m", "million", "k", "M€", "km", "km/h", "%", "°", "C", "1/2", "½", "1½", "3/4", "May", "5,",
        "2026", "mai", "1er", "2e", "XIV", "Louis", "Chapter", "Dr.", "St.", "etc.", "e.g.", "U.S.A.",
        "No.", "n°", "M.", "+33", "6", "12", "34", "56", "78", "(415)", "555-2671", "1-800-555-2671",
        "a@b.co", "https://x.com/a?b", "www.y.fr", "AB12", "x86", "covid-19", "1990s", "'80s", "10-20",
        "-5", "–", "—", "...", "…", "?", "!", ";", ":", ",", ".", "**", "_it_", "`c`", "#", "-", ">", "|",
        "[l](u)", "![i](u)", "<", ">", "<b>", "</b>", "<break", "time=\"1.5s\"/>", "<break", "time='200ms'",
        "/>", "<flush>", "<speaker", "2>", "<speaker", "id=\"1\"/>", "<brea", "&amp;", "&nbsp;", "«", "»",
        "“hi”", "’s", "l’eau", "don’t", "😀", "👨‍👩‍👧", "🇫🇷", "1️⃣", "�", "\u202f", "\xa0", "\u200b", "\x00",
        "\x1b[31m", "é", "ﬁ", "①", "中文字", "שלום", "مرحبا", "٣٤", "นี่", "word", "The", "1e6", "007",
        "12345678901234567890", "v1.2.3", "192.168.1.1", "5'10\"", "=", "+", "*", "/", "&", "@", "~5", "≈",
        "≤3", "5+", "#7", "#tag", "@me",
    ]
)  # fmt: skip
TEXTS = st.lists(st.tuples(PIECES, st.sampled_from(["", " ", " ", " ", "\n", "\u00a0"])), max_size=14).map(
    lambda pairs: "".join(piece + gap for piece, gap in pairs)
)


def fed(text: str, cuts: list[int], rules: tuple[str, ...]) -> list[Item]:
    front = TextFrontEnd(rules)
    edges = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    items: list[Item] = []
    for a, b in pairwise(edges):
        items += front.push(text[a:b])
    return items + front.flush()


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=8), rules=st.sampled_from(RULES))
@example(text="1 000 000 people at 5 p.m. Then", cuts=[1, 3, 5, 20, 22, 26], rules=("en",))
@example(text="call +33 6 12 34 56 78 now", cuts=[6, 9, 11, 14], rules=("en",))
@example(text='a <break time="1.5s" /> b <c', cuts=[3, 4, 9, 20], rules=("en",))
@example(text="1 000 000 000 000 000 000 000 000 000 000", cuts=[7, 22], rules=("fr",))
def test_any_split_gives_the_same_items(text: str, cuts: list[int], rules: tuple[str, ...]) -> None:
    whole = items_of(text, rules)
    assert fed(text, cuts, rules) == whole
    assert fed(text, list(range(len(text))), rules) == whole


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60), rules=st.sampled_from(RULES))
@example(text="\ud83d\ude00", rules=("en",))
@example(text="<" * 500, rules=("en",))
@example(text="9" * 5000, rules=("fr",))
@example(text="٣/٤ ৫€", rules=("en",))
def test_any_unicode_is_taken_and_words_are_sayable(text: str, rules: tuple[str, ...]) -> None:
    for item in items_of(text, rules):
        if isinstance(item, Word):
            assert item.spoken
            assert not any(c.isspace() or ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in item.spoken)
            assert any(c.isalnum() for c in item.spoken)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_every_written_word_that_is_said_is_reported_once(text: str) -> None:
    written = [item.written for item in items_of(text) if isinstance(item, Word) and item.written]
    left = text
    for word in written:
        for part in word.split():
            assert part in left
            left = left[left.index(part) + len(part) :]


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "😀🎉", "🇫🇷", "...", "—", "**", "``` ```", "\x00\x01", "\ud83d", "?!"]
)
def test_text_without_anything_to_say_gives_nothing(text: str) -> None:
    assert items_of(text) == []


def test_a_plain_word_waits_for_no_other() -> None:
    front = TextFrontEnd()
    assert front.push("Hello ") == [Word("Hello", "Hello")]
    assert front.push("big ") == [Word("big", "big")]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("costs 5 ", True),
        ("costs 5, ", False),
        ("costs $5, ", False),
        ("on May ", True),
        ("Dr. ", False),
        ("at 5pm ", False),
    ],
)
def test_only_words_that_may_begin_a_group_wait(text: str, waits: bool) -> None:
    front = TextFrontEnd()
    said = " ".join(i.written for i in front.push(text) if isinstance(i, Word) and i.written)
    assert (said != text.strip()) is waits


def test_no_word_waits_for_more_than_the_bound() -> None:
    front = TextFrontEnd()
    waiting = 0
    for group in ["1", *["000"] * 30]:
        waiting += 1
        waiting -= sum(len(i.written.split()) for i in front.push(group + " ") if isinstance(i, Word))
        assert waiting <= AHEAD_MAX + 1
    assert waiting > 0


def test_memory_is_bounded_for_unbounded_text() -> None:
    front = TextFrontEnd()
    rng = random.Random(1)
    pieces = ["word ", "5 ", "000 ", "x" * 50, "<", "$", "+1 ", "\u00a0"]
    for _ in range(2000):
        front.push(rng.choice(pieces))
    tracemalloc.start()
    for _ in range(20_000):
        front.push(rng.choice(pieces))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 2_000_000  # caches of number words are bounded; nothing else is kept


def test_a_word_without_end_is_cut() -> None:
    words = [i for i in items_of("a" * 1000) if isinstance(i, Word)]
    assert [len(w.spoken) for w in words] == [200] * 5


@pytest.mark.parametrize(
    ("tag", "item"),
    [
        ('<break time="1.5s"/>', Pause(1.5)),
        ('<break time="1.5s" />', Pause(1.5)),
        ("<break time='300ms'>", Pause(0.3)),
        ("<break/>", Pause(1.0)),
        ('<break time="99s"/>', Pause(10.0)),
        ('<break time="-1s"/>', Pause(0.0)),
        ('<break time="soon"/>', Pause(0.0)),
        ("<flush>", Flush()),
        ("<FLUSH/>", Flush()),
        ("<speaker 2>", Turn(2)),
        ('<speaker id="1"/>', Turn(1)),
    ],
)
def test_tags(tag: str, item: Item) -> None:
    assert items_of(f"one {tag} two") == [Word("one", "one"), item, Word("two", "two")]
    assert items_of(f"one{tag}two") == [Word("one", "one"), item, Word("two", "two")]


@pytest.mark.parametrize("tag", ["<b>", "</b>", "<br/>", "<speaker 9>", "<speaker>", "<span class='x y'>"])
def test_other_tags_are_dropped(tag: str) -> None:
    assert spoken_text(f"one {tag} two{tag}.") == "one two"


def test_a_tag_ends_a_group() -> None:
    assert spoken_text('5 <break time="1s"/> p.m.') == "five P M."


def test_flush_says_the_last_word_and_begins_a_new_one() -> None:
    front = TextFrontEnd()
    assert front.push("all of it") == [Word("all", "all"), Word("of", "of")]
    assert front.flush() == [Word("it", "it")]
    assert front.flush() == []
    assert front.push("self ") == [Word("self", "self")]


def test_seconds_that_are_no_number_are_no_pause() -> None:
    assert [seconds_of(t) for t in ("nan", "inf", "-inf", "1e999s", "")] == [0.0, 10.0, 0.0, 10.0, 0.0]


def test_a_pronunciation_replaces_the_words_it_names() -> None:
    entries = [
        Pronunciation("Kyutai", "cute eye"),
        Pronunciation("New York", "noo yawk"),
        Pronunciation("US", "you ess", case_sensitive=True),
    ]
    said = spoken_text("Kyutai, KYUTAI! In New York us and US. A new day.", ("en",), entries)
    assert said == "cute eye, cute eye! In noo yawk us and you ess. A new day."


def test_a_pronunciation_wins_over_a_rule_and_rules_win_in_their_order() -> None:
    assert spoken_text("5 km", ("en",), [Pronunciation("5", "fünf")]) == "fünf km"
    assert spoken_text("3,14 5 km", ("fr", "en")) == "trois virgule quatorze cinq kilomètres"
    assert spoken_text("12:30", ("NumberEn", "TimeEn")) == "twelve to thirty"
    assert spoken_text("12:30", ("TimeEn", "NumberEn")) == "twelve thirty"


def test_without_rules_words_are_only_cleaned() -> None:
    assert spoken_text("**It’s** 5 km 😀 (now).", ()) == "It's 5 km now."


def test_an_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(NameUnknown, match=r"unknown rewrite rule 'TimeXx'; there are: .*TimeEn.*"):
        TextFrontEnd(("TimeXx",))


@settings(max_examples=50, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_the_engines_feed_gives_the_same_entries_for_any_split(text: str, cuts: list[int]) -> None:
    def feed() -> ProseFeed:
        return ProseFeed(TextFrontEnd(), EntryMaker(lambda word: [4 + ord(c) for c in word]))

    whole, parts = feed(), feed()
    expected = whole.push(text) + whole.end()
    edges = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    found = tuple(entry for a, b in pairwise(edges) for entry in parts.push(text[a:b]))
    assert found + parts.end() == expected


def test_the_engines_feed_obeys_pauses_and_turns_and_reports_what_was_written() -> None:
    feed = ProseFeed(TextFrontEnd(), EntryMaker(lambda word: [4 + ord(c) for c in word]))
    entries = feed.push('$5 <break time="0.4s"/> <speaker 2> yes') + feed.end()
    assert [e.text for e in entries] == ["$5", "", "", "yes"]
    assert entries[2].padding == 5
    assert (entries[0].tokens[0], entries[3].tokens[0]) == (1, 2)


def test_gradiums_rule_names_are_known() -> None:
    assert {"TimeEn", "Date", "AlNum", "NumberEn", "EmailEn", "UrlEn", "PhoneEn"} <= rule_names().keys()

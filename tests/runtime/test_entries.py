"""Text to entries: however it is cut into pieces, the entries are the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.entries import KEPT_CHARS_MAX, PAUSE_S_MAX, WORDS_KEPT, EntryMaker, PlainFeed, keeping
from runtime.port import Entry


def encode(word: str) -> list[int]:
    return [4 + ord(c) % 500 for c in word]


def feed_of(text: str, cuts: list[int]) -> list[Entry]:
    feed = PlainFeed(EntryMaker(encode))
    entries: list[Entry] = []
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    for start, stop in itertools.pairwise(edges):
        entries += feed.push(text[start:stop])
    return entries + list(feed.end())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ['<break time="0.4s"/>', "<break", "<speaker 2>", "<speaker", ">", "a<b", "word", " ", "\n", "l’eau", ":"]
        )
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_any_cut_gives_the_same_entries(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert feed_of(text, cuts) == feed_of(text, []) == feed_of(text, list(range(len(text))))


def test_words_pauses_and_the_speaker_mark() -> None:
    entries = feed_of('Hello big <break time="0.4s"/> world', [])
    assert [e.text for e in entries] == ["Hello", "big", "", "world"]
    assert entries[0].tokens == (1, *encode("Hello"))
    assert entries[0].padding == 1 + 6 - 1
    assert entries[2] == Entry((), "", 5)


def test_a_speaker_tag_begins_a_turn() -> None:
    entries = feed_of("Hello <speaker 2>big <speaker 7> world <speaker 1> bye", [])
    assert [e.text for e in entries] == ["Hello", "big", "<speaker", "7>", "world", "bye"]
    assert [e.tokens[0] for e in entries if e.tokens[0] in (1, 2)] == [1, 2, 1]


def test_a_pause_is_bounded() -> None:
    assert feed_of('<break time="99999s"/>', []) == [Entry((), "", round(PAUSE_S_MAX * 12.5))]


def test_a_word_without_tokens_is_no_entry() -> None:
    assert EntryMaker(lambda _: []).word("?") == ()


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_turn_is_marked_with_its_speaker_once(turn: int) -> None:
    maker = EntryMaker(encode)
    for _ in range(turn):
        maker.word("before")
        maker.turn()
    first, second = maker.word("a"), maker.word("b")
    assert first[0].tokens[0] == 1 + turn % 2
    assert second[0].tokens == tuple(encode("b"))


def test_a_word_is_shown_without_controls() -> None:
    maker = EntryMaker(lambda text: [7] * len(text))
    [entry] = maker.word("gpj", "\u202egpj\x1b[31m\u2066\u200d\u00a0a\U0001f600")
    assert entry.text == "gpj[31m\u200d\u00a0a\U0001f600"


def test_words_of_late_are_not_encoded_again_and_only_so_many_are_kept() -> None:
    asked: list[str] = []

    def counting(word: str) -> list[int]:
        asked.append(word)
        return encode(word)

    kept = keeping(counting)
    long = "a" * (KEPT_CHARS_MAX + 1)
    for word in ("one", "two", "one", "", long, long, "two"):
        assert list(kept(word)) == encode(word)
    assert asked == ["one", "two", "", long, long]  # what is too long to be a word is not kept
    for n in range(WORDS_KEPT):
        kept(f"word {n}")
    asked.clear()
    kept("one")
    assert asked == ["one"]


def test_no_entry_can_change_what_is_kept() -> None:
    maker = EntryMaker(keeping(encode))
    first, again = maker.word("word")[0], maker.word("word")[0]
    assert (first.tokens, again.tokens) == ((1, *encode("word")), tuple(encode("word")))

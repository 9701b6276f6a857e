"""Words to phonemes: every word by itself, and something for every input."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.phonemes import Phonemizer, contexts, load
from runtime.text import Word, items_of
from runtime.text_scan import TOKEN_CHARS_MAX

LEXICON = {
    "hello": "həlˈO", "a": "ɐ", "stop": "stˈɑp", "cat": "kˈæt", "bus": "bˈʌs", "city": "sˈɪɾi", "bake": "bˈAk",
    "want": "wˈɑnt", "it's": "ɪts", "twenty": "twˈɛnti", "five": "fˈIv", "seven": "sˈɛvən", "cafe": "kæfˈA",
    "B.": "bˈi", "C.": "sˈi", "US": "jˌuˈɛs", "us": "ˌʌs", "two": "tˈu", "cut": "kˈʌt", "mister": "x", "mr": "mˈɪstəɹ",
    "A.": "ˈA", "Q.": "kjˈu", "id": "ˈɪd", "I.": "ˈI", "D.": "dˈi", "it": "ɪt",
}  # fmt: skip
RULES = {"B": "b", "I": "ˈɪ", "O": "ˈɑ", "sIt": "ˈI", "T": "t", "S": "s", "iT#": "d"}
READ = Phonemizer(LEXICON, RULES)


@pytest.mark.parametrize(
    ("written", "sounds"),
    [
        ("Hello,", "həlˈO,"), ("hello", "həlˈO"), ('"Hello!"', "həlˈO!"), ("(hello)", "həlˈO"), ("hello:", "həlˈO,"),
        ("hello—", "həlˈO,"), ("hello…", "həlˈO."), ("hello?!", "həlˈO?"), ("it’s", "ɪts"), ("café", "kæfˈA"),
        ("US", "jˌuˈɛs"), ("us", "ˌʌs"), ("Us", "ˌʌs"),
    ],
)  # fmt: skip
def test_a_known_word_keeps_its_punctuation_and_loses_its_quotes(written: str, sounds: str) -> None:
    assert READ.word(written) == sounds


@pytest.mark.parametrize(
    ("written", "sounds"),
    [
        ("cats", "kˈæts"), ("cat's", "kˈæts"), ("buses", "bˈʌsᵻz"), ("cities", "sˈɪɾiz"), ("stopped", "stˈɑpt"),
        ("baked", "bˈAkt"), ("baking", "bˈAkɪŋ"), ("wanted", "wˈɑntᵻd"), ("cutting", "kˈʌTɪŋ"), ("stopping", "stˈɑpɪŋ"),
    ],
)  # fmt: skip
def test_a_known_word_with_an_ending_is_known(written: str, sounds: str) -> None:
    assert READ.word(written) == sounds


def test_the_parts_of_a_compound_share_one_stress() -> None:
    assert READ.word("twenty-five,") == "twˌɛntifˈIv," or READ.word("twenty-five,") == "twˈɛntifˌIv,"


@pytest.mark.parametrize(
    ("written", "sounds"),
    [("A", "ɐ"), ("A,", "ˈA,"), ("q", "kjˈu"), ("Q.", "kjˈu."), ("Mr.", "mˈɪstəɹ"), ("ID", "ˌIdˈi"), ("IT", "ɪt"),
     ("It", "ˌɪt"), ("it", "ɪt")],
)
def test_letters_titles_and_capitals(written: str, sounds: str) -> None:
    assert READ.word(written) == sounds


def test_short_capitals_are_spelled_and_digits_are_named() -> None:
    assert READ.word("BC") == "bˌisˈi"
    assert READ.word("B2") == "bˈitˌu" or READ.word("B2") == "bˌitˈu"


def test_an_unknown_word_is_read_by_the_widest_rule() -> None:
    assert contexts("sit", 1)[:3] == ["I", "It", "sIt"]
    assert READ.word("bit") == "bˈɪd"
    assert READ.word("sito") == "sˈItˌɑ"


def test_several_words_for_one_are_several() -> None:
    assert READ.text("twenty five") == "twˈɛnti fˈIv"
    assert READ.text(" ... ") == ""


def test_a_text_word_by_word_is_the_text_at_once() -> None:
    words = ["Hello,", "it's", "twenty-five", "cats"]
    assert READ.phonemize(words) == [READ.word(w) for w in words]


@given(st.text(max_size=80))
def test_no_input_is_too_odd(text: str) -> None:
    sounds = READ.word(text)
    assert len(sounds) <= 4 * len(text) + 40
    assert "\n" not in sounds


def test_the_file_is_words_then_rules(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.tsv.gz"
    path.write_bytes(gzip.compress("cat\tkˈæt\nhello\thəlˈO\n\nB\tb\nI\tˈɪ".encode()))
    read = load(path)
    assert read.phonemize(["hello", "bi"]) == ["həlˈO", "bˈɪ"]


DEMO = load(Path(__file__).parents[2] / "voices/demo/lexicon.tsv.gz")


@pytest.mark.parametrize("letters", [3, 20, 59, 300, 3000])
def test_a_row_of_one_letter_is_spelled_and_not_for_long(letters: int) -> None:
    for letter in "abcdefghijklmnopqrstuvwxyzAZ":
        said = [DEMO.text(item.spoken) for item in items_of(f"Well {letter * letters} yes") if isinstance(item, Word)]
        assert len(said) == 2 + -(-letters // TOKEN_CHARS_MAX) and all(said), letter
        assert max(map(len, said)) <= 3 * 60


@pytest.mark.parametrize(
    ("written", "as_if"),
    [("αβ", "alpha-beta"), ("カタ", "ka-ta"), ("한국", "han-gug"), ("東,", "ideograph,"), ("Straße", "Strasse"),
     ("ł", "l"), ("aaaaaaaaa", "AAAAAA")],
)  # fmt: skip
def test_what_has_no_sound_of_its_own_is_called_by_its_letters(written: str, as_if: str) -> None:
    sounds = [DEMO.word(word).translate({ord(c): None for c in "ˈˌ"}) for word in (written, as_if)]
    assert sounds[0] and sounds[0][:2] == sounds[1][:2]


@given(st.text(alphabet=st.characters(categories=("L",)), min_size=1, max_size=250))
def test_no_word_with_a_letter_vanishes(word: str) -> None:
    said = [DEMO.text(item.spoken) for item in items_of(f"Well {word} yes") if isinstance(item, Word)]
    assert len(said) >= 3 and all(said)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "no rules"])
def test_a_damaged_file_is_a_value_error(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress("\n".join(f"w{n}\tk" for n in range(999)).encode() + b"\n\nA\ta")
    path = tmp_path / "lexicon.tsv.gz"
    path.write_bytes({
        "cut": whole[:-9], "flipped": whole[:40] + bytes(b ^ 255 for b in whole[40:60]) + whole[60:], "empty": b"",
        "text": b"<html>", "no rules": gzip.compress(b"w\tk\n"),
    }[damage])  # fmt: skip
    with pytest.raises((ValueError, gzip.BadGzipFile)):
        load(path)

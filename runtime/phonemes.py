"""Words to phonemes, one word at a time, for voices whose text is phonemes (`"text_frontend": "phonemes-en"`).

It comes after `runtime.text` (which has already written numbers out) and before the tokenizer. Every word is read on
its own, without its neighbours, so a text that arrives word by word gives the tokens of the whole text. Owns the order
of ways to read a word: the lexicon, the lexicon and an ending, letters spelled out, letter-to-sound rules, and for what
has no sound by any of these (a row of one letter, another script) the names of its first letters. The lexicon and the
rules are a file of the voice; `runtime.train.lexicon` makes it.

Sounds are written as in misaki, the alphabet of the teacher: one character a sound, a stress mark before its vowel.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

# Marks that change how a sentence is said, and what each becomes; anything else beside a word is dropped.
MARKS = {",": ",", ";": ",", ":": ",", "—": ",", "–": ",", ".": ".", "…": ".", "!": "!", "?": "?"}
TITLES = {"mr", "mrs", "ms", "dr", "st", "jr", "sr", "prof", "vs", "gen", "col", "lt", "sgt", "capt"}
SHORT_WORDS = {"am", "an", "as", "at", "be", "by", "do", "go", "he", "hi", "if", "in", "is", "it", "me", "my", "no",
               "of", "oh", "on", "or", "so", "to", "up", "us", "we"}  # fmt: skip
WEAK_WORDS = {"a", "the", "to", "in", "an", "am"}  # stay without stress where a sentence begins with them
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PRIMARY, SECONDARY = "ˈ", "ˌ"
VOWELS = frozenset("AIOQWYaiuæɑɐəɛɪɔɜʊʌᵊᵻ")
FLAPPING = frozenset("AIOWYiuæɑəɛɪɹʊʌ")  # a t between one of these and an ending becomes a flap, T
LEXICON_FILE = "lexicon.tsv.gz"  # in the directory of a checkpoint whose text is phonemes
WORD_LETTERS_MAX = 60  # of what is no word any more; the rest is cut, so that no input can take long
SPELLED_MAX = 6  # letters of a word that no other way gives a sound: enough to hear that it is there
# Latin letters that are no letter of English with a mark.
LATIN = str.maketrans({
    "’": "'", "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
    "đ": "d", "Đ": "D", "ð": "th", "Ð": "Th", "þ": "th", "Þ": "Th", "ı": "i",
})  # fmt: skip
_PARTS = re.compile(r"[a-zA-Z']+|\d")
_TAIL = re.compile(r"[^\w']*$")
_SPELLED = re.compile(r"[B-HJ-Z]|[A-Z]{2,5}")
EDGE = "#"
REACH = ((0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4))  # letters left and right of a rule


class Phonemizer:
    """Reads words aloud on paper. Made once; holds no state between words."""

    def __init__(self, lexicon: Mapping[str, str], rules: Mapping[str, str]) -> None:
        """lexicon: word -> sounds; rules: context with its letter in upper case -> sounds of that letter."""
        self._lexicon, self._rules = lexicon, rules

    def phonemize(self, words: Iterable[str]) -> list[str]:
        """The sounds of each word, its punctuation kept at the end; "" for a word that has no sound."""
        return [self.word(word) for word in words]

    def text(self, text: str) -> str:
        """The sounds of what one written word is read as, which may be several words: "twelve dollars"."""
        return " ".join(sounds for sounds in self.phonemize(text.split()) if sounds)

    def word(self, text: str) -> str:
        """One word, such as `isn't` or `"twenty-five,"`."""
        plain = (text if text.isascii() else _without_marks(text))[:WORD_LETTERS_MAX]
        parts = [p for p in _PARTS.findall(plain) if p.strip("'")]
        parts = parts or names(text)
        if not parts:
            return ""
        mark = "" if plain[-1:].isalnum() else next((MARKS[c] for c in _tail(plain) if c in MARKS), "")
        if mark == "." and len(parts) == 1 and parts[0].lower() in TITLES:
            mark = ""  # a title's full stop ends no sentence
        if len(parts) == 1 and _is_letter(parts[0], mark):
            return self._lexicon.get(f"{parts[0].upper()}.", "") + mark
        return join([self._part(p) for p in parts]) + mark

    def _part(self, part: str) -> str:
        """Letters and apostrophes, or one digit."""
        if part.isdigit():
            return self._lexicon.get(DIGITS[int(part)], "")
        known = self._known(part)
        if known:
            return _opening(known) if part.istitle() and part.lower() not in WEAK_WORDS else known
        if _SPELLED.fullmatch(part):
            return self._spelled(part)
        letters = part.replace("'", "")
        return self._by_rule(letters.lower()) or self._spelled(letters.upper()[:SPELLED_MAX])

    def _known(self, part: str) -> str | None:
        lower = part.lower()
        if len(part) == 2 and part.isupper() and part not in self._lexicon and lower not in SHORT_WORDS:
            return None
        for form in (part, lower, lower.strip("'")):
            if form in self._lexicon:
                return self._lexicon[form]
        return self._with_ending(lower.strip("'"))

    def _with_ending(self, word: str) -> str | None:
        """A word of the lexicon with -'s, -s, -es, -ies, -ed, -d or -ing."""
        for ending, fillings, add in (
            ("'s", ("",), plural), ("ies", ("y",), plural), ("es", ("", "e"), plural), ("s", ("",), plural),
            ("ed", ("", "e"), past), ("ing", ("", "e"), gerund),
        ):
            stem = word.removesuffix(ending)
            if stem == word or len(stem) < 2:
                continue
            for filling in (*fillings, None):
                # Nothing to fill in: "stopped" is "stop" with its last letter doubled.
                full = stem + filling if filling is not None else stem[:-1] if stem[-1:] == stem[-2:-1] else ""
                if full in self._lexicon:
                    return add(self._lexicon[full])
        return None

    def _spelled(self, part: str) -> str:
        """Letters by their names, the last one stressed."""
        names = [self._lexicon.get(f"{c}.", "").replace(PRIMARY, SECONDARY) for c in part]
        return "".join(names[:-1]) + names[-1].replace(SECONDARY, PRIMARY)

    def _by_rule(self, word: str) -> str:
        """Letter by letter, the widest context that a rule knows deciding."""
        out = "".join(self._letter(word, at) for at in range(len(word)))
        first, *rest = out.split(PRIMARY)
        if rest:
            # One main stress a word.
            return first + PRIMARY + rest[0] + "".join(SECONDARY + r for r in rest[1:])
        vowel = next((i for i, c in enumerate(out) if c in VOWELS), None)
        return out if vowel is None else out[:vowel].rstrip(SECONDARY) + PRIMARY + out[vowel:]

    def _letter(self, word: str, at: int) -> str:
        return next((self._rules[key] for key in reversed(contexts(word, at)) if key in self._rules), "")


def _without_marks(text: str) -> str:
    """Letters without their accents: English has none."""
    return "".join(c for c in unicodedata.normalize("NFKD", text.translate(LATIN)) if not unicodedata.combining(c))


def _tail(plain: str) -> str:
    """What stands after the last letter, digit or apostrophe."""
    tail = _TAIL.search(plain)
    return tail.group() if tail else ""


def _opening(sounds: str) -> str:
    """A capital gives a word without stress a light one: most often it opens the sentence."""
    if PRIMARY in sounds or SECONDARY in sounds:
        return sounds
    at = next((i for i, c in enumerate(sounds) if c in VOWELS), None)
    return sounds if at is None else sounds[:at] + SECONDARY + sounds[at:]


def _is_letter(part: str, mark: str) -> bool:
    """Whether a word of one letter is the letter's name: all are but the article and the pronoun."""
    return len(part) == 1 and part.isalpha() and (part not in "aAiI" or (part == "A" and mark != ""))


def names(text: str) -> list[str]:
    """What the first letters of a word in another script are called: `alpha`, `ka` for the syllable, `ideograph`."""
    letters = [c for c in unicodedata.normalize("NFC", text) if c.isalpha()][:SPELLED_MAX]
    return [re.sub("[^a-z]", "", _last_name(c)) or "letter" for c in letters]


def _last_name(char: str) -> str:
    return unicodedata.name(char, "letter").split()[-1].partition("-")[0].lower()


def contexts(word: str, at: int) -> list[str]:
    """The rule keys for letter `at`, narrowest first: `#cAt` is the a of cat with one letter before and after."""
    padded = EDGE * 4 + word + EDGE * 4
    at += 4
    return [padded[at - left : at] + padded[at].upper() + padded[at + 1 : at + 1 + right] for left, right in REACH]


def join(parts: list[str]) -> str:
    """The parts of a hyphenated word in one breath: the lighter half loses its main stress."""
    stressed = sorted((sum(c in VOWELS for c in p), i) for i, p in enumerate(parts) if PRIMARY in p)
    lighter = {i for _, i in stressed[: len(stressed) // 2]}
    return "".join(p.replace(PRIMARY, SECONDARY) if i in lighter else p for i, p in enumerate(parts))


def plural(stem: str) -> str:
    if stem[-1] in "ptkfθ":
        return stem + "s"
    return stem + ("ᵻz" if stem[-1] in "szʃʒʧʤ" else "z")


def past(stem: str) -> str:
    if stem[-1] in "pkfθʃsʧ":
        return stem + "t"
    if stem[-1] == "d":
        return stem + "ᵻd"
    if stem[-1] == "t":
        return stem[:-1] + "Tᵻd" if stem[-2:-1] in FLAPPING else stem + "ᵻd"
    return stem + "d"


def gerund(stem: str) -> str:
    return stem[:-1] + "Tɪŋ" if stem[-1] == "t" and stem[-2:-1] in FLAPPING else stem + "ɪŋ"


def load(path: Path) -> Phonemizer:
    """Reads `word<TAB>sounds` lines, an empty line, then `context<TAB>sounds` lines; gzip, UTF-8.

    Raises OSError for a file that cannot be read, ValueError for what is none of this.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            words, _, rules = file.read().partition("\n\n")
    except (EOFError, zlib.error) as why:  # cut off, or damaged
        raise ValueError(str(why)) from None
    if not words or not rules:
        raise ValueError("holds no words, or no rules")
    tables = [dict(line.split("\t", 1) for line in part.splitlines()) for part in (words, rules)]
    return Phonemizer(*tables)

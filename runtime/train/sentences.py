"""Stage 1 of the demo voice: the sentences that the teacher will read.

Owns what text is read and where it came from, nothing about sound. Three kinds of source, all readable
offline: WordNet's examples and glosses (a wide vocabulary in short natural phrases), the documentation that
comes with Python and its packages (long sentences with clauses), and templates of our own (names, money,
times, numbers, letters, one-word answers: what a speech service is really asked to say).

    python -m runtime.train.sentences --wordnet DIR --out WORK/sentences.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PROSE = re.compile(r"[A-Z][A-Za-z,;' -]+[.!?]")
_CODE = re.compile(r"[A-Z]{3,}|\b[a-z]+[A-Z]|\b(?:e\.g|i\.e|etc)\b|--")


def words(text: str) -> list[str]:
    return text.split()


def phrases(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


NAMES = words("""
    Anna Brian Carla David Emma Frank Grace Henry Irene James Karen Louis Maria Nathan Olivia Peter Rachel Simon
    Teresa Victor Walter Yvonne Alice Bob Carol Daniel Eleanor Fred George Hannah Isabel Jack Kate Laura Michael
    Nora Oscar Paul Robert Sarah Thomas Ursula William Zoe Smith Jones Miller Davis Wilson Taylor Clark Lewis
    Young Walker Hall Allen King Wright Scott Green Baker Adams Nelson Hill Campbell Mitchell Roberts Carter
    Phillips""")
THINGS = words("""
    order appointment package invoice account ticket refund payment device router password subscription meeting
    flight room report delivery insurance card phone photo garden river mountain kitchen window coffee music
    book letter story dinner market station bridge doctor teacher driver engineer agent model voice server
    machine picture table chair bottle village school hospital library computer message email website button
    screen battery question answer problem idea plan project company customer manager student child friend
    neighbor sister brother mother father morning evening summer winter spring weather storm ocean island forest
    animal horse dog cat bird""")
VERBS = words("""
    check update confirm cancel send open close move find bring review change start finish repair order schedule
    explain remember choose describe measure deliver collect prepare replace return save share test visit watch
    write read paint carry build clean cook draw follow hold keep learn leave offer print push pull record""")
TIMES = """today;tomorrow morning;on Monday;on Tuesday afternoon;on Wednesday;on Thursday evening;on Friday;next week;
in ten minutes;at half past three;before noon;after lunch;at eleven thirty;in the morning;this weekend;on Saturday;
on Sunday night;at quarter to nine;by the end of the month;in January;in February;in March;in April;in May;in June;
in July;in August;in September;in October;in November;in December;right now;as soon as possible;twice a day;
every other week;at seven o'clock;at noon;around midnight;in two thousand and nineteen""".replace("\n", "").split(";")
KINDS = words("""
    new small large quiet bright cold warm early late simple quick careful heavy empty busy friendly strange
    beautiful broken final green yellow red blue black white old young happy angry perfect wonderful difficult
    easy famous hungry gentle curious serious modern ancient wooden golden""")
PLACES = """near the river;in the kitchen;at the station;on the second floor;by the window;in the city;at the office;
on the bridge;in the garden;behind the house;in New York;in London;across the street;under the table;at the airport;
in the hospital;at the front desk;in the next room;on the first page;at home""".replace("\n", "").split(";")
SMALL = words("""
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty""")
TENS = words("""
    twenty thirty forty fifty sixty seventy eighty ninety""")
FRAMES = [
    "Hello {n}, your {t} will be ready {w}.",
    "Please {v} the {a} {t} {w}.",
    "I can {v} your {t} {w} if you like.",
    "The {a} {t} {p} is not working {w}.",
    "Could you {v} the {t} for {n} {w}?",
    "{n} wants to {v} a {a} {t} {p}.",
    "Thank you, {n}, we will {v} your {t} {w}.",
    "There is a {a} {t} {p} and a {b} {u} next to it.",
    "We have {k} {a} letters and {k} {t}s {p}.",
    "Do not {v} the {t} until {n} calls {w}.",
    "My {t} was {a}, so I had to {v} it {w}.",
    "How do I {v} the {a} {t} {p}?",
    "Your total is {k} dollars and {k} cents.",
    "It costs {k} euros, or {k} pounds {w}.",
    "The code is {d}, {d}, {d}, {d}.",
    "Call me at {d} {d} {d}, {d} {d} {d} {d}.",
    "The answer is {k} point {d} {d}.",
    "About {k} percent of the {t}s are {a}.",
    "{n} was born in nineteen {k}.",
    "The meeting with {n} is {w}, {p}.",
    "Press {d} to {v} your {t}, or {d} to speak with {n}.",
    "Yes, {n}.",
    "Good morning, {n}!",
    "Good evening, {n}, how are you?",
    "Why is the {t} so {a}?",
    "What a {a} {t}!",
    "When will the {t} be {a}?",
    "{n} and {m} live {p}.",
    "Is it {a} or {b}?",
    "Well, I think the {t} is {a}, but the {u} is {b}.",
    "{k} {t}s, {k} {u}s and {k} {a} {x}s.",
    "The {t}, the {u} and the {x} are all {a}.",
    "Spell it as {l}, {l}, {l}.",
    "The file is called {l} {l} {d}.",
    "Let me {v} the {t} and {y} the {u} {w}.",
    "Mr. {n} and Mrs. {m} will {v} the {t} {w}.",
]
WORDS = """hello;yes;no;okay;thanks;thank you;goodbye;sorry;please;maybe;of course;all right;good night;welcome;sure;
never mind;excuse me;one moment, please;see you tomorrow;great;wonderful;I see;really;wait;stop;go;done;ready;
I don't know;not yet;that's right;you're welcome;how are you;nice to meet you;what's your name;I'm fine;
let's go;come in;be careful;no problem""".replace("\n", "").split(";")


def number(draw: random.Random) -> str:
    """A spoken number below ten thousand; the small ones are the common ones."""
    kind = draw.randrange(4)
    if kind < 2:
        return draw.choice(SMALL)
    tens = draw.choice(TENS) + ("" if draw.random() < 0.3 else "-" + draw.choice(SMALL[:9]))
    if kind == 2:
        return tens
    scale = draw.choice(["hundred", "thousand"])
    return f"{draw.choice(SMALL[:9])} {scale}" + (f" and {tens}" if draw.random() < 0.6 else "")


def from_templates(count: int, draw: random.Random) -> Iterator[str]:
    """Sentences of our own making, so that names, money, times and letters are well covered."""
    for word in WORDS:
        for end in ".!?":
            yield word[0].upper() + word[1:] + end
    for word in THINGS + KINDS + VERBS + NAMES + SMALL + TENS:
        yield word[0].upper() + word[1:] + "."
    slots = {"n": NAMES, "m": NAMES, "t": THINGS, "u": THINGS, "x": THINGS, "v": VERBS, "y": VERBS, "w": TIMES,
             "a": KINDS, "b": KINDS, "p": PLACES, "d": ["zero", *SMALL[:9]], "l": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
    for _ in range(count):
        line = draw.choice(FRAMES)
        line = re.sub(r"\{k\}", lambda _: number(draw), line)
        line = re.sub(r"\{(\w)\}", lambda m: draw.choice(slots[m.group(1)]), line)
        yield line[0].upper() + line[1:]


def prose(text: str) -> Iterator[str]:
    """Whole sentences of plain words; anything that looks like code is left out."""
    for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        line = re.sub(r"\s+", " ", part).strip()
        if _PROSE.fullmatch(line) and 4 <= len(line.split()) <= 22 and not _CODE.search(line):
            yield line


def from_python(licences: dict[str, str]) -> Iterator[str]:
    """Docstrings and help topics of the standard library, then the METADATA of what is installed."""
    from pydoc_data import topics

    licences["python"] = f"Python {sys.version.split()[0]} documentation and docstrings, PSF-2.0"
    for text in topics.topics.values():
        yield from prose(text)
    for name in sorted(sys.stdlib_module_names):
        if name in {"antigravity", "this", "idlelib"} or name.startswith("_"):
            continue
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError):
            continue
        yield from prose(inspect.getdoc(module) or "")
        for thing in vars(module).values():
            if inspect.isclass(thing) or inspect.isroutine(thing):
                yield from prose(inspect.getdoc(thing) or "")
                for inner in vars(thing).values() if inspect.isclass(thing) else ():
                    yield from prose(inspect.getdoc(inner) or "" if inspect.isroutine(inner) else "")
    for dist in sorted(importlib.metadata.distributions(), key=lambda d: d.name.lower()):
        lines = list(prose(dist.read_text("METADATA") or ""))
        if lines:
            meta = dist.metadata.json
            kinds = [c for c in meta.get("classifier", ()) if c.startswith("License")]
            said = meta.get("license_expression") or (kinds[0] if kinds else str(meta.get("license", "unknown"))[:40])
            licences[f"README of {dist.name} {dist.version}"] = str(said)
        yield from lines


def from_wordnet(folder: Path, licences: dict[str, str]) -> Iterator[str]:
    """Examples, then glosses, as sentences: capital letter, full stop."""
    licences["wordnet"] = "WordNet 3.0, Princeton University, WordNet licence (permissive)"
    for part in ("verb", "noun", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            _, mark, gloss = line.partition(" | ")
            for piece in re.findall(r'"([^"]+)"|([^";(]+)', gloss) if mark and not line.startswith("  ") else ():
                text = re.sub(r"\s+", " ", piece[0] or piece[1]).strip(" ,;:.")
                text = text[:1].upper() + text[1:]
                text += "" if text.endswith(("?", "!")) else "."
                low = 4 if piece[0] else 6
                if _PROSE.fullmatch(text) and low <= len(text.split()) <= 16 and not _CODE.search(text):
                    yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, help="folder with data.noun, data.verb, data.adj, data.adv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--templates", type=int, default=9000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw, licences = random.Random(args.seed), {"templates": "our own, Apache-2.0"}
    found: dict[str, str] = {}
    sources = [("templates", from_templates(args.templates, draw)), ("python", from_python(licences))]
    if args.wordnet:
        sources.append(("wordnet", from_wordnet(args.wordnet, licences)))
    for source, lines in sources:
        for text in lines:
            found.setdefault(text, source)
    lines_out = [{"text": text, "source": source} for text, source in sorted(found.items())]
    draw.shuffle(lines_out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(json.dumps(line) + "\n" for line in lines_out))
    args.out.with_suffix(".licences.json").write_text(json.dumps(licences, indent=1, sort_keys=True) + "\n")
    vocabulary = {w.lower().strip(".,;!?") for text in found for w in text.split()}
    per = {s: sum(1 for v in found.values() if v == s) for s, _ in sources}
    print(json.dumps({"sentences": len(found), "by_source": per, "vocabulary": len(vocabulary)}))


if __name__ == "__main__":
    main()

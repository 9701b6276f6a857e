"""The demo voice's lexicon and letter-to-sound rules, from what the teacher's package brings (misaki, Apache-2.0).

A word's reading is the one that the teacher used most in the training sentences, else the dictionary's default one:
the product reads each word without its neighbours. The rules are what a lazy learner keeps of the dictionary: for each
letter, the sounds it most often gives in ever wider contexts, kept only where a wider context changes the answer.
The check of this stage: rules and lexicon are measured on words kept out of the rules.

    python -m runtime.train.lexicon --shards WORK/shards --out WORK/lexicon.tsv.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from runtime.phonemes import EDGE, MARKS, PRIMARY, SECONDARY, Phonemizer, contexts, load

CHUNK_MAX = 3  # sounds of one letter: "x" in "xylophone", "u" in "use"
MIN_SEEN = 3


def dictionary() -> dict[str, str]:
    """misaki's two word lists; the careful one wins. Letters' names are kept under "B."."""
    import hibari  # type: ignore[import-not-found,unused-ignore]

    assets = Path(hibari.__file__).parent / "assets"
    out: dict[str, str] = {}
    upper: dict[str, str] = {}
    for name in ("silver", "gold"):
        with gzip.open(assets / f"lexicon_us_{name}.json.gz", "rt", encoding="utf-8") as file:
            entries: dict[str, Any] = json.load(file)
        for word, said in sorted(entries.items(), key=lambda e: (not e[0].islower(), e[0]), reverse=True):
            sounds = said if isinstance(said, str) else said["DEFAULT"]
            # The teacher writes a flap as T and a glottal stop as t when it has read a sentence.
            sounds = (sounds or "").replace("ɾ", "T").replace("ʔ", "t")
            if not sounds or not re.fullmatch(r"[A-Za-z]+(?:'[A-Za-z]+)?|'[a-z]+", word):
                continue
            if len(word) == 1 and word.isupper():
                out[f"{word}."] = sounds
            elif word.isupper():
                upper[word] = sounds
            else:
                out[word.lower()] = sounds
    return out | {w: s for w, s in upper.items() if out.get(w.lower()) != s}


def as_read(folder: Path) -> dict[str, str]:
    """The most common reading of each word in the teacher's sentences."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.glob("shard??.npz")):
        for line in json.loads(str(np.load(path)["meta"])):
            words, said = line["text"].split(), line["phonemes"].split()
            if len(words) == len(said):
                for word, sounds in zip(words, said, strict=True):
                    core = word.strip(".,;:!?").lower()
                    if re.fullmatch(r"[a-z]+(?:'[a-z]+)?", core) and (len(core) > 1 or core in "ai"):
                        seen[core][sounds.strip("".join(MARKS))] += 1
    return {w: c.most_common(1)[0][0] for w, c in seen.items() if c.total() >= MIN_SEEN and c.most_common(1)[0][0]}


def symbols(sounds: str) -> list[str]:
    """Sounds with each stress mark joined to its vowel."""
    return re.findall(f"[{PRIMARY}{SECONDARY}]?.", sounds)


def align(word: str, said: list[str], cost: dict[tuple[str, str], float]) -> list[str] | None:
    """The cheapest way to give each letter at most CHUNK_MAX sounds, in order."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for letter in word:
        row: dict[int, tuple[float, int]] = {}
        for at, (so_far, _) in best[-1].items():
            for take in range(min(CHUNK_MAX, len(said) - at) + 1):
                chunk = "".join(said[at : at + take])
                total = so_far + cost.get((letter, chunk), 9.0 + 3 * take)
                if at + take not in row or total < row[at + take][0]:
                    row[at + take] = (total, at)
        best.append(row)
    if len(said) not in best[-1]:
        return None
    at, out = len(said), []
    for row in reversed(best[1:]):
        before = row[at][1]
        out.append("".join(said[before:at]))
        at = before
    return out[::-1]


def learn_costs(pairs: list[tuple[str, list[str]]], rounds: int) -> dict[tuple[str, str], float]:
    """Minus log probability of a chunk of sounds given its letter, by hard expectation-maximisation."""
    counts: Counter[tuple[str, str]] = Counter()
    for word, said in pairs:
        for i, letter in enumerate(word):
            at = int(i * len(said) / len(word))
            counts[letter, said[min(at, len(said) - 1)]] += 3
            counts[letter, ""] += 1
    cost: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        letters: Counter[str] = Counter()
        for (letter, _), n in counts.items():
            letters[letter] += n
        cost = {k: -math.log(n / letters[k[0]]) for k, n in counts.items()}
        counts = Counter()
        for word, said in pairs:
            counts.update(zip(word, align(word, said, cost) or [""] * len(word), strict=True))
    return cost


def learn_rules(pairs: list[tuple[str, list[str]]], cost: dict[tuple[str, str], float]) -> dict[str, str]:
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    parent: dict[str, str] = {}
    for word, said in pairs:
        chunks = align(word, said, cost)
        for at, chunk in enumerate(chunks or []):
            keys = contexts(word, at)
            for narrow, key in zip(["", *keys], keys, strict=False):
                seen[key][chunk] += 1
                parent[key] = narrow
    rules: dict[str, str] = {}
    answer: dict[str, str] = {"": EDGE}
    for key in sorted(seen, key=len):
        chunk, n = seen[key].most_common(1)[0]
        wide = len(key) > 2
        if chunk != answer[parent[key]] and (not wide or n >= MIN_SEEN):
            rules[key] = answer[key] = chunk
        else:
            answer[key] = answer[parent[key]]
    return rules


def write(path: Path, words: dict[str, str], rules: dict[str, str]) -> None:
    parts = ["\n".join(f"{k}\t{v}" for k, v in sorted(table.items())) for table in (words, rules)]
    # A fixed time in the header keeps the file a function of its content.
    path.write_bytes(gzip.compress("\n\n".join(parts).encode(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    words = dictionary() | as_read(args.shards)
    pairs = [(w, symbols(s)) for w, s in sorted(words.items()) if w.isalpha() and w.islower() and len(w) > 2]
    random.Random(args.seed).shuffle(pairs)
    held, pairs = pairs[:2000], pairs[2000:]
    cost = learn_costs(pairs[:16000], 4)
    rules = learn_rules(pairs, cost)
    write(args.out, words, rules)
    ruled = Phonemizer({}, rules)
    plain = [(w, "".join(s)) for w, s in held]
    right = sum(ruled.word(w) == s for w, s in plain) / len(plain)
    bare = str.maketrans("", "", PRIMARY + SECONDARY)
    near = sum(ruled.word(w).translate(bare) == s.translate(bare) for w, s in plain) / len(plain)
    if load(args.out).word("hello") != words["hello"]:
        raise SystemExit("the written lexicon does not read back")
    print(json.dumps({"words": len(words), "rules": len(rules), "bytes": args.out.stat().st_size,
                      "held_out_words_right_by_rule": right, "but_for_stress": near}))


if __name__ == "__main__":
    main()

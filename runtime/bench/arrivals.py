"""When calls come and how their text comes. Pure and seeded: the same seed gives the same load.

Calls are open loop: they come when they come, whether or not the server keeps up, and each is timed from the moment it
was due. A loop that waits for answers would slow down with the server and hide exactly what is asked about.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

# Of the kind callers hear: orders, times, money, names. Short first: most turns are.
PROMPTS = (
    "Thanks for calling. How can I help you today?",
    "One moment please, I am looking that up for you.",
    "Your order number is four eight one five, and it ships on Monday.",
    "The total comes to forty two dollars and sixteen cents.",
    "Your appointment is on Thursday the third at half past nine in the morning.",
    "I can see two flights to Denver, one at seven and one at eleven fifteen.",
    "Could you spell your last name for me, please?",
    "The package was left at the front desk at ten past four.",
    "Your balance is one thousand two hundred and six dollars.",
    "I have moved your reservation to table nine at eight o'clock.",
    "Please stay on the line while I connect you to the billing department.",
    "The doctor can see you tomorrow between two and three in the afternoon.",
)


@dataclass(frozen=True, slots=True)
class Call:
    due_s: float  # from the start of the run
    text: str
    seed: int


def longer(prompts: tuple[str, ...], words: int) -> tuple[str, ...]:
    """The prompts, each followed by the next ones until it has so many words."""
    out = []
    for n in range(len(prompts)):
        text, k = prompts[n], n
        while len(text.split()) < words:
            k += 1
            text += " " + prompts[k % len(prompts)]
        out.append(text)
    return tuple(out)


def calls(count: int, *, rate: float, seed: int, even: bool = False, prompts: tuple[str, ...] = PROMPTS) -> list[Call]:
    """`count` calls at `rate` a second: at random times (Poisson), or evenly spaced."""
    rng = random.Random(seed)
    due, out = 0.0, []
    for n in range(count):
        due += 1.0 / rate if even else rng.expovariate(rate)
        out.append(Call(due, prompts[rng.randrange(len(prompts))], seed * 1_000_003 + n))
    return out


def pieces(text: str, tokens_per_s: float, seed: int) -> list[tuple[float, str]]:
    """The text as an LLM would send it: (seconds after the first, piece); with 0 tokens a second, whole and at once.

    Pieces are about four characters and cut words apart, as tokens do; their times jitter by half.
    """
    if not tokens_per_s:
        return [(0.0, text)]
    rng = random.Random(seed)
    out: list[tuple[float, str]] = []
    at = 0.0
    for token in re.findall(r"\s*\S{1,4}", text):
        out.append((at, token))
        at += rng.uniform(0.5, 1.5) / tokens_per_s
    return out


def words(text_pieces: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The same text in whole words, each sent when its last piece came: for servers that join messages by a space."""
    out: list[tuple[float, str]] = []
    held = ""
    for at, piece in text_pieces:
        if piece[:1].isspace() and held:
            out.append((at, held))
            held = ""
        held += piece.strip() if not held else piece.rstrip()
    if held:
        out.append((text_pieces[-1][0], held))
    return out

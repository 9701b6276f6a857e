"""Owns characters that arrive in two halves. Pure.

Clients whose strings are UTF-16 (JavaScript, Java) may cut a text within an emoji and send each half as an escape of
its own. Nothing after this knows halves: no tokenizer takes them, and no answer that holds one can be sent.
"""

from __future__ import annotations


def joined(half: str, piece: str) -> tuple[str, str]:
    """The text of `half` and `piece` with its halves joined, and the half at its end whose other one may still come.

    Halves that belong to nothing become U+FFFD, which is not spoken.
    """
    text = half + piece
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    text = text[: len(text) - len(half)]
    if not is_whole(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text, half


def is_whole(text: str) -> bool:
    """Whether it holds no half of a character."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

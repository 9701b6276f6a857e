"""Owns reading an address that a person typed, and a secret that a file or a variable holds."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from bdn.errors import Usage


def split_address(url: str) -> SplitResult:
    """The parts of a URL. Raises Usage where brackets or port are off, which urlsplit tells late or as ValueError."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as why:
        raise Usage(f"not an address: {url[:200]!r}", hint=str(why)) from None
    return parts


def check_secret(secret: str, what: str) -> None:
    """Raises Usage, without the secret, for one that no header can hold: a file's last line break, most often."""
    if not secret.isascii() or any(c <= " " or c == "\x7f" for c in secret):
        raise Usage(f"{what} holds a space, a line break or another character that none has", hint="set it again")

"""Owns the name of bytes: a BLAKE3-256 digest, written `b3:` and 64 lower-case hex digits.

A digest is also used to build paths and URLs, so the text form is parsed strictly and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from blake3 import blake3

_TEXT = re.compile(r"b3:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """BLAKE3-256 of some bytes. `raw` is the 32 bytes; `str()` gives the text form."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise ValueError(f"a digest has 32 bytes, not {len(self.raw)}")

    @staticmethod
    def of(data: bytes | memoryview) -> Digest:
        return Digest(blake3(data).digest())

    @staticmethod
    def parse(text: str) -> Digest:
        """The digest written as `b3:<64 hex>`; raises ValueError for anything else."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"not a digest: {text[:80]!r} (expected b3: and 64 lower-case hex digits)")
        return Digest(bytes.fromhex(text[3:]))

    @staticmethod
    def from_hex(text: str) -> Digest:
        """The digest written as 64 hex digits, as manifests and object keys hold it; ValueError otherwise."""
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        # Written back it must be the same text: `fromhex` would take capitals and spaces as well. Cheaper than a
        # regular expression, for thousands of files.
        if len(raw) != 32 or raw.hex() != text:
            raise ValueError(f"not a digest: {text[:80]!r} (expected 64 lower-case hex digits)")
        return Digest(raw)

    @property
    def hex(self) -> str:
        return self.raw.hex()

    @property
    def short(self) -> str:
        """For people: enough to tell two models apart, never to look one up."""
        return f"b3:{self.raw[:6].hex()}…"

    def __str__(self) -> str:
        return f"b3:{self.raw.hex()}"


class Hasher:
    """A digest in the making, fed while the bytes are hot in cache. Releases the GIL on large updates."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, piece: bytes | bytearray | memoryview) -> None:
        self._state.update(piece)

    def digest(self) -> Digest:
        return Digest(self._state.digest())

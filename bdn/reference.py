"""Owns how a person names a model: `name[:tag][@b3:…]`, or a bare digest."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bdn.digest import Digest
from bdn.errors import Usage

DEFAULT_TAG = "latest"
# Names become object keys and file names, and some file systems take two cases of a letter for one: lower case only.
_SEGMENT = r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,3}}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_GRAMMAR = "expected name[:tag][@b3:<64 hex digits>], such as kyutai/tts-1.6b:2026-11"


@dataclass(frozen=True, slots=True)
class Reference:
    """A model as asked for. A tag may move; with a digest it is that manifest and no other, whatever the tag says."""

    name: str
    tag: str
    digest: Digest | None = None

    def __str__(self) -> str:
        if not self.name:
            return str(self.digest)
        pinned = f"@{self.digest}" if self.digest else ""
        return f"{self.name}:{self.tag}{pinned}"


def parse_reference(text: str) -> Reference:
    """Raises Usage for anything that is not a reference; names become object keys, so `..` must not pass."""
    try:
        return Reference("", "", Digest.parse(text.removeprefix("@")))
    except ValueError:
        pass
    if "://" in text or text.startswith(("/", "./", "../", "~")):
        hint = "that is where a model comes from: `bdn mirror` it, then ask for the name that `bdn ls` lists"
        raise Usage(f"not a model name: {text[:200]!r}", hint=hint)
    head, at, pin = text.partition("@")
    name, colon, tag = head.partition(":")
    digest = None
    if at:
        try:
            digest = Digest.parse(pin)
        except ValueError as why:
            raise Usage(f"not a model reference: {text[:200]!r}: {why}") from None
    return Reference(check_name(name), check_tag(tag) if colon else DEFAULT_TAG, digest)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        hint = "lower-case letters, digits, '.', '_', '-', at most three '/' between; " + _GRAMMAR
        near = likely_name(name)
        raise Usage(f"not a model name: {name[:200]!r}", hint=f"did you mean {near}?" if near else hint)
    return name


def likely_name(text: str) -> str:
    """The name that was probably meant: in lower case, with '-' for what a name cannot have. Empty: no idea."""
    near = re.sub(r"[^a-z0-9._/-]+", "-", text.lower()).strip("-./_")
    return near if near != text and _NAME.fullmatch(near) and ".." not in near else ""


def check_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag) or ".." in tag:
        raise Usage(f"not a tag: {tag[:200]!r}", hint=f"letters, digits, '.', '_', '-', at most 128; {_GRAMMAR}")
    return tag

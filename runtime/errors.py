"""Everything the runtime raises on purpose, one tree. It owns no recovery: who catches an error decides that.

All of these are of the invalid kind: a person must act, so each message is one line: what, where, what next.
"""

from __future__ import annotations

from collections.abc import Iterable


class SpeechError(Exception):
    """Anything the speech runtime refuses or fails at, with one line a person can act on."""


class CheckpointInvalid(SpeechError):
    """A tensor or a config value is missing, extra or wrong. `where` names it; `why` says what was expected."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where}: {why}")


class NameUnknown(SpeechError):
    """A name that is not among the known ones: a voice, an audio format. The message lists those there are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}; there are: {', '.join(self.known) or '(none)'}")

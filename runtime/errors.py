"""Everything the runtime raises on purpose, one tree. It owns no recovery: who catches an error decides that.

All of these are of the invalid kind: a person must act, so each message is one line: what, where, what next.
"""

from __future__ import annotations

from collections.abc import Iterable


class SpeechError(Exception):
    """Anything the speech runtime refuses or fails at, with one line a person can act on."""

    exit_code = 1  # of the command that it stops


class Usage(SpeechError):
    """The command line or a setting says something that cannot be meant. `hint` says what can."""

    exit_code = 2

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(f"{why}; {hint}" if hint else why)


class CheckpointInvalid(SpeechError):
    """A tensor or a config value is missing, extra or wrong. `where` names it; `why` says what was expected."""

    exit_code = 3

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        # Names come from files that anybody may have written.
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in f"{where}: {why}"))


class NameUnknown(SpeechError):
    """A name that is not among the known ones: a voice, an audio format. The message lists those there are."""

    exit_code = 2

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}; there are: {', '.join(self.known) or '(none)'}")


class SpecInvalid(SpeechError):
    """A stream asks for a value that the model cannot give. `setting` names it; `why` holds the bounds."""

    exit_code = 2

    def __init__(self, setting: str, why: str) -> None:
        self.setting, self.why = setting, why
        super().__init__(f"{setting}: {why}")


class CannotClone(SpeechError):
    """This checkpoint cannot make a voice from a clip; the message says what it lacks."""

    exit_code = 2


class NoFreeLane(SpeechError):
    """Every lane is held. The caller decides whether to wait or to refuse."""

    exit_code = 4

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(f"all {lanes} lanes are in use; try again when a stream has ended")


class StreamClosed(SpeechError):
    """Text came for a stream that was already told to end, or for a lane that nobody holds."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(f"lane {lane}: the stream has already ended; open a new one")

"""Owns the error tree. Four kinds decide what happens next: missing (try the next tier), down (next, back off),
corrupt (next, report, never serve), invalid (stop: a person must act).

Every error says what happened, where, and what to do next; the command line prints exactly that line.
"""

from __future__ import annotations

from typing import ClassVar

from bdn.digest import Digest


class BdnError(Exception):
    """The root. `exit_code` is what a command that fails with it returns."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what)

    def __str__(self) -> str:
        named = not self.where or self.what.startswith(f"{self.where} ")  # The place is said once.
        line = self.what if named else f"{self.what} ({self.where})"
        return f"{line}: {self.hint}" if self.hint else line


class Missing(BdnError):
    """It is not there, and the one asked is sure of it. The next tier may have it."""


class Down(BdnError):
    """The one asked cannot answer: refused, unreachable, silent for `stall_s`. Back off, try the next."""

    exit_code = 4


class Corrupt(BdnError):
    """Bytes came that are not what was asked for. Try the next, report the sender, never serve them."""

    exit_code = 3


class Invalid(BdnError):
    """The request, the manifest or the configuration cannot work. Nothing is retried; a person must act."""


class Usage(Invalid):
    """The command line is off."""

    exit_code = 2


class ChunkMissing(Missing):
    def __init__(self, digest: Digest, *, source: str) -> None:
        self.digest, self.source = digest, source
        super().__init__(f"{source} does not have chunk {digest.short}", where=source)


class ChunkCorrupt(Corrupt):
    def __init__(self, digest: Digest, *, source: str, got: Digest) -> None:
        self.digest, self.source, self.got = digest, source, got
        # A person sees it only once every source has failed.
        at_origin = "`bdn mirror --verify` the model again stores it again"
        super().__init__(
            f"{source} sent chunk {digest.short} with digest {got.short}",
            where=source,
            hint=at_origin if source == "origin" else "run `bdn verify` on that node, then pull again",
        )


class ShortRead(Corrupt):
    """A source ended early or went on too long: a length that is not the chunk's is as bad as a wrong digest."""

    def __init__(self, digest: Digest, *, source: str, got_bytes: int, want_bytes: int) -> None:
        self.digest, self.source, self.got_bytes, self.want_bytes = digest, source, got_bytes, want_bytes
        super().__init__(f"{source} sent {got_bytes} of {want_bytes} bytes of chunk {digest.short}", where=source)


class SourceDown(Down):
    def __init__(self, source: str, why: str, *, retry_after_s: float | None = None) -> None:
        self.source, self.why, self.retry_after_s = source, why, retry_after_s
        super().__init__(f"{source} is unreachable: {why}", where=source)


class SourceSilent(Down):
    """Nothing came for `stall_s`, not even word that the source itself is still waiting."""

    def __init__(self, source: str, stall_s: float) -> None:
        self.source, self.stall_s = source, stall_s
        super().__init__(f"{source} sent nothing for {stall_s:g} s", where=source)


class Busy(BdnError):
    """A healthy peer at its upload cap. Not a failure: ask one of `holders`, or the same again; never the origin."""

    exit_code = 4

    def __init__(self, source: str, *, holders: tuple[str, ...] = (), retry_after_s: float = 0.1) -> None:
        self.source, self.holders, self.retry_after_s = source, holders, retry_after_s
        super().__init__(f"{source} is at its upload limit", where=source)


class DiskFull(Invalid):
    def __init__(self, path: str, need_bytes: int, free_bytes: int) -> None:
        self.path, self.need_bytes, self.free_bytes = path, need_bytes, free_bytes
        super().__init__(
            f"not enough space: {f'{_size(need_bytes)} needed, ' if need_bytes else ''}{_size(free_bytes)} free",
            where=path,
            hint="free space there, or choose another place; what was verified stays",
        )


def _size(size: int) -> str:
    """As `bdn.sizes` writes it, which the core may not import."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"

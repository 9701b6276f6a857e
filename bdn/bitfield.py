"""Owns which chunks of one model are verified on this disk, so that a restart resumes instead of starting again.

Two files, because two things can go wrong. `written` is updated in place at once: it survives the death of the
process, whose writes the page cache keeps, and is believed only within the same boot of the machine. `durable` is
replaced whole after the data was synced: it survives a power cut and costs at most one sync window of work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bdn.digest import Digest

_CHECK_BYTES = 32


def boot_id() -> str:
    """Names this boot of the machine; a constant where the kernel does not say, which only costs a resume."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


class Bitfield:
    """One bit per chunk of a model, in the manifest's order."""

    def __init__(self, directory: Path, count: int, boot: str) -> None:
        self.count = count
        self._directory = directory
        self._bits = bytearray((count + 7) // 8)
        self._durable = directory / "durable"
        self._written_fd = -1
        self._load(boot)

    def __contains__(self, index: int) -> bool:
        return bool(self._bits[index >> 3] >> (index & 7) & 1)

    @property
    def full(self) -> bool:
        return self.held == self.count

    @property
    def held(self) -> int:
        return int.from_bytes(self._bits, "little").bit_count()

    def set(self, index: int) -> None:
        self._bits[index >> 3] |= 1 << (index & 7)
        self._write_byte(index >> 3)

    def clear(self, indices: Iterable[int]) -> None:
        """The bytes turned out to be bad. Both files must forget them before anything else happens, also where the disk
        is full or no descriptor is left, so that the one which is replaced goes first."""
        self._durable.unlink(missing_ok=True)
        for index in indices:
            self._bits[index >> 3] &= ~(1 << (index & 7)) & 0xFF
            self._write_byte(index >> 3)
        self.make_durable(self.snapshot())

    def snapshot(self) -> bytes:
        """Take it before syncing the data: bits set meanwhile are not covered by that sync."""
        return bytes(self._bits)

    def make_durable(self, snapshot: bytes) -> None:
        """The data behind these bits is on the disk."""
        temporary = self._durable.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, Digest.of(snapshot).raw + snapshot)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, self._durable)

    def close(self) -> None:
        if self._written_fd >= 0:
            os.close(self._written_fd)
            self._written_fd = -1

    def _load(self, boot: str) -> None:
        self._or(_checked(self._durable, len(self._bits)))
        for stale in self._directory.glob("written-*"):
            if stale.name == f"written-{boot}" and stale.stat().st_size == len(self._bits):
                self._or(stale.read_bytes())
            else:
                stale.unlink()
        spare = len(self._bits) * 8 - self.count
        if spare and self._bits:
            self._bits[-1] &= 0xFF >> spare
        self._written_fd = os.open(self._directory / f"written-{boot}", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._written_fd, self._bits, 0)

    def _or(self, other: bytes) -> None:
        for at, byte in enumerate(other):
            self._bits[at] |= byte

    def _write_byte(self, at: int) -> None:
        os.pwrite(self._written_fd, self._bits[at : at + 1], at)


def _checked(path: Path, size: int) -> bytes:
    """The bits in a durable file, or none: a torn or foreign file loses work, never truth."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return b""
    bits = body[_CHECK_BYTES:]
    if len(bits) != size or Digest.of(bits).raw != body[:_CHECK_BYTES]:
        return b""
    return bits

"""Owns how much of a body must have come before the event loop is woken for it: the socket's SO_RCVLOWAT.

A wake-up costs the same for 20 KB as for half a MiB, and on a loop that keeps up with a fast source most bring little.
What lies below the mark has come but is not seen, so a source may only be judged while the mark is down.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

MARK_BYTES = 512 << 10  # As much as is hashed at a time.
QUICK_S = 0.05  # For so much: a slower source is read as its bytes come, for it costs little and is watched closely.
LOOK_S = 0.25  # Where nothing was read for so long, what lies below the mark is, and the rest of the body as it comes.


class Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class LowWater:
    """The mark of one connection. Up while a body comes over one that was quick with its last body, and never above
    what is left of it: the head of a next answer must wake the loop, however short it is.

    The kernel wakes the loop below the mark as well when the other side ends, and when the receive buffer cannot hold
    as much; it lowers a mark to half of what the buffer may grow to.
    """

    def __init__(self, sock: Socket | None) -> None:
        """sock: None where what is read is not what the socket holds (TLS)."""
        self._socket = sock
        self.bytes = 1
        self._quick = False
        self._began_at, self._length = 0.0, 0

    @property
    def up(self) -> bool:
        return self.bytes > 1

    def begin(self, length: int, now: float) -> None:
        """A body of `length` bytes comes next."""
        self._began_at, self._length = now, length
        if self._quick and length >= MARK_BYTES:
            self._set(MARK_BYTES)

    def fit(self, left: int) -> None:
        """So much of the body has yet to be read."""
        if left < self.bytes:
            self._set(max(1, left))

    def end(self, now: float) -> None:
        """The body is here."""
        self._set(1)
        if self._length >= MARK_BYTES:
            self._quick = (now - self._began_at) * MARK_BYTES <= QUICK_S * self._length
        self._length = 0

    def lower(self) -> None:
        """Wakes the loop for whatever is there."""
        self._set(1)

    def _set(self, size: int) -> None:
        if size != self.bytes and self._socket is not None:
            self.bytes = size
            with contextlib.suppress(OSError):  # The connection is gone, as the loop is about to hear.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

"""Owns how much of a body must have come before the event loop is woken for it: the socket's SO_RCVLOWAT.

A wake-up costs the same for 20 KB as for half a MiB, and on a loop that keeps up with a fast source most bring little.
What lies below the mark has come but is not seen, so a source may only be judged while the mark is down.
"""

from __future__ import annotations

import ctypes
import socket

MARK_BYTES = 512 << 10  # As much as is hashed at a time.
QUICK_S = 0.05  # For so much: a slower source is read as its bytes come, for it costs little and is watched closely.
LOOK_S = 0.25  # Where nothing was read for so long, what lies below the mark is, and the rest of the body as it comes.


_libc = ctypes.CDLL(None)  # uvloop's sockets make a new one of Python's for each option: three times the cost.


class LowWater:
    """The mark of one connection. Up while a body comes over one that was quick with its last body, and never above
    what is left of it: the head of a next answer must wake the loop, however short it is.

    The kernel wakes the loop below the mark as well when the other side ends, and when the receive buffer cannot hold
    as much; it lowers a mark to half of what the buffer may grow to.
    """

    def __init__(self, fd: int = -1) -> None:
        """fd: the socket's, or -1 where what is read is not what the socket holds (TLS)."""
        self._fd = fd
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
        """So much of the body, less than the mark, has yet to be read."""
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

    def leave(self) -> None:
        """The socket is closed, or about to be: its number may soon be another's."""
        self._fd = -1
        self.bytes = 1

    def _set(self, size: int) -> None:
        if size != self.bytes and self._fd >= 0:
            self.bytes = size
            value = ctypes.c_int(size)  # An error says that the connection is gone, as the loop is about to hear.
            _libc.setsockopt(self._fd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, ctypes.byref(value), 4)

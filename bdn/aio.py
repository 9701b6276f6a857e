"""Owns writes that neither block the event loop nor need a thread: the kernel's own asynchronous I/O (io_submit).

Only direct writes are truly asynchronous there. A thread for each write costs its hand-over and its turns at the
interpreter, which was a quarter of what a pull took. io_uring would do as well; containers' default seccomp profiles
refuse it and allow this.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
from collections.abc import Callable

Done = Callable[[int], None]
"""Hears how many bytes were written, or an errno as a negative number."""
DEPTH = 128  # As many as the arena has blocks: a submission never waits for a place.
AHEAD = 8  # Writes under way, of 1 MiB each: more make no disk faster, and their memory falls out of the cache.
EVENTS_MAX = 32
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_PWRITE, _RESFD = 1, 1


class _Iocb(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = [
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16), ("priority", ctypes.c_int16), ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64), ("size", ctypes.c_uint64), ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32),
    ]  # fmt: skip


class _Event(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("iocb", ctypes.c_uint64), ("res", ctypes.c_int64), ("res2", ctypes.c_int64)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Writes:
    """Direct writes under way, for one event loop. `available` is False where the kernel or a sandbox has none."""

    def __init__(self, depth: int = DEPTH) -> None:
        self.pending = 0
        self._context = ctypes.c_ulong(0)
        self._numbers = _NUMBERS.get(platform.machine(), (0, 0, 0, 0))
        setup = self._numbers[0]
        numbered = platform.machine() in _NUMBERS
        self.available = numbered and _libc.syscall(setup, ctypes.c_uint(depth), ctypes.byref(self._context)) == 0
        self._done: dict[int, Done] = {}
        self._held: list[Callable[[], None]] = []
        self._last = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._iocb = _Iocb(opcode=_PWRITE, flags=_RESFD, resfd=self._ready)
        self._submission = ctypes.byref((ctypes.c_void_p * 1)(ctypes.addressof(self._iocb)))
        self._events = (_Event * EVENTS_MAX)()

    def submit(self, fd: int, address: int, size: int, offset: int, done: Done) -> bool:
        """False when it cannot be done this way; then nothing was begun. The memory must live until `done`, which is
        called from the event loop or from `wait`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            loop.add_reader(self._ready, self._on_ready)
            self._loop = loop
        self._last += 1
        iocb = self._iocb
        iocb.data, iocb.fd, iocb.buffer, iocb.size, iocb.offset = self._last, fd, address, size, offset
        if _libc.syscall(self._numbers[3], self._context, ctypes.c_long(1), self._submission) != 1:
            return False
        self._done[self._last] = done
        self.pending += 1
        return True

    def hold(self, resume: Callable[[], None]) -> bool:
        """Whether so much is under way that the disk is what everyone waits for: then read no more from the network
        until `resume` is called. Memory that is not touched meanwhile is the gain; the next pieces wait in sockets."""
        if self.pending < AHEAD:
            return False
        self._held.append(resume)
        return True

    def wait(self) -> None:
        """Blocks until at least one write has ended: for whoever has more to write than memory to hold it."""
        if self.pending:
            self._reap(1)

    def close(self) -> None:
        """Waits for what is under way, whose memory and files may go afterwards."""
        if not self.available:
            return
        while self.pending:
            self._reap(1)
        self.available = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._ready)
        _libc.syscall(self._numbers[1], self._context)
        os.close(self._ready)

    def _on_ready(self) -> None:
        with contextlib.suppress(BlockingIOError):  # `wait` may have reaped what this was about.
            os.eventfd_read(self._ready)
        self._reap(0)

    def _reap(self, least: int) -> None:
        got = EVENTS_MAX
        while got == EVENTS_MAX:
            got = _libc.syscall(
                self._numbers[2], self._context, ctypes.c_long(least), ctypes.c_long(EVENTS_MAX),
                ctypes.byref(self._events), None,
            )  # fmt: skip
            ended = [(event.data, event.res) for event in self._events[: max(0, got)]]
            for number, result in ended:
                self.pending -= 1
                self._done.pop(number)(result)
            least = 0
        if self.pending < AHEAD and self._held:
            held, self._held = self._held, []
            for resume in held:
                resume()

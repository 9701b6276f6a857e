"""Owns getting small files onto the disk while more of them are made, so that the sync at the end finds little to do.

A large file's pages are handed to the disk one range at a time; for thousands of small ones that would be a system
call each, and one for the whole file system is cheaper.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bdn.sinks import disk_error, sync_file_system

BEHIND_BYTES = 8 << 20  # Of small files, before the disk is asked: a model with a few beside its weights never asks.


class WriteBehind:
    """One sync of the file system that holds `root` at a time, in a thread of its own. Safe from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(1, "bdn-write-behind")  # Started with its first work.
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._told: Future[None] | None = None
        """The last failure that somebody has heard of."""
        self._bytes = 0

    def wrote(self, size: int) -> None:
        """So much more lies in the page cache. The disk is given work when it is idle and enough has come together."""
        self._bytes += size
        if self._bytes < BEHIND_BYTES:
            return
        with self._lock:
            if self._running is None or (self._running.done() and self._heard(self._running)):
                self._bytes = 0
                self._running = self._thread.submit(sync_file_system, str(self._root))

    async def settled(self) -> None:
        """Returns once nothing is under way. Raises what the disk said: who syncs next would not hear it again."""
        if self._running is not None:
            try:
                await asyncio.wrap_future(self._running)
            except OSError as why:
                self._told = self._running
                raise disk_error(why, str(self._root), 0) from why

    def _heard(self, done: Future[None]) -> bool:
        """Whether its end may be forgotten: a failure only once it was told, for the next sync would hear nothing."""
        return done is self._told or done.exception() is None

    def close(self) -> None:
        self._thread.shutdown()

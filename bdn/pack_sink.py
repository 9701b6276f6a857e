"""Owns a pack of small files while it arrives: it goes straight into its files, which lie in it one after another.

Nothing reads them before the pack's digest was checked: until then no bit says that they are here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bdn.manifest import Chunk, File
from bdn.sinks import FileSink, write_at
from bdn.staged_files import StagedFiles


class PackSink(FileSink):
    """A `FileSink` on many files, `files` in the order in which the pack holds them, with nothing between.

    Files are made on the event loop, as all that arrives is written there: a thread that made them would give the
    interpreter up and take it back at each of its thousands of system calls, against the loop that brings the next
    pack. wrote: hears how many bytes went to files.
    """

    def __init__(self, chunk: Chunk, files: Sequence[File], staged: StagedFiles, wrote: Callable[[int], None]) -> None:
        super().__init__(chunk, -1, 0, path="", in_place=True)
        self._files, self._staged, self._wrote = files, staged, wrote
        self._root_fd = os.open(staged.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._next = 0
        """Which of the files comes after the one that is open."""
        self._left = 0
        """Of the file that is open, how many bytes are to come."""

    @property
    def buffered(self) -> bool:
        return False  # Nothing to hand to the disk under one descriptor; see `WriteBehind`.

    @property
    def open(self) -> bool:
        return self._root_fd >= 0

    def _put(self, piece: memoryview | bytes, at: int) -> None:
        with self._writing:
            if self._revoked:
                return
            view, done = memoryview(piece), 0
            while done < len(view):
                if not self._left:
                    self._begin_next()
                file = self._files[self._next - 1]
                part = view[done : done + self._left]
                write_at(self.fd, part, file.size - self._left, self.path)
                done += len(part)
                self._left -= len(part)
            self._wrote(done)

    def _begin_next(self) -> None:
        self._close_file()
        file = self._files[self._next]
        self.fd, self.path = self._staged.create(self._root_fd, file), f"{self._staged.root}/{file.path}"
        self._next, self._left = self._next + 1, file.size

    def _close_file(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def restart(self) -> None:
        super().restart()
        self._close_file()
        self._next = self._left = 0

    def close(self) -> None:
        self._close_file()
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

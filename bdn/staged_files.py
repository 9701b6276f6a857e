"""Owns the files of a model while they fill: their directories, an inode of each one's own, their modes.

Relative paths throughout; the manifest has made sure that none leads out. Which bytes go where is not known here.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from bdn.manifest import File, Symlink
from bdn.sinks import disk_error

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class StagedFiles:
    """Those below `root`; `scratch`, on the same disk, is for copies. Blocking calls, from any thread."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root, self._scratch = root, scratch
        self._made: set[str] = set()
        self._as_meant: set[str] = set()
        """Files that were created with the mode they are to have."""
        self._exact: dict[tuple[str, int], bool] = {}
        """Whether a directory gives new files just that mode: the umask, or an ACL, may take bits away."""
        self._owning = threading.Lock()  # Two threads that break one link would write into two files of one name.

    def forget(self) -> None:
        """Somebody else had the files meanwhile: nothing is known of directories and modes any more."""
        self._made.clear()
        self._as_meant.clear()

    def path(self, relative: str) -> Path:
        """Where the file is or will be; its directory is there."""
        self._make_parent(relative)
        return self.root / relative

    def _make_parent(self, relative: str) -> str:
        parent = relative.rpartition("/")[0]
        if parent not in self._made:
            (self.root / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        return parent

    def open_own(self, path: Path) -> int:
        """A descriptor for writing on an inode that no other model shares: a link is broken before it is written."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with self._owning:
                fd = os.open(path, flags, 0o644)
                if os.fstat(fd).st_nlink == 1:
                    return fd
                os.close(fd)
                copy = self._scratch / "own"
                shutil.copyfile(path, copy)
                os.replace(copy, path)
                return os.open(path, flags, 0o644)
        except OSError as why:
            raise disk_error(why, str(path), 0) from why

    def create(self, root_fd: int, file: File) -> int:
        """A descriptor for writing all of a file: a new one with its mode, whatever was there before.

        root_fd: an open descriptor of `root`; from there the way to thousands of files is shorter.
        """
        parent, mode = self._make_parent(file.path), file.mode
        try:
            fd = _create(root_fd, file.path, mode | stat.S_IRUSR | stat.S_IWUSR)
        except OSError as why:
            raise disk_error(why, str(self.root / file.path), file.size) from why
        exact = self._exact.get((parent, mode))
        if exact is None:
            exact = self._exact[parent, mode] = stat.S_IMODE(os.fstat(fd).st_mode) == mode
        if exact:
            self._as_meant.add(file.path)
        return fd

    def directories(self) -> list[Path]:
        """`root` and every directory in it: known once `finish` has looked at every file."""
        found = {self.root}
        for made in self._made:
            at = self.root / made
            while at != self.root:
                found.add(at)
                at = at.parent
        return sorted(found)

    def finish(self, files: Iterable[File], links: Iterable[Symlink]) -> None:
        """Empty files, modes and symbolic links: what makes a model of files that have all their bytes."""
        for file in files:
            if file.path in self._as_meant:
                continue
            path = self.path(file.path)
            if file.size == 0:
                os.close(self.open_own(path))
            os.chmod(path, file.mode)
        for link in links:
            path = self.path(link.path)
            path.unlink(missing_ok=True)
            os.symlink(link.target, path)


def _create(root_fd: int, path: str, mode: int) -> int:
    try:
        return os.open(path, _NEW, mode, dir_fd=root_fd)
    except FileExistsError:
        os.unlink(path, dir_fd=root_fd)
        return os.open(path, _NEW, mode, dir_fd=root_fd)

"""A file that is there whole or not at all: written beside its name, put in its place only when all of it is on disk.

It owns the temporary name. Pipes, devices and whatever else is no regular file are opened as they are: they have no
earlier content to lose, and a reader waits on that very name.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

AS_THEY_ARE = ("/dev/", "/proc/")  # /dev/stdout may well be a regular file, yet it is not ours to replace


@contextmanager
def naming(name: str) -> Iterator[None]:
    """An OSError that leaves here names the file that the person named."""
    try:
        yield
    except OSError as why:
        raise OSError(why.errno, why.strerror or str(why), name) from why


@contextmanager
def whole_file(name: str) -> Iterator[IO[bytes]]:
    """The file to write to. If the block raises, what stood under the name before still does."""
    if _is_no_file(name):
        with open(name, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(name))  # a link stays a link
    partial = beside(target)
    with naming(name):
        mode = _mode_of(target)
        file = os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), "wb")
    try:
        yield file
        with naming(name):
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(partial, target)
    except BaseException:
        with suppress(OSError):  # what is still buffered has nowhere to go, and the first failure is the one to tell
            file.close()
        partial.unlink(missing_ok=True)
        raise


def beside(target: Path) -> Path:
    """A name to write under until all is there. Drawn: two containers that share a disk have the same process ids."""
    return target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.partial")


def check_place(name: str) -> None:
    """Raises OSError where no such file could be written; leaves nothing behind. For whoever works long before it."""
    with naming(name):
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_no_file(name):
            return
        target = Path(os.path.realpath(name))
        with tempfile.TemporaryFile(dir=target.parent):
            _mode_of(target)


def _is_no_file(name: str) -> bool:
    """Whether to open it as it is: it has no earlier content to lose, or is not ours to replace."""
    return os.path.abspath(name).startswith(AS_THEY_ARE) or (os.path.exists(name) and not os.path.isfile(name))


def _mode_of(target: Path) -> int | None:
    """The permissions of the file to be replaced. Raises PermissionError where it may not be written to."""
    if not target.exists():
        return None
    with open(target, "ab"):
        return target.stat().st_mode & 0o7777

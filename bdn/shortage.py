"""Owns telling a shortage from a defect: memory, threads or open files that this machine, or a limit of this process,
did not give. A person can do something about it, so it is one line that says what, which limit, and what next.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

from bdn.errors import Invalid
from bdn.sizes import size_text

PIDS_MAX = Path("/sys/fs/cgroup/pids.max")
_MEMORY = "not enough memory"
_THREADS = "no more threads can be started"
_FILES = "too many files and connections are open"
_WORDS = {
    "failed to map segment from shared object": _MEMORY,  # How the loader says it of a library.
    "cannot allocate memory": _MEMORY,
    "can't start new thread": _THREADS,
    "resource temporarily unavailable": _THREADS,  # How fork says it; a full pipe's EAGAIN has other words.
}
_NUMBERS = {errno.ENOMEM: _MEMORY, errno.EMFILE: _FILES, errno.ENFILE: _FILES}


def shortage(why: BaseException, less: str = "") -> Invalid | None:
    """What ran out, wherever in the chain or the group of errors it is told; None for any other failure.

    less: what would make the command need less, as the end of a hint.
    """
    what = next((found for error in _all(why) if (found := _what(error))), "")
    if not what:
        return None
    limit = _limit(what)
    hint = "raise that limit" if limit else "end something else here, or use a larger machine"
    return Invalid(what, where=limit, hint=f"{hint}; {less}" if less else hint)


def _all(why: BaseException) -> Iterator[BaseException]:
    """The error, those it groups, and those it came from: what fails while a loop closes hides what made it close."""
    todo, seen = [why], set()
    while todo:
        error = todo.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            todo += error.exceptions
        todo += [e for e in (error.__cause__, error.__context__) if e is not None]


def _what(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return _NUMBERS[error.errno]
    if isinstance(error, RuntimeError | ImportError | OSError):
        words = str(error).lower()
        return next((what for text, what in _WORDS.items() if words.endswith(text)), "")
    return ""


def _limit(what: str) -> str:
    """The limit that is likely to be the one, as the command that shows it names it; nothing where none is set."""
    if what == _FILES:
        return f"`ulimit -n` is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    for kind, flag in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        most = resource.getrlimit(kind)[0]
        if most != resource.RLIM_INFINITY:  # A thread's stack is memory as well.
            return f"`ulimit {flag}` is {most // 1024}: {size_text(most)}"
    if what == _THREADS:
        return _threads_limit()
    return ""


def _threads_limit() -> str:
    try:
        pids = PIDS_MAX.read_text().strip()
    except OSError:
        pids = "max"
    if pids != "max":
        return f"this container may have {pids} threads, {PIDS_MAX}"
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return "" if most == resource.RLIM_INFINITY else f"`ulimit -u` is {most}"

"""What a machine does not give is no defect of ours: one line says what ran out, which limit, and what next."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bdn.errors import Corrupt
from bdn.shortage import shortage

NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(("why", "said"), [
    (MemoryError(), "not enough memory"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
    (ImportError("libx.so: failed to map segment from shared object"), "not enough memory"),
    (NO_THREAD, "no more threads can be started"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "no more threads can be started"),
    (OSError(errno.EMFILE, "Too many open files", "/f"), "too many files and connections are open (`ulimit -n` is "),
], ids=str)  # fmt: skip
def test_each_kind_is_one_line_with_a_next_step(why: BaseException, said: str) -> None:
    found = shortage(why, "a smaller window needs less")
    assert found is not None and str(found).startswith(said) and found.exit_code == 1
    assert found.hint.endswith("; a smaller window needs less") and "\n" not in str(found)


@pytest.mark.parametrize("why", [
    RuntimeError("dictionary changed size during iteration"), OSError(errno.ENOENT, "No such file or directory"),
    BlockingIOError(errno.EAGAIN, "write could not complete without blocking"), ImportError("no module named x"),
    ImportError("libx.so: failed to map segment from shared object: Operation not permitted"),
], ids=str)  # fmt: skip
def test_nothing_else_is_taken_for_a_shortage(why: BaseException) -> None:
    assert shortage(why) is None


def test_it_is_found_in_a_group_and_behind_what_it_led_to() -> None:
    async def one_of_many() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(asyncio.to_thread(_no_thread))

    with pytest.raises(ExceptionGroup) as several:
        asyncio.run(one_of_many())
    assert shortage(several.value) is not None
    with pytest.raises(KeyError) as hidden:
        try:
            raise MemoryError
        finally:
            {}["what failed while it was tidied up"]
    assert shortage(hidden.value) is not None
    circle = ValueError("a")
    circle.__cause__ = other = ValueError("b")
    other.__context__ = circle
    assert shortage(circle) is None and shortage(Corrupt("x")) is None


def _no_thread() -> None:
    raise NO_THREAD


# A limit that a chunk reaches and nothing smaller: a library that lacks 80 bytes aborts, and nothing can be said.
LIMITED = """
import resource, sys
from bdn import cli
cli.main(["mirror", sys.argv[2], "--origin", sys.argv[4] + ".whole", "--quiet"])  # loads all
has = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = (has << 10) + (60 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_mirror_whose_chunk_does_not_fit_says_which_limit_it_met(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    with (source / "model.bin").open("wb") as file:
        file.truncate(64 << 20)  # Sparse: takes no room.
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "mirror", str(source), "--origin", str(tmp_path / "origin"), "--quiet",
         "--mirror-chunk-bytes", "64MiB"],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20)),  # A thread takes little.
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "(`ulimit -v` is " in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("raise that limit; a smaller --mirror-window-bytes needs less\n")

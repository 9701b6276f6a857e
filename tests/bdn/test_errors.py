"""Errors as a person reads them: one line that says what, where and what next, each once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bdn.errors import Missing, SourceDown
from bdn.sinks import disk_error


def test_a_line_says_what_where_and_what_next() -> None:
    assert str(Missing("there is no tag", where="s3://b", hint="`bdn ls`")) == "there is no tag (s3://b): `bdn ls`"
    assert str(Missing("there is no tag")) == "there is no tag"


def test_a_place_that_the_words_name_is_not_said_again() -> None:
    assert str(SourceDown("http://o:1", "refused")) == "http://o:1 is unreachable: refused"


@pytest.mark.parametrize(("number", "said"), [
    (errno.ENOSPC, "not enough space"), (errno.EDQUOT, "not enough space"), (errno.EIO, "the disk failed"),
    (errno.EACCES, "cannot write"), (errno.EROFS, "cannot write"),
])  # fmt: skip
def test_whatever_the_disk_says_in_the_middle_of_a_pull_comes_with_a_next_step(
    number: int, said: str, tmp_path: Path
) -> None:
    error = disk_error(OSError(number, "as the kernel words it"), str(tmp_path / "file"), 0)
    assert said in str(error) and error.hint and str(error).endswith(error.hint) and "0 B needed" not in str(error)


def test_a_full_disk_is_told_where_even_the_directory_could_not_be_made(tmp_path: Path) -> None:
    error = disk_error(OSError(errno.ENOSPC, "no"), str(tmp_path / "not" / "there" / "file"), 5)
    assert "not enough space" in str(error)
    assert "not enough space" in str(disk_error(OSError(errno.ENOSPC, "no"), "file", 5))

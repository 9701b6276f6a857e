"""Errors as a person reads them: one line that says what, where and what next, each once."""

from __future__ import annotations

from bdn.errors import Missing, SourceDown


def test_a_line_says_what_where_and_what_next() -> None:
    assert str(Missing("there is no tag", where="s3://b", hint="`bdn ls`")) == "there is no tag (s3://b): `bdn ls`"
    assert str(Missing("there is no tag")) == "there is no tag"


def test_a_place_that_the_words_name_is_not_said_again() -> None:
    assert str(SourceDown("http://o:1", "refused")) == "http://o:1 is unreachable: refused"

"""A model's name: what is accepted, and that nothing accepted can leave the origin's prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdn.digest import Digest
from bdn.errors import Usage
from bdn.reference import Reference, parse_reference

D = Digest.of(b"x")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("voice", Reference("voice", "latest")),
        ("kyutai/tts-1.6b:v2", Reference("kyutai/tts-1.6b", "v2")),
        (f"a/b:t@{D}", Reference("a/b", "t", D)),
        (f"a@{D}", Reference("a", "latest", D)),
        (str(D), Reference("", "", D)),
        (f"@{D}", Reference("", "", D)),
    ],
)
def test_a_reference_is_a_name_a_tag_and_a_digest(text: str, want: Reference) -> None:
    assert parse_reference(text) == want
    assert parse_reference(str(want)) == want


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:", "../x", "a/../b", "a..b", "/a", "a/", "a//b", ".hidden", "a b", "a\n", "a:b:c", "a@b3:12", "a@",
     "ä", "a\\b", "x" * 300, "a:" + "t" * 200, "a:../x", "a?b", "a%2e"],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(Usage) as why:
        parse_reference(text)
    assert "\n" not in str(why.value)


@given(st.text(max_size=40))
def test_no_accepted_name_or_tag_can_be_a_path_out(text: str) -> None:
    try:
        ref = parse_reference(text)
    except Usage:
        return
    for part in (*ref.name.split("/"), ref.tag):
        assert ".." not in part and not part.startswith(".") and "\\" not in part and part.isascii()

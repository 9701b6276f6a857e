"""A manifest has one byte form; whatever is not exactly that, or could not be created safely, is refused."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.manifest import INLINE_CHUNKS_MAX, Chunk, Extent, File, Manifest, Symlink, canonical, parse


def whole(path: str, *bodies: bytes) -> File:
    chunks = [Chunk(Digest.of(b), len(b)) for b in bodies]
    data = b"".join(bodies)
    return File(path, len(data), 0o644, Digest.of(data), tuple(Extent(c, 0, c.size) for c in chunks))


def packed(*files: tuple[str, bytes]) -> list[File]:
    pack = b"".join(body for _, body in files)
    chunk, at, out = Chunk(Digest.of(pack), len(pack)), 0, []
    for path, body in files:
        out.append(File(path, len(body), 0o644, Digest.of(body), (Extent(chunk, at, len(body)),)))
        at += len(body)
    return out


def reparse(manifest: Manifest) -> Manifest:
    root, *lists = manifest.documents
    by_digest = {Digest.of(body): body for body in lists}
    return parse(root, by_digest.__getitem__)


def example() -> Manifest:
    return Manifest(
        files=(
            whole("model.safetensors", b"a" * 10, b"b" * 10, b"a" * 10),
            *packed(("config.json", b"{}"), ("sub/tokenizer.model", b"xyz")),
            whole("empty"),
            whole("long", *(i.to_bytes(4, "big") for i in range(INLINE_CHUNKS_MAX + 1))),
        ),
        provenance=(("source", "dir:/models/x"), ("revision", "é")),
        symlinks=(Symlink("sub/link", "../config.json"),),
    )


def test_the_canonical_form_reads_back_to_an_equal_manifest_with_the_same_digest() -> None:
    manifest = example()
    again = reparse(manifest)
    assert again.digest == manifest.digest
    assert {f.path: f for f in again.files} == {f.path: f for f in manifest.files}
    assert again.symlinks == manifest.symlinks
    assert len(manifest.documents) == 2, "the long file's chunks are a list of their own"


_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), max_size=20)


@given(st.lists(_TEXT))
def test_what_is_written_by_hand_is_what_the_canonical_form_says(names: list[str]) -> None:
    odd = [f"d/{at}-{name}" for at, name in enumerate(names)]
    files = (*example().files, *packed(("b", b"1"), *((path, b"23") for path in odd)), whole("a", b"x"))
    for document in Manifest(files, symlinks=example().symlinks).documents:
        assert canonical(json.loads(document)) == document
    paths = [f["path"] for f in json.loads(Manifest(files).documents[0])["files"]]
    assert paths == sorted(paths, key=str.encode)


def test_order_of_files_does_not_change_the_name() -> None:
    files = example().files
    assert Manifest(files).digest == Manifest(tuple(reversed(files))).digest


def test_repeated_content_is_one_chunk_with_several_places() -> None:
    manifest = example()
    repeated = Digest.of(b"a" * 10)
    assert [p.file_offset for p in manifest.placements[repeated]] == [0, 20]
    assert sum(c.digest == repeated for c in manifest.chunks) == 1
    assert manifest.unique_bytes == manifest.total_bytes - 10


@pytest.mark.parametrize(
    "path",
    ["/abs", "../up", "a/../b", "a//b", "./a", "a\\b", "a\0b", "a\nb", "", "a/", ".bdn/x", "x" * 256, "\ud800"],
)
def test_a_path_that_could_leave_the_root_or_not_exist_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        Manifest((whole(path, b"x"),))


@pytest.mark.parametrize(("one", "two"), [("a", "a"), ("a", "a/b"), ("é", "é"), ("a/b/c", "a")])
def test_two_entries_that_cannot_both_exist_are_refused(one: str, two: str) -> None:
    with pytest.raises(Invalid):
        Manifest((whole(one, b"x"), whole(two, b"y")))


@pytest.mark.parametrize("target", ["half a character \udce9", "x" * 4096])
def test_a_symlink_that_no_disk_or_manifest_can_hold_is_refused(target: str) -> None:
    with pytest.raises(Invalid, match="the target of symlink 'l'"):
        Manifest((whole("f", b"x"),), symlinks=(Symlink("l", target),))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc", "../..", "a//b", "..\\x"])
def test_a_symlink_out_of_the_model_is_refused(target: str) -> None:
    with pytest.raises(Invalid):
        Manifest((whole("f", b"x"),), symlinks=(Symlink("d/l", target),))


@pytest.mark.parametrize(
    "links",
    [
        {"a/b/up": "../..", "z": "a/b/up/../etc/passwd"},  # Two deep by its text, none by where it leads.
        {"a/b/up": "../..", "z": "a/b/up/f/../../x"},
        {"a/l": "../d", "z": "./a/./l/.."},
        {"l": "d", "m": "l", "z": "m/.."},
    ],
)
def test_no_symlink_gets_out_through_another(links: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="after another link"):
        Manifest((whole("f", b"x"),), symlinks=tuple(Symlink(p, t) for p, t in links.items()))


LINKS = st.sampled_from(["l", "m", "d/l", "d/m", "d/e/l"])
TARGETS = st.lists(st.sampled_from(["..", ".", "d", "e", "l", "m", "f"]), min_size=1, max_size=6).map("/".join)


@given(st.dictionaries(LINKS, TARGETS, max_size=5))
def test_wherever_accepted_symlinks_lead_it_is_inside(links: dict[str, str]) -> None:
    """The twin makes them on a disk and asks the kernel's way of following them."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place).resolve() / "above" / "model"
        (root / "d" / "e").mkdir(parents=True)
        for path, target in links.items():
            os.symlink(target, root / path)
        try:
            Manifest((), symlinks=tuple(Symlink(p, t) for p, t in links.items()))
        except Invalid:
            return
        for path in links:
            assert Path(os.path.realpath(root / path)).is_relative_to(root), links


def test_a_symlink_may_lead_through_another() -> None:
    links = (Symlink("a/b/up", "../.."), Symlink("z", "a/b/up/f"), Symlink("y", "a/b/../../f"), Symlink("d", "nowhere"))
    assert Manifest((whole("f", b"x"),), symlinks=links).symlinks == links


def test_a_second_encoding_of_the_same_content_is_refused() -> None:
    root = example().documents[0]
    by_digest = {Digest.of(body): body for body in example().documents[1:]}
    spaced = json.dumps(json.loads(root), indent=1).encode()
    with pytest.raises(Invalid, match="canonical"):
        parse(spaced, by_digest.__getitem__)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>404</html>",
        b"[]",
        b"{}",
        canonical({"schema": "bdn.manifest.v9", "files": [], "packs": [], "provenance": {}, "symlinks": []}),
        canonical({"schema": "bdn.manifest.v1", "files": [1], "packs": [], "provenance": {}, "symlinks": []}),
        canonical({"schema": "bdn.manifest.v1", "files": [], "packs": [], "provenance": {}, "symlinks": [], "x": 1}),
        b"[" * 100_000,
        b'{"files":[],"packs":[],"provenance":{"a":"\\ud800"},"schema":"bdn.manifest.v1","symlinks":[]}\n',
        b'{"files":[],"packs":[],"provenance":{"\\ud800":""},"schema":"bdn.manifest.v1","symlinks":[]}\n',
    ],
)
def test_what_is_not_a_manifest_is_refused_with_one_clear_line(body: bytes) -> None:
    with pytest.raises(Invalid) as why:
        parse(body, lambda digest: b"")
    assert "\n" not in str(why.value)


def test_a_chunk_with_two_sizes_is_refused() -> None:
    """No bytes have both, and what is missing of such a model could not even be counted."""
    one, two = (Chunk(Digest.of(b"x"), size) for size in (1, 2))
    file = File("f", 3, 0o644, Digest.of(b"xxx"), (Extent(one, 0, 1), Extent(two, 0, 2)))
    with pytest.raises(Invalid, match="two sizes"):
        reparse(Manifest((file,)))


def test_a_list_with_other_bytes_than_its_digest_says_is_refused() -> None:
    with pytest.raises(Invalid, match="other bytes"):
        parse(example().documents[0], lambda digest: b"{}")


def test_chunks_must_add_up_to_the_file() -> None:
    chunk = Chunk(Digest.of(b"x"), 1)
    with pytest.raises(Invalid, match="add up"):
        Manifest((File("f", 2, 0o644, Digest.of(b"xx"), (Extent(chunk, 0, 1),)),))

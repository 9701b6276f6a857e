"""The format as `manifests/README.md` describes it: the golden example is rebuilt byte for byte, twice.

Once with our own types, and once by `second_implementation`, which knows the README and nothing of `bdn.manifest`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from blake3 import blake3

from bdn.digest import Digest
from bdn.manifest import Chunk, Extent, File, Manifest, Symlink, parse

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "manifests" / "examples" / "golden"
FILES = GOLDEN / "files"
CUTS = {"model.safetensors": 400, "long.bin": 4}
PACKED = ["config.json", "tokenizer/café.model"]
PROVENANCE = {"source": "dir:golden", "revision": ""}


def golden() -> Manifest:
    pack = b"".join((FILES / p).read_bytes() for p in PACKED)
    chunk, at, files = Chunk(Digest.of(pack), len(pack)), 0, []
    for path in PACKED:
        body = (FILES / path).read_bytes()
        files.append(File(path, len(body), 0o644, Digest.of(body), (Extent(chunk, at, len(body)),)))
        at += len(body)
    for path, size in CUTS.items():
        body = (FILES / path).read_bytes()
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        extents = tuple(Extent(Chunk(Digest.of(p), len(p)), 0, len(p)) for p in pieces)
        mode = 0o755 if path == "model.safetensors" else 0o644
        files.append(File(path, len(body), mode, Digest.of(body), extents))
    files.append(File("empty", 0, 0o644, Digest.of(b""), ()))
    links = (Symlink("tokenizer/config.json", "../config.json"),)
    return Manifest(tuple(files), tuple(PROVENANCE.items()), links)


def hexdigest(data: bytes) -> str:
    return blake3(data).hexdigest()


def text(value: object) -> str:
    """Canonical JSON by the README's six rules, without a JSON library."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{text(k)}:{text(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    if isinstance(value, int):
        return str(value)
    assert isinstance(value, str)
    named = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(named.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in value) + '"'


def second_implementation() -> tuple[bytes, bytes]:
    pack = b"".join((FILES / p).read_bytes() for p in PACKED)
    entries, at = [], 0
    for path in PACKED:
        body = (FILES / path).read_bytes()
        entries.append({"path": path, "mode": 420, "size": len(body), "digest": hexdigest(body),
                        "pack": [hexdigest(pack), at]})  # fmt: skip
        at += len(body)
    chunks = {}
    for path, size in CUTS.items():
        body = (FILES / path).read_bytes()
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        chunks[path] = [[hexdigest(p), len(p)] for p in pieces]
    listed = (text({"schema": "bdn.chunklist.v1", "chunks": chunks["long.bin"]}) + "\n").encode()
    body = (FILES / "model.safetensors").read_bytes()
    entries.append({"path": "model.safetensors", "mode": 493, "size": 1000, "digest": hexdigest(body),
                    "chunks": chunks["model.safetensors"]})  # fmt: skip
    body = (FILES / "long.bin").read_bytes()
    entries.append({"path": "long.bin", "mode": 420, "size": 1028, "digest": hexdigest(body),
                    "list": hexdigest(listed)})  # fmt: skip
    entries.append({"path": "empty", "mode": 420, "size": 0, "digest": hexdigest(b""), "chunks": []})
    entries.sort(key=lambda e: str(e["path"]).encode())
    links = [{"path": "tokenizer/config.json", "target": "../config.json"}]
    root = {"schema": "bdn.manifest.v1", "files": entries, "packs": [[hexdigest(pack), len(pack)]],
            "provenance": PROVENANCE, "symlinks": links}  # fmt: skip
    return (text(root) + "\n").encode(), listed


def test_the_golden_example_is_rebuilt_byte_for_byte() -> None:
    root, listed = golden().documents
    assert root == (GOLDEN / "root.json").read_bytes()
    assert listed == (GOLDEN / "list.json").read_bytes()


def test_the_readme_is_enough_to_write_a_second_implementation() -> None:
    assert second_implementation() == golden().documents


def test_the_readme_names_the_golden_digest() -> None:
    words = (ROOT / "manifests" / "README.md").read_text(encoding="utf-8")
    assert str(golden().digest) in re.findall(r"b3:[0-9a-f]{64}", words)


def schema(name: str) -> jsonschema.Draft202012Validator:
    body = json.loads((ROOT / "manifests" / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(body)
    return jsonschema.Draft202012Validator(body)


def test_the_golden_example_fits_the_schemas() -> None:
    schema("manifest").validate(json.loads((GOLDEN / "root.json").read_bytes()))
    schema("chunklist").validate(json.loads((GOLDEN / "list.json").read_bytes()))


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "a//b", "a/", ".", "a\\b", "a\u0000", ".bdn-x", ""])
def test_the_schema_and_the_parser_refuse_the_same_paths(path: str) -> None:
    doc = json.loads((GOLDEN / "root.json").read_bytes())
    doc["files"][0]["path"] = path
    assert not schema("manifest").is_valid(doc)
    with pytest.raises(Exception, match="unsafe path"):
        parse((text(doc) + "\n").encode(), lambda _: (GOLDEN / "list.json").read_bytes())

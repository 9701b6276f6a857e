"""Owns what a model is: files, the chunks they are cut into, where they came from; and the one canonical byte form.

Two levels: the root document lists every file; a file of many chunks points to a *chunk list*, an object of its
own, so that the root stays small and an unchanged file costs nothing in the next revision. Small files are packed
many to a chunk. `manifests/README.md` describes the format precisely enough to reimplement it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring

from bdn.digest import Digest
from bdn.errors import Invalid

SCHEMA = "bdn.manifest.v1"
LIST_SCHEMA = "bdn.chunklist.v1"
_NO_SEGMENT = frozenset({"", ".", ".."})
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
CHUNK_BYTES_MAX = 64 << 20  # A chunk is the unit of retry and of ownership; larger ones unbalance owners.
DOCUMENT_BYTES_MAX = 64 << 20  # Bounds what a remote can make us allocate before its digest is checked.
INLINE_CHUNKS_MAX = 256  # Beyond it a file's chunks move to a list object (2 GiB at 8 MiB).
PATH_BYTES_MAX, NAME_BYTES_MAX = 1024, 255
TARGET_BYTES_MAX = 4095  # Of a symbolic link, in the kernel: found out only after a whole pull otherwise.
_FILE_KEYS = {k: frozenset({"digest", "mode", "path", "size", k}) for k in ("pack", "chunks", "list")}


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """A name for bytes: their digest and how many there are."""

    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Extent:
    """`size` bytes of a file, found at `offset` in `chunk`. A whole chunk unless several small files share it."""

    chunk: Chunk
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class File:
    """One file. Its extents follow one another from offset 0; an empty file has none."""

    path: str
    size: int
    mode: int
    digest: Digest
    extents: tuple[Extent, ...]

    @property
    def packed(self) -> bool:
        return len(self.extents) == 1 and self.extents[0].size != self.extents[0].chunk.size


@dataclass(frozen=True, slots=True)
class Symlink:
    """A relative link that stays inside the root."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Placement:
    """One place on disk where bytes of a chunk belong."""

    path: str
    file_offset: int
    chunk_offset: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """One immutable revision of a model. `digest` names it; equal content, whoever built it, has equal digest.

    provenance: flat text facts (source, revision, upstream checksums as `sha256:<path>` …), part of the digest.
    """

    files: tuple[File, ...]
    provenance: tuple[tuple[str, str], ...] = ()
    symlinks: tuple[Symlink, ...] = ()

    def __post_init__(self) -> None:
        check_paths([f.path for f in self.files] + [s.path for s in self.symlinks])
        check_links(self.symlinks)
        for key, fact in self.provenance:
            if _encoded(key) is None or _encoded(fact) is None:
                raise Invalid(f"provenance {key[:200]!r} in the manifest is not valid UTF-8")
        for file in self.files:
            _check_file(file)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every distinct chunk, in the order in which the files name them."""
        return distinct_chunks(self.files)

    @cached_property
    def numbers(self) -> Mapping[Digest, int]:
        """Each distinct chunk's place in `chunks`: its bit in a bitmap of what a node holds."""
        return {chunk.digest: i for i, chunk in enumerate(self.chunks)}

    @cached_property
    def placements(self) -> Mapping[Digest, tuple[Placement, ...]]:
        """For each chunk, every place its bytes belong: several for packed files and for repeated content."""
        found: dict[Digest, list[Placement]] = {}
        last, places = None, []
        for file in self.files:
            at = 0
            for e in file.extents:
                if e.chunk is not last:
                    last, places = e.chunk, found.setdefault(e.chunk.digest, [])
                places.append(Placement(file.path, at, e.offset, e.size))
                at += e.size
        return {digest: tuple(places) for digest, places in found.items()}

    @property
    def total_bytes(self) -> int:
        """What the files occupy."""
        return sum(f.size for f in self.files)

    @cached_property
    def unique_bytes(self) -> int:
        """What one copy of the model costs to move: each distinct chunk once."""
        return sum(c.size for c in self.chunks)

    @cached_property
    def documents(self) -> tuple[bytes, ...]:
        """The canonical form: the root document first, then every chunk list that it names."""
        lists: dict[Digest, bytes] = {}
        files = ",".join([_file_text(f, lists) for f in sorted(self.files, key=lambda f: f.path)])
        packs = sorted({f.extents[0].chunk for f in self.files if f.packed})
        rest = {
            "packs": [[c.digest.hex, c.size] for c in packs],
            "provenance": dict(self.provenance),
            "schema": SCHEMA,
            "symlinks": [{"path": s.path, "target": s.target} for s in sorted(self.symlinks, key=lambda s: s.path)],
        }
        return (b'{"files":[' + files.encode() + b"]," + canonical(rest)[1:], *lists.values())

    @cached_property
    def documents_by_digest(self) -> Mapping[Digest, bytes]:
        return {Digest.of(body): body for body in self.documents}

    @cached_property
    def digest(self) -> Digest:
        return Digest.of(self.documents[0])


def distinct_chunks(files: Iterable[File]) -> tuple[Chunk, ...]:
    """Every chunk of these files once, in the order in which they name them."""
    found: dict[Chunk, None] = {}
    last = None
    for file in files:
        for e in file.extents:
            if e.chunk is not last:  # Many files of one pack follow one another, and hashing a digest costs.
                last = e.chunk
                found[last] = None
    return tuple(found)


def canonical(value: object) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8, one final newline: the same value always gives the same bytes."""
    return (_json(value) + "\n").encode()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse(root: bytes, read_list: Callable[[Digest], bytes]) -> Manifest:
    """The manifest whose root document is `root`; `read_list` fetches a chunk list by digest (checked here).

    Raises Invalid for anything that is not exactly the canonical form of a valid manifest: a second encoding of the
    same content would be a second name for it.
    """
    doc = _document(root, SCHEMA, {"files", "packs", "provenance", "symlinks"})
    packs = {c.digest.hex: c for c in map(_chunk, _list(doc["packs"], "packs"))}
    files = tuple(_parse_file(f, packs, read_list) for f in _list(doc["files"], "files"))
    links = tuple(
        Symlink(_text(o["path"], "path"), _text(o["target"], "target"))
        for o in (_object(v, {"path", "target"}, "symlink") for v in _list(doc["symlinks"], "symlinks"))
    )
    facts = doc["provenance"]
    if not isinstance(facts, dict):
        raise Invalid("the manifest is invalid: provenance is not an object")
    provenance = tuple((k, _text(v, f"provenance.{k}")) for k, v in facts.items())
    manifest = Manifest(files, provenance, links)
    if manifest.documents[0] != root:
        raise Invalid("the manifest is invalid: it is not in canonical form", hint="mirror the model again")
    if len(manifest.numbers) != len(manifest.chunks):
        raise Invalid("the manifest is invalid: one chunk is named with two sizes")
    return manifest


def check_paths(paths: Iterable[str]) -> None:
    """Raise Invalid unless every path can be created under one root, beside all the others, and only there."""
    seen: dict[str, str] = {}
    for path in paths:
        why = _path_fault(path)
        if why:
            raise Invalid(f"unsafe path in the manifest: {path[:200]!r} {why}", hint="rename it upstream or ignore it")
        key = path if path.isascii() else unicodedata.normalize("NFC", path)
        if key in seen:
            raise Invalid(f"two entries share one path: {seen[key]!r} and {path!r}", hint="ignore one of them")
        seen[key] = path
    for key in seen:
        parent = key
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in seen:
                raise Invalid(f"{seen[parent]!r} is both an entry and a directory of {seen[key]!r}")


def _path_fault(path: str) -> str:
    encoded = _encoded(path)
    if encoded is None:
        return "is not valid UTF-8"
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute"
    if _UNSAFE.search(path):
        return "has a NUL, a backslash or a control character"
    if not _NO_SEGMENT.isdisjoint(parts):
        return "has an empty, '.' or '..' segment"
    if parts[0].startswith(".bdn"):
        return "uses the reserved prefix .bdn"
    if len(encoded) > NAME_BYTES_MAX and (
        len(encoded) > PATH_BYTES_MAX or any(len(p.encode()) > NAME_BYTES_MAX for p in parts)
    ):
        return f"is longer than {PATH_BYTES_MAX} bytes, or a segment than {NAME_BYTES_MAX}"
    return ""


def _encoded(text: str) -> bytes | None:
    """None for half a character, as JSON can hold, and as a file name that is no UTF-8 is read."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def check_links(links: Iterable[Symlink]) -> None:
    """Raise Invalid unless every link leads to somewhere inside the root, through whatever other links it leads.

    ".." is what comes out: it takes back one segment of the text, but after another link it would take back one of that
    link's target, which may be less deep. There it is refused.
    """
    targets = {link.path: link.target for link in links}
    for path, target in targets.items():
        if "\0" in target or "\\" in target:
            raise Invalid(f"symlink {path!r} has an unsafe target")
        encoded = _encoded(target)
        if encoded is None or len(encoded) > TARGET_BYTES_MAX:
            why = "not valid UTF-8" if encoded is None else f"longer than {TARGET_BYTES_MAX} bytes"
            raise Invalid(f"the target of symlink {path!r} is {why}", hint="ignore it")
        at, through = path.split("/")[:-1], ""
        for part in target.split("/"):
            if part == "" or (part == ".." and not at):
                raise Invalid(f"symlink {path!r} points outside the model: {target!r}", hint="ignore it")
            if part == ".." and through:
                why = f"symlink {path!r} goes up after another link, {through!r}: {target!r}"
                raise Invalid(why, hint="ignore it")
            if part == "..":
                at.pop()
            elif part != ".":
                at.append(part)
            through = "/".join(at) if "/".join(at) in targets else through


def _check_file(file: File) -> None:
    if file.mode & ~0o777 or file.size < 0:
        raise Invalid(f"bad mode or size of {file.path!r} in the manifest")
    for e in file.extents:
        if not (0 < e.chunk.size <= CHUNK_BYTES_MAX and e.offset >= 0 and 0 < e.size <= e.chunk.size - e.offset):
            raise Invalid(f"bad chunk bounds in {file.path!r}")
    if sum(e.size for e in file.extents) != file.size:
        raise Invalid(f"the chunks of {file.path!r} do not add up to its size")
    if len(file.extents) > 1 and any(e.size != e.chunk.size for e in file.extents):
        raise Invalid(f"{file.path!r} mixes packed and whole chunks")


def _file_text(file: File, lists: dict[Digest, bytes]) -> str:
    """A file's entry as `canonical` writes it, put together by hand: thousands of small files cost half as much.

    Where its chunks are a list of their own, that goes into `lists`.
    """
    chunks = pack = listed = ""
    if file.packed:
        e = file.extents[0]
        pack = f'"pack":["{e.chunk.digest.hex}",{e.offset}],'
    else:
        pairs = [[e.chunk.digest.hex, e.chunk.size] for e in file.extents]
        if len(pairs) <= INLINE_CHUNKS_MAX:
            chunks = f'"chunks":{_json(pairs)},'
        else:
            body = canonical({"chunks": pairs, "schema": LIST_SCHEMA})
            digest = Digest.of(body)
            lists[digest] = body
            listed = f'"list":"{digest.hex}",'
    path = encode_basestring(file.path)
    return f'{{{chunks}"digest":"{file.digest.hex}",{listed}"mode":{file.mode},{pack}"path":{path},"size":{file.size}}}'


def _parse_file(value: object, packs: Mapping[str, Chunk], read_list: Callable[[Digest], bytes]) -> File:
    kind = "chunks"
    if isinstance(value, dict) and "chunks" not in value:
        kind = "pack" if "pack" in value else "list"
    o = _object(value, _FILE_KEYS[kind], "file")
    size = _int(o["size"], "size")
    if kind == "pack":
        pair = _list(o["pack"], "pack")
        pack = packs.get(_text(pair[0], "pack")) if len(pair) == 2 else None
        if pack is None:
            raise Invalid("the manifest is invalid: a file names a pack that is not listed")
        extents: tuple[Extent, ...] = (Extent(pack, _int(pair[1], "pack offset"), size),)
    else:
        chunks = _list(o["chunks"], "chunks") if kind == "chunks" else _read_list(_hex(o["list"]), read_list)
        extents = tuple(Extent(c, 0, c.size) for c in map(_chunk, chunks))
    return File(_text(o["path"], "path"), size, _int(o["mode"], "mode"), _hex(o["digest"]), extents)


def _read_list(digest: Digest, read_list: Callable[[Digest], bytes]) -> list[object]:
    body = read_list(digest)
    if Digest.of(body) != digest:
        raise Invalid(f"chunk list {digest.short} has other bytes than its digest says")
    return _list(_document(body, LIST_SCHEMA, {"chunks"})["chunks"], "chunks")


def _document(body: bytes, schema: str, keys: set[str]) -> dict[str, object]:
    if len(body) > DOCUMENT_BYTES_MAX:
        raise Invalid(f"the manifest is invalid: more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Invalid("the manifest is invalid: not JSON", hint="the origin may have stored an error page") from None
    if isinstance(value, dict) and value.get("schema") != schema:
        raise Invalid(f"the manifest is invalid: schema {value.get('schema')!r}, expected {schema!r}")
    return _object(value, keys | {"schema"}, "document")


def _object(value: object, keys: Set[str], what: str) -> dict[str, object]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise Invalid(f"the manifest is invalid: a {what} must have exactly the keys {sorted(keys)}")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise Invalid(f"the manifest is invalid: {what} is not a list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"the manifest is invalid: {what} is not text")
    return value


def _int(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Invalid(f"the manifest is invalid: {what} is not a whole number")
    return value


def _hex(value: object) -> Digest:
    try:
        return Digest.from_hex(_text(value, "digest"))
    except ValueError as why:
        raise Invalid(f"the manifest is invalid: {why}") from None


def _chunk(value: object) -> Chunk:
    pair = _list(value, "chunk")
    if len(pair) != 2:
        raise Invalid("the manifest is invalid: a chunk is [digest, size]")
    return Chunk(_hex(pair[0]), _int(pair[1], "chunk size"))

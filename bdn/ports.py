"""Owns the seams: what the core asks of a disk, of other nodes, of the origin and of whoever knows the members.

Adapters and the simulator implement these; the core knows nothing else of the world. All coroutines may be
cancelled at any await; a cancelled fetch leaves its sink unfinished and the store unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bdn.digest import Digest
from bdn.manifest import Chunk, Manifest
from bdn.roster import Node, Roster


class Tier(StrEnum):
    """Where a chunk came from, nearest first."""

    NVME = "nvme"  # already in this store, in this model or another
    PEER = "peer"
    ORIGIN = "origin"


class Holding(StrEnum):
    """A node's word on a chunk."""

    HAVE = "have"
    FETCHING = "fetching"
    LACKS = "lacks"


@dataclass(frozen=True, slots=True)
class Ask:
    """Who wants a chunk and why; travels with every request between nodes.

    hops: how often the request was forwarded; bounded, so that disagreeing views cannot pass it round for ever.
    priority: 0 is a container that waits, larger numbers are background work.
    """

    manifest: Digest
    asker: str
    hops: int = 0
    priority: int = 0


class Sink(Protocol):
    """Where one chunk's bytes go while they arrive: in order, each once, hashed as they pass.

    Of what another machine or an origin sends, every byte is written from the event loop: the memory behind is the
    loop's, shared by all sinks.
    """

    chunk: Chunk

    @property
    def received(self) -> int:
        """Bytes so far."""

    def write(self, piece: memoryview | bytes) -> None:
        """Take the next bytes. Raises ShortRead past the chunk's size and DiskFull when the disk is."""

    def restart(self) -> None:
        """Forget what came: the next source starts at byte 0."""

    def digest(self) -> Digest:
        """Of everything written so far."""


class Store(Protocol):
    """This node's disk: models as whole files in place, and which chunks of them are verified."""

    def has(self, digest: Digest) -> bool:
        """Whether a verified copy is here, in any model."""

    def verified(self, manifest: Digest) -> frozenset[Digest]:
        """The chunks of an admitted model that are in place in *that* model."""

    async def admit(self, manifest: Manifest) -> None:
        """Make room for a model and its files-to-be. Raises DiskFull before the first byte. Idempotent.

        A complete model that lost files behind the store's back is incomplete afterwards.
        """

    async def adopt(self, manifest: Digest, chunk: Chunk) -> bool:
        """Put a chunk in place from another model on this disk; False when none has it. Verified as a fetch is."""

    def sink(self, manifest: Digest, chunk: Chunk, *, hot: bool = False) -> Sink:
        """A place for one chunk of an admitted model. Not visible until `commit`.

        hot: others are about to ask for it, so it is worth keeping where it can be sent from.
        """

    async def commit(self, manifest: Digest, sink: Sink) -> None:
        """The sink's digest was checked: put every placement of the chunk in place and mark it verified."""

    def discard(self, sink: Sink) -> None:
        """Give the sink's resources back; what it received is worth nothing."""

    async def publish(self, manifest: Digest) -> str:
        """Every chunk is verified: sync, set modes, make the model's directory appear whole. Returns its path."""

    def published(self, manifest: Digest) -> str | None:
        """The directory of a complete model, or None."""

    def models(self) -> Iterable[Digest]:
        """Every admitted model, complete or not."""

    async def recheck(self, digest: Digest) -> Mapping[Digest, bool]:
        """Read a verified chunk back and forget it where its bytes went bad: the models that lost it, and whether each
        was complete before. Raises Invalid where it could not be read for another reason, which says nothing of it."""


class Peers(Protocol):
    """The other nodes, as this one calls them."""

    async def fetch_into(self, node: Node, chunk: Chunk, ask: Ask, sink: Sink, *, stall_s: float) -> None:
        """The chunk's bytes from one node, which may itself be waiting for them.

        Raises ChunkMissing (it lacks the chunk and will not get it), Busy (at its upload cap; names other holders),
        SourceDown (refused), SourceSilent (neither a byte nor word that it still waits for `stall_s`), ShortRead.
        """

    async def probe(self, node: Node, chunks: Sequence[Digest], ask: Ask, *, stall_s: float) -> tuple[Holding, ...]:
        """What the node says of each chunk, without making it fetch any. Raises SourceDown, SourceSilent."""

    async def tell(self, node: Node, topic: str, body: bytes, *, stall_s: float) -> bytes:
        """One small message between coordinators; the answer's bytes. Raises SourceDown, SourceSilent."""


class PeerDocuments(Protocol):
    """The manifests of the other nodes, as this one asks for them; `Ask.manifest` says which."""

    async def whereabouts(self, node: Node, ask: Ask, *, stall_s: float) -> tuple[str, ...]:
        """The names of nodes that have the manifest, itself first if it does, as far as the node knows. A small answer
        at once. Raises SourceDown, SourceSilent."""

    async def read_document(self, node: Node, digest: Digest, ask: Ask, *, bytes_max: int, stall_s: float) -> bytes:
        """The manifest's root or a chunk list that it names, digest checked.

        Raises Missing, Corrupt (other bytes, or more than `bytes_max`), SourceDown, SourceSilent.
        """


class Documents(Protocol):
    """What this node says when others ask it for manifests: the other end of `PeerDocuments`."""

    def document(self, digest: Digest) -> bytes | None:
        """None when no model of this node has it."""

    def whereabouts(self, manifest: Digest, asker: str) -> tuple[str, ...]:
        """Who else is said to have or read something of the model; a few names, drawn for each asker."""


class Lease(Protocol):
    """Leave to send one verified chunk to one asker; it may hold an upload slot until it is closed."""

    def close(self, sent_bytes: int) -> None:
        """Called exactly once, when the last byte left or the asker went away."""


class Answerer(Protocol):
    """What this node says when others ask it: the other end of `Peers`, and it raises the same errors."""

    async def answer(self, digest: Digest, ask: Ask) -> Lease:
        """Returns once a verified copy is on this node's shelf; until then the server tells the asker that it waits.

        Cancelled when the asker goes away. Raises ChunkMissing (not here and not coming), Busy (with other holders),
        Down (this node's own sources failed): the asker gets the same error, as its own kind.
        """

    def missed(self, digest: Digest) -> None:
        """The chunk cannot be opened: it went bad on this disk, or somebody deleted it. Others must not count on it."""

    def probe(self, digests: Sequence[Digest], ask: Ask) -> tuple[Holding, ...]:
        """One word on each chunk, at once, fetching none."""

    async def told(self, topic: str, body: bytes) -> bytes:
        """A message of another node's coordinator; raises Missing for an unknown topic."""


@dataclass(frozen=True, slots=True)
class Span:
    """`size` bytes at `offset` of an open file."""

    fd: int
    offset: int
    size: int


class OpenChunk(Protocol):
    """A verified chunk held open for sending: its spans in order are its bytes, even if the model is deleted."""

    @property
    def spans(self) -> Sequence[Span]: ...

    @property
    def size(self) -> int: ...

    def close(self) -> None: ...


class Shelf(Protocol):
    """What a server sends from: a node's store, or a mirrored directory."""

    def open(self, digest: Digest) -> OpenChunk | None:
        """None when no verified copy is here. Raises Invalid where it cannot be opened for want of a descriptor."""


class Origin(Protocol):
    """Our mirror in object storage: immutable objects by digest, and named pointers to manifests."""

    async def fetch_into(self, chunk: Chunk, sink: Sink, *, stall_s: float) -> None:
        """Raises ChunkMissing, SourceDown (with retry_after_s where the server says so), SourceSilent, ShortRead."""

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        """A manifest root or chunk list, digest checked. Raises Missing, Corrupt, SourceDown."""

    async def read_tag(self, name: str, tag: str) -> Digest:
        """The manifest that `name:tag` points to now. Raises Missing, Corrupt."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Who said at the origin that it reads a chunk. age_s: by the origin's own clock, so that no other clock counts.

    mark: this very claim; it is what `Claims.take` replaces, and nothing written since. fresh: the call that returned
    it wrote it.
    """

    holder: str
    age_s: float
    mark: str
    fresh: bool = False


class Claims(Protocol):
    """One small object a chunk at the origin, written only where the one that was seen still stands."""

    async def take(self, chunk: Digest, holder: str, *, replace: Claimed | None = None) -> Claimed:
        """Write the holder's claim if there is none, or if `replace` still stands; returns the claim that stands now.

        Raises SourceDown, and Invalid where this node may not write.
        """


@dataclass(frozen=True, slots=True)
class TagEntry:
    name: str
    tag: str
    manifest: Digest


class OriginWriter(Protocol):
    """The mirror's side of the origin. Objects are written once and never change; tags move."""

    async def held(self, chunks: Sequence[Chunk], *, reread: bool = False) -> frozenset[Digest]:
        """Which of these chunks are there already, whole: by digest in a directory, by length in a bucket, where
        `reread` reads each back and hashes it."""

    async def put(self, chunk: Chunk, body: bytes | memoryview) -> None:
        """Store one chunk whole or not at all; a second put of the same changes nothing. `body` is free on return."""

    async def put_document(self, digest: Digest, body: bytes) -> None:
        """A manifest root or chunk list. Put it after all it names: once there, readers rely on it."""

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        """Digest checked. Raises Missing."""

    async def read_tag(self, name: str, tag: str) -> Digest:
        """Raises Missing, Corrupt."""

    async def move_tag(self, name: str, tag: str, manifest: Digest, *, expect: Digest | None) -> None:
        """Point `name:tag` at a manifest if it still points at `expect` (None: does not exist yet, or is damaged).

        Raises Invalid when another writer moved it first, where the store can tell; see `compares_and_swaps`.
        """

    @property
    def compares_and_swaps(self) -> bool: ...

    def tags(self) -> AsyncIterator[TagEntry]:
        """Every tag that can be read; then raises Corrupt if there are others, naming them."""

    async def recall(self, what: Digest) -> Digest | None:
        """The manifest remembered under `what`: a source at one revision under one set of filters."""

    async def remember(self, what: Digest, manifest: Digest) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UpstreamFile:
    """One file as the upstream lists it. checksums: the upstream's own, such as ("sha256", hex); never an ETag."""

    path: str
    size: int
    mode: int = 0o644
    checksums: tuple[tuple[str, str], ...] = ()
    link_target: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds at one pinned revision, before any filter."""

    source: str
    revision: str
    files: tuple[UpstreamFile, ...]


class Upstream(Protocol):
    """Where a model comes from, read once, at deploy time only."""

    async def listing(self) -> Listing:
        """Pins the revision. Raises Invalid (unknown source, gated, wrong credentials), SourceDown."""

    def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        """The file's bytes from `offset`, in pieces; a piece is valid until the next one is asked for."""

    async def close(self) -> None: ...


class Membership(Protocol):
    """Who is there. `roster` is the newest view; `changes` yields every later one."""

    @property
    def roster(self) -> Roster: ...

    def changes(self) -> AsyncIterator[Roster]: ...


class Clock(Protocol):
    """Monotonic time in seconds; the event loop's in a node, simulated in the simulator."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

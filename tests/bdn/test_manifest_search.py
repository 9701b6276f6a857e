"""A manifest comes from a node that has it, whatever else the others send, and from the origin when none does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bdn.clock import LoopClock
from bdn.digest import Digest
from bdn.documents import read_manifest_with
from bdn.errors import Invalid, Missing, SourceDown
from bdn.http.client import PeerClient
from bdn.http.peer import PeerServer
from bdn.ledger import Ledger
from bdn.manifest import DOCUMENT_BYTES_MAX, Manifest, parse
from bdn.manifest_search import Found, ManifestSearch, SearchLimits
from bdn.nvme import NvmeStore
from bdn.policy import Limits, OriginUse
from bdn.ports import Tier
from bdn.roster import Node, Roster
from bdn.standing import Standing
from tests.bdn.fakes import FileShelf, Library, ScriptedAnswerer
from tests.bdn.models import model

MADE = model(chunk_bytes=1 << 10, big_bytes=300_000).manifest  # Of 293 chunks: its list is a document of its own.
MANIFEST = parse(MADE.documents[0], lambda d: MADE.documents_by_digest[d])
DIGEST = MANIFEST.digest
FOREVER_S = 3600.0
PATIENT = SearchLimits(look_s=FOREVER_S, answer_s=FOREVER_S, head_start_s=FOREVER_S, again_s=0.02, again_s_max=0.02)


@dataclass
class ScriptedOrigin:
    """Implements `Origin` for documents: gives them, fails, or never answers."""

    manifests: Sequence[Manifest] = ()
    fails: Exception | None = None
    hangs: bool = False
    reads: int = 0

    async def read_document(self, digest: Digest, *, bytes_max: int) -> bytes:
        self.reads += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        body = Library(self.manifests).document(digest)
        if body is None:
            raise Missing("it is not there")
        return body

    async def fetch_into(self, *_: object, **__: object) -> None:
        raise AssertionError("a search reads no chunk")

    async def read_tag(self, name: str, tag: str) -> Digest:
        raise AssertionError("a search reads no tag")


@dataclass
class Cluster:
    """Nodes on real sockets, and what a fresh node sees of them."""

    tmp: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    said: list[str] = field(default_factory=list)

    @property
    def roster(self) -> Roster:
        return Roster((*self.nodes.values(), Node("me")))

    def ranked(self) -> list[str]:
        return [n.name for n in self.roster.ranked(DIGEST) if n.name != "me"]

    async def find(
        self, origin: ScriptedOrigin | None, *, search: SearchLimits = PATIENT, patience_s: float = 0.0,
        use: OriginUse = OriginUse.PREFER, digest: Digest = DIGEST,
    ) -> Found:  # fmt: skip
        """Leaves no task behind, whichever way it ends."""
        store, client = NvmeStore(self.tmp / "store"), PeerClient()
        limits = Limits(origin_patience_s=patience_s)
        seeker = ManifestSearch(
            "me", store, client, origin, lambda: self.roster, LoopClock(), Standing(), self.ledger, limits,
            search=search, say=self.said.append,
        )  # fmt: skip
        try:
            return await seeker.find(digest, use)
        finally:
            assert not [t for t in asyncio.all_tasks() if "ManifestSearch" in repr(t.get_coro())]
            await client.close()
            store.close()


@asynccontextmanager
async def cluster(tmp: Path, libraries: dict[str, Library]) -> AsyncIterator[Cluster]:
    found = Cluster(tmp)
    async with contextlib.AsyncExitStack() as stack:
        for name, library in libraries.items():
            server = PeerServer(ScriptedAnswerer(), FileShelf([]), documents=library)
            found.nodes[name] = Node(name, "127.0.0.1", await server.start("127.0.0.1", 0))
            stack.push_async_callback(server.stop)
        yield found


@asynccontextmanager
async def rogue(head: bytes, body: bytes = b"", *, then: str = "") -> AsyncIterator[Node]:
    """Says that it has everything; answers every GET with these bytes. then: "hang", "drip" or "close" after them, or
    "mute" to say nothing at all."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                if then == "mute":
                    await reader.read()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n" if request[:4] == b"HEAD" else head + body)
                await writer.drain()
                if request[:4] == b"HEAD":
                    continue
                while then == "drip":
                    await asyncio.sleep(0.02)
                    writer.write(b"x")
                    await writer.drain()
                if then == "hang":
                    await reader.read()
                if then == "close":
                    break
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield Node("rogue", "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


def ok(length: int, *more: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {length}", *more, "", ""]).encode()


def test_it_comes_from_a_node_that_has_it_and_the_origin_is_not_asked(tmp_path: Path) -> None:
    async def work() -> None:
        origin = ScriptedOrigin([MANIFEST])
        async with cluster(tmp_path, {name: Library([MANIFEST]) for name in "abcde"}) as there:
            found = await there.find(origin)
            assert found == Found(MANIFEST, Tier.PEER) and origin.reads == 0
            assert there.ledger.documents_by_tier == {Tier.PEER: 2} and not there.ledger.misses

    asyncio.run(work())


def test_who_coordinates_the_model_names_one_that_has_it(tmp_path: Path) -> None:
    """In a large cluster only a few have a model, and they are none of those that are asked first."""

    async def work() -> None:
        libraries = {f"n{i}": Library() for i in range(8)}
        origin = ScriptedOrigin([MANIFEST])
        async with cluster(tmp_path, libraries) as there:
            ranked = there.ranked()
            libraries[ranked[-1]].manifests = [MANIFEST]
            libraries[ranked[0]].names = ("me", "gone-since", ranked[-1])
            assert (await there.find(origin)).tier is Tier.PEER and origin.reads == 0
            assert [bool(libraries[name].asked) for name in ranked] == [True] * 3 + [False] * 4 + [True]

    asyncio.run(work())


def test_where_nobody_has_it_a_few_are_asked_once_and_then_the_origin(tmp_path: Path) -> None:
    async def work() -> None:
        libraries = {f"n{i}": Library() for i in range(8)}
        async with cluster(tmp_path, libraries) as there:
            found = await there.find(origin := ScriptedOrigin([MANIFEST]))
            assert found == Found(MANIFEST, Tier.ORIGIN) and origin.reads == 2
            assert sorted(len(lib.asked) for lib in libraries.values()) == [0] * 5 + [1] * 3
            assert there.ledger.documents_by_tier == {Tier.ORIGIN: 2}

    asyncio.run(work())


BAD = {
    "wrong bytes": (ok(9), b"not json\n", ""),
    "a manifest, but another": (ok(len(model(2).manifest.documents[0])), model(2).manifest.documents[0], ""),
    "too large": (ok(DOCUMENT_BYTES_MAX + 1), b"x", "hang"),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n", b"x", "hang"),
    "coded": (ok(3, "content-encoding: gzip"), b"xxx", ""),
    "drips": (ok(1 << 20), b"", "drip"),
    "hangs": (b"", b"", "hang"),
    "hangs in the body": (ok(1 << 20), b"x" * 5000, "hang"),
    "closes": (b"", b"", "close"),
    "closes in the body": (ok(1000), b"x" * 10, "close"),
    "lacks it after all": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", b"", ""),
    "failing": (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", b"", ""),
    "another version": (b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n", b"", ""),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"", "close"),
}


@pytest.mark.parametrize("how", BAD)
def test_whatever_a_liar_sends_the_next_one_gives_it(how: str, tmp_path: Path) -> None:
    head, body, then = BAD[how]
    hasty = replace(PATIENT, answer_s=0.3)

    async def alone() -> None:
        async with cluster(tmp_path, {}) as there, rogue(head, body, then=then) as liar:
            there.nodes = {"rogue": liar}
            with pytest.raises(Missing, match="on no node that answers"):
                await there.find(None, search=hasty)
            assert there.ledger.misses and not there.ledger.documents_by_tier

    async def beside_an_honest_one() -> None:
        async with cluster(tmp_path, {"honest": Library([MANIFEST])}) as there, rogue(head, body, then=then) as liar:
            there.nodes["rogue"] = liar
            # Where a busy machine makes the honest one late as well, all are asked again.
            assert await there.find(ScriptedOrigin(hangs=True), search=hasty) == Found(MANIFEST, Tier.PEER)

    asyncio.run(alone())
    asyncio.run(beside_an_honest_one())


def test_a_liar_about_one_document_does_not_spoil_the_others(tmp_path: Path) -> None:
    """It gives the right root and a wrong chunk list."""

    class HalfTrue(Library):
        def document(self, digest: Digest) -> bytes | None:
            return super().document(digest) if digest == DIGEST else b"{}"

    async def work() -> None:
        async with cluster(tmp_path, {"half": HalfTrue([MANIFEST]), "whole": Library([MANIFEST])}) as there:
            whole = there.nodes.pop("whole")
            with pytest.raises(Missing, match="on no node that answers"):
                await there.find(None)
            assert there.ledger.corrupt_by_source == {"half": 2} and "half" in there.said[0]
            there.nodes["whole"] = whole
            assert (await there.find(None)).manifest == MANIFEST

    asyncio.run(work())


@pytest.mark.parametrize("how", ["hang", "mute"])
def test_nodes_that_hang_do_not_hold_the_origin_up(how: str, tmp_path: Path) -> None:
    """Their time is an hour here: the search ends because the origin is asked beside them."""
    search = SearchLimits(look_s=FOREVER_S, answer_s=FOREVER_S, head_start_s=0.01, again_s=FOREVER_S)

    async def work() -> None:
        async with cluster(tmp_path, {}) as there, rogue(b"", then=how) as silent:
            there.nodes["rogue"] = silent
            assert (await there.find(ScriptedOrigin([MANIFEST]), search=search)).tier is Tier.ORIGIN

    asyncio.run(work())


@pytest.mark.parametrize("origin", [
    ScriptedOrigin(hangs=True), ScriptedOrigin(fails=SourceDown("origin", "status 503", retry_after_s=0.01)),
    ScriptedOrigin(fails=Missing("deleted there")), None,
], ids=["silent", "throttling", "swept", "none"])  # fmt: skip
def test_without_the_origin_every_member_is_asked(origin: ScriptedOrigin | None, tmp_path: Path) -> None:
    async def work() -> None:
        libraries = {f"n{i}": Library() for i in range(30)}
        async with cluster(tmp_path, libraries) as there:
            libraries[there.ranked()[-1]].manifests = [MANIFEST]
            assert (await there.find(origin, patience_s=FOREVER_S)).tier is Tier.PEER

    asyncio.run(work())


def test_a_member_that_comes_late_is_asked_as_well(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"late": Library([MANIFEST])}) as there:
            late, there.nodes = there.nodes, {}
            asyncio.get_running_loop().call_later(0.1, lambda: there.nodes.update(late))
            assert (await there.find(ScriptedOrigin(hangs=True))).tier is Tier.PEER

    asyncio.run(work())


def test_the_origin_s_error_is_told_when_nobody_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"a": Library()}) as there:
            with pytest.raises(SourceDown, match="no node that answers has this manifest either") as why:
                await there.find(ScriptedOrigin(fails=SourceDown("http://o:1", "refused")))
            assert why.value.exit_code == 4
            with pytest.raises(Missing, match="there is no manifest b3:"):
                await there.find(ScriptedOrigin())

    asyncio.run(work())


def test_what_is_no_manifest_is_none_whoever_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        origin = ScriptedOrigin([MANIFEST])
        async with cluster(tmp_path, {"a": Library([MANIFEST])}) as there:
            chunk_list = list(MANIFEST.documents_by_digest)[1]
            with pytest.raises(Invalid, match="the manifest is invalid"):
                await there.find(origin, digest=chunk_list)
            assert origin.reads == 0

    asyncio.run(work())


def test_a_list_named_in_other_letters_makes_no_manifest() -> None:
    """Who looks for the lists by their usual spelling overlooks it."""
    root = MADE.documents[0].replace(b'"list":', b'"\\u006cist":')
    documents = {**MADE.documents_by_digest, Digest.of(root): root}

    async def read(name: Digest) -> bytes:
        return documents[name]

    with pytest.raises(Invalid, match="canonical"):
        asyncio.run(read_manifest_with(read, Digest.of(root)))


def test_where_peers_are_not_to_be_used_they_are_not_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"a": (library := Library([MANIFEST]))}) as there:
            assert (await there.find(ScriptedOrigin([MANIFEST]), use=OriginUse.REQUIRE)).tier is Tier.ORIGIN
            assert not library.asked
            assert (await there.find(ScriptedOrigin(hangs=True), use=OriginUse.FORBID)).tier is Tier.PEER

    asyncio.run(work())


def test_who_goes_away_leaves_no_search_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"a": Library()}) as there:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await there.find(ScriptedOrigin(hangs=True))

    asyncio.run(work())

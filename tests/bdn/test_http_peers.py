"""Between two nodes: bytes arrive whole, each refusal keeps its kind, and slow is not silent."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from bdn.digest import Digest
from bdn.errors import Busy, ChunkMissing, Corrupt, Invalid, Missing, ShortRead, SourceDown, SourceSilent
from bdn.http.client import PeerClient
from bdn.http.head import Head
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.manifest import Chunk
from bdn.ports import Ask, Holding
from bdn.roster import Node
from tests.bdn.fakes import FileShelf, Library, MemorySink, ScriptedAnswerer, missing
from tests.bdn.models import model

BODY = random.Random(3).randbytes(3_000_000)
CHUNK = Chunk(Digest.of(BODY), len(BODY))
ASK = Ask(Digest.of(b"a manifest"), "node-a", hops=2, priority=1)
LIBRARY = Library([model(chunk_bytes=256, big_bytes=300_000).manifest])  # Its chunk list has 85 KB.
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    start: Run = request.param
    return start


@asynccontextmanager
async def node(answerer: ScriptedAnswerer, shelf: FileShelf | None = None, **limits: Any) -> AsyncIterator[Any]:
    server = PeerServer(answerer, shelf or FileShelf([BODY]), ServerLimits(**limits), documents=LIBRARY)
    client = PeerClient()
    try:
        yield client, Node("node-b", "127.0.0.1", await server.start("127.0.0.1", 0)), server
    finally:
        await client.close()
        await server.stop()


@asynccontextmanager
async def rogue(reply: bytes, *, then_close: bool = False, drip_s: float = 0.0) -> AsyncIterator[Node]:
    """A peer that answers every request with these bytes, right or wrong; drip_s: and then a byte now and then."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(reply)
                await writer.drain()
                while drip_s:
                    await asyncio.sleep(drip_s)
                    writer.write(b"x")
                    await writer.drain()
                if then_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield Node("rogue", "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


def test_a_chunk_arrives_whole_and_the_ask_with_it(run: Run) -> None:
    async def work() -> None:
        answerer = ScriptedAnswerer()
        async with node(answerer) as (client, peer, server):
            for _ in range(3):
                sink = MemorySink(CHUNK)
                await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5)
                assert bytes(sink.data) == BODY
            assert answerer.asks == [ASK] * 3
            assert server.http.sent.bytes_by_asker["node-a"] == 3 * len(BODY)
        assert answerer.sent == [len(BODY)] * 3

    run(work())


def test_many_at_once_share_few_connections(run: Run) -> None:
    async def work() -> None:
        bodies = [random.Random(i).randbytes(100_000 + i) for i in range(40)]
        async with node(ScriptedAnswerer(), FileShelf(bodies)) as (_, peer, server):
            client = PeerClient(per_node_max=4)
            sinks = [MemorySink(Chunk(Digest.of(b), len(b))) for b in bodies]
            await asyncio.gather(*(client.fetch_into(peer, s.chunk, ASK, s, stall_s=5) for s in sinks))
            assert [bytes(s.data) for s in sinks] == bodies
            assert len(server.http._connections) <= 4
            await client.close()

    run(work())


def test_each_refusal_keeps_its_kind(run: Run) -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        (missing(CHUNK.digest), ChunkMissing),
        (Busy("node-b", holders=("node-c", "node-d"), retry_after_s=0.5), Busy),
        (SourceDown("origin", "status 503", retry_after_s=7), SourceDown),
    ]

    async def work() -> None:
        for refuse, kind in cases:
            async with node(ScriptedAnswerer(refuse=refuse)) as (client, peer, _):
                with pytest.raises(kind) as caught:
                    await client.fetch_into(peer, CHUNK, ASK, MemorySink(CHUNK), stall_s=5)
                if isinstance(caught.value, Busy):
                    assert caught.value.holders == ("node-c", "node-d")
                    assert caught.value.retry_after_s == 0.5
                if isinstance(caught.value, SourceDown):
                    assert caught.value.retry_after_s == 7

    run(work())


def test_a_chunk_that_left_the_shelf_is_missing_and_its_lease_is_closed(run: Run) -> None:
    async def work() -> None:
        answerer = ScriptedAnswerer()
        async with node(answerer, FileShelf([])) as (client, peer, _):
            with pytest.raises(ChunkMissing):
                await client.fetch_into(peer, CHUNK, ASK, MemorySink(CHUNK), stall_s=5)
        assert answerer.sent == [0] and answerer.gone == [CHUNK.digest], "others must not be sent here for it"

    run(work())


def test_an_owner_that_still_waits_says_so_and_is_not_left(run: Run) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        async with node(ScriptedAnswerer(gate=gate), heartbeat_s=0.02) as (client, peer, _):
            sink = MemorySink(CHUNK)
            fetch = asyncio.create_task(client.fetch_into(peer, CHUNK, ASK, sink, stall_s=0.2))
            asyncio.get_running_loop().call_later(1.0, gate.set)
            await fetch
            assert bytes(sink.data) == BODY

    run(work())


def test_a_silent_owner_is_left_after_stall_s(run: Run) -> None:
    async def work() -> None:
        answerer = ScriptedAnswerer(gate=asyncio.Event())
        async with node(answerer, heartbeat_s=60) as (client, peer, _):
            with pytest.raises(SourceSilent):
                await client.fetch_into(peer, CHUNK, ASK, MemorySink(CHUNK), stall_s=0.1)
            await answerer.cancelled.wait()  # The owner learns that nobody waits any more.

    run(work())


def test_a_cancelled_fetch_cancels_the_answer(run: Run) -> None:
    async def work() -> None:
        answerer = ScriptedAnswerer(gate=asyncio.Event())
        async with node(answerer) as (client, peer, _):
            fetch = asyncio.create_task(client.fetch_into(peer, CHUNK, ASK, MemorySink(CHUNK), stall_s=5))
            await answerer.asked.wait()
            fetch.cancel()
            await answerer.cancelled.wait()

    run(work())


def test_probe_and_tell(run: Run) -> None:
    async def work() -> None:
        answerer = ScriptedAnswerer()
        answerer.holdings = {CHUNK.digest: Holding.HAVE, Digest.of(b"f"): Holding.FETCHING}
        async with node(answerer) as (client, peer, _):
            said = await client.probe(peer, [CHUNK.digest, Digest.of(b"f"), Digest.of(b"?")], ASK, stall_s=5)
            assert said == (Holding.HAVE, Holding.FETCHING, Holding.LACKS)
            assert await client.tell(peer, "echo", b"abc", stall_s=5) == b"cba"
            with pytest.raises(SourceDown):
                await client.tell(peer, "nonsense", b"abc", stall_s=5)

    run(work())


def test_who_has_a_manifest_is_said_at_once_and_each_document_given(run: Run) -> None:
    async def work() -> None:
        (made,) = LIBRARY.manifests
        about = replace(ASK, manifest=made.digest)
        async with node(ScriptedAnswerer()) as (client, peer, server):
            LIBRARY.names = ("node-c", "not a name", "10.0.0.7:7411")
            assert await client.whereabouts(peer, about, stall_s=5) == ("node-b", "node-c", "10.0.0.7:7411")
            assert await client.whereabouts(peer, ASK, stall_s=5) == ("node-c", "10.0.0.7:7411"), "named, not had"
            for digest, body in made.documents_by_digest.items():
                assert await client.read_document(peer, digest, about, bytes_max=1 << 20, stall_s=5) == body
            with pytest.raises(Corrupt, match="at most 9 expected"):
                await client.read_document(peer, made.digest, about, bytes_max=9, stall_s=5)
            with pytest.raises(Missing, match="does not have manifest document"):
                await client.read_document(peer, CHUNK.digest, about, bytes_max=1 << 20, stall_s=5)
            assert server.http.sent.bytes_total == 0, "only what chunks are made of counts as served"

    run(work())


def test_a_node_that_knows_of_no_documents_has_none(run: Run) -> None:
    async def work() -> None:
        server, client = PeerServer(ScriptedAnswerer(), FileShelf([])), PeerClient()
        peer = Node("node-b", "127.0.0.1", await server.start("127.0.0.1", 0))
        assert await client.whereabouts(peer, ASK, stall_s=5) == ()
        await client.close()
        await server.stop()

    run(work())


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 9), ("", 0), ("127.0.0.1", 99_999), ("x" * 64, 9), ("a..b", 9), ("\0", 9)]
)
def test_a_node_that_is_not_there_is_down_at_once(run: Run, host: str, port: int) -> None:
    async def work() -> None:
        client = PeerClient()
        with pytest.raises(SourceDown):
            await client.fetch_into(Node("gone", host, port), CHUNK, ASK, MemorySink(CHUNK), stall_s=5)

    run(work())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5", 0.5), ("-3", 0.0), ("1e99", 3600.0), ("inf", 3600.0), ("nan", None), ("soon", None), ("", None)],
)
def test_how_long_to_wait_is_a_number_with_an_end(text: str, seconds: float | None) -> None:
    assert Head(429, {"retry-after": text}, True).retry_after_s == seconds


def head(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (head(f"content-length: {len(BODY) - 1}") + BODY[:-1], ShortRead),
        (head(f"content-length: {len(BODY) + 1}") + BODY + b"x", ShortRead),
        (head(f"content-length: {len(BODY)}", "content-encoding: gzip") + BODY, Corrupt),
        (head("transfer-encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n", SourceDown),
        (head("content-length: 5", f"content-length: {len(BODY)}") + BODY, SourceDown),
        (head("content-length: -5") + BODY, SourceDown),
        (head() + BODY, SourceDown),
        (b"<html>not HTTP</html>\r\n\r\n", SourceDown),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, SourceDown),
        (b"HTTP/1.1 302 Found\r\nlocation: http://evil/\r\ncontent-length: 0\r\n\r\n", SourceDown),
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\n\r\nwho", Invalid),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 99999999\r\n\r\n", SourceDown),
        (head(f"content-length: {len(BODY)}", "content-range: bytes 1-3000000/*").replace(b"200", b"206"), Corrupt),
    ],
)
def test_what_is_not_the_answer_is_refused_by_kind(reply: bytes, kind: type[Exception]) -> None:
    async def work() -> None:
        async with rogue(reply) as peer:
            client, sink = PeerClient(), MemorySink(CHUNK)
            with pytest.raises(kind):
                await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=2)
            await client.close()

    uvloop.run(work())


def test_a_body_cut_short_by_a_hang_up_is_down_and_the_next_try_starts_over() -> None:
    async def work() -> None:
        client, sink = PeerClient(), MemorySink(CHUNK)
        async with rogue(head(f"content-length: {len(BODY)}") + BODY[:1000], then_close=True) as peer:
            with pytest.raises(SourceDown):
                await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=2)
        async with rogue(head(f"content-length: {len(BODY)}") + BODY) as peer:
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=2)
        assert bytes(sink.data) == BODY
        await client.close()

    uvloop.run(work())


WHOLE = head("x-bdn: 1", f"content-length: {len(BODY)}") + BODY
BEGINS = WHOLE.index(BODY)


@pytest.mark.parametrize("at", [0, 1, 9, 15, 17, 22, BEGINS - 4, BEGINS - 1, BEGINS, BEGINS + 1, len(WHOLE) - 1])
def test_wherever_a_connection_breaks_the_source_is_down_and_the_next_try_is_whole(run: Run, at: int) -> None:
    async def work() -> None:
        client, sink = PeerClient(), MemorySink(CHUNK)
        async with rogue(b"HTTP/1.1 102 Processing\r\n\r\n" + WHOLE[:at], then_close=True) as peer:
            with pytest.raises(SourceDown):
                await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5)
        async with rogue(WHOLE) as peer:
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5)
        assert bytes(sink.data) == BODY
        await client.close()

    run(work())


@pytest.mark.parametrize("begun", [0, 1000, 50_000], ids=str)
def test_a_source_that_drips_is_left_as_a_silent_one_is(run: Run, begun: int) -> None:
    async def work() -> None:
        client, sink = PeerClient(), MemorySink(CHUNK)
        async with rogue(head(f"content-length: {len(BODY)}") + BODY[:begun], drip_s=0.02) as peer:
            with pytest.raises(SourceSilent):
                await asyncio.wait_for(client.fetch_into(peer, CHUNK, ASK, sink, stall_s=0.2), 20)
        await client.close()

    run(work())


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async def work() -> None:
        client = PeerClient()
        async with rogue(head(f"content-length: {len(BODY)}") + BODY, then_close=True) as peer:
            for _ in range(3):
                sink = MemorySink(CHUNK)
                await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=2)
                assert bytes(sink.data) == BODY
        await client.close()

    uvloop.run(work())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/chunks/zz HTTP/1.1\r\nx-bdn-asker: a\r\n\r\n",
        b"GET /v1/chunks/../../etc/passwd HTTP/1.1\r\nx-bdn-asker: a\r\n\r\n",
        f"GET /v1/chunks/{CHUNK.digest.hex} HTTP/1.1\r\n\r\n".encode(),
        f"GET /v1/chunks/{CHUNK.digest.hex} HTTP/1.1\r\nx-bdn-asker: a b\r\n\r\n".encode(),
        f"GET /v1/documents/{CHUNK.digest.hex} HTTP/1.1\r\n\r\n".encode(),
        f"HEAD /v1/documents/{CHUNK.digest.hex} HTTP/1.1\r\nx-bdn-asker: a b\r\n\r\n".encode(),
        b"GET /v1/documents/../../etc/passwd HTTP/1.1\r\nx-bdn-asker: a\r\n\r\n",
        f"POST /v1/documents/{CHUNK.digest.hex} HTTP/1.1\r\nx-bdn-asker: a\r\n\r\n".encode(),
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nbroken header\r\n\r\n",
        b"POST /v1/probe HTTP/1.1\r\nx-bdn-asker: a\r\ncontent-length: 5\r\n\r\nabcde",
        b"POST /v1/probe HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_bad_request_gets_a_short_no_and_the_server_lives_on(run: Run, request_bytes: bytes) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer()) as (client, peer, _):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
            writer.write(request_bytes)
            status = await reader.readline()
            assert status.split()[1] in (b"400", b"404", b"405", b"413")
            writer.close()
            sink = MemorySink(CHUNK)
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5)
            assert bytes(sink.data) == BODY

    run(work())


def test_requests_sent_together_are_answered_in_order(run: Run) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer()) as (_, peer, _):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
            live = b"GET /livez HTTP/1.1\r\n"
            writer.write(live + b"\r\nGET /nope HTTP/1.1\r\n\r\n" + live + b"connection: close\r\n\r\n")
            text = await reader.read()
            assert re.findall(rb"HTTP/1.1 (\d+)", text) == [b"200", b"404", b"200"]
            writer.close()

    run(work())


def test_an_upload_cap_is_kept(run: Run) -> None:
    async def work() -> None:
        async with node(ScriptedAnswerer(), bytes_per_s=10e6) as (client, peer, _):
            loop = asyncio.get_running_loop()
            start, sink = loop.time(), MemorySink(CHUNK)
            await client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5)
            assert loop.time() - start >= len(BODY) / 10e6 - 0.1  # Never faster; how much slower is the machine's.

    run(work())


def test_a_stopping_server_finishes_what_it_sends(run: Run) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        answerer = ScriptedAnswerer(gate=gate)
        async with node(answerer) as (client, peer, server):
            sink = MemorySink(CHUNK)
            fetch = asyncio.create_task(client.fetch_into(peer, CHUNK, ASK, sink, stall_s=5))
            await answerer.asked.wait()
            stop = asyncio.create_task(server.stop(drain_s=5))
            await asyncio.sleep(0)
            gate.set()
            await fetch
            await stop
            assert bytes(sink.data) == BODY
            with pytest.raises(SourceDown):
                await client.fetch_into(peer, CHUNK, ASK, MemorySink(CHUNK), stall_s=5)

    run(work())

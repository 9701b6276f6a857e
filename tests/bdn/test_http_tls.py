"""The origin over TLS: the same bytes through the same receiver, and no byte from a server that nobody vouches for."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bdn.arena import Arena
from bdn.direct_sink import DirectSink
from bdn.errors import SourceDown
from bdn.http.client import PeerClient
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.origins.http import HttpOrigin
from bdn.ports import Ask
from bdn.roster import Node
from tests.bdn.fakes import FileShelf, Library, MemorySink, ScriptedAnswerer
from tests.bdn.models import model
from tests.bdn.test_http_peers import ASK, BODY, CHUNK, head

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificate")
MANIFEST = model(chunk_bytes=256, big_bytes=300_000).manifest
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *kind, "-keyout", str(key), "-out", str(cert), *subject]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@asynccontextmanager
async def origin(certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(head(f"content-length: {len(BODY)}") + BODY)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_chunk_arrives_whole_over_tls_into_either_kind_of_sink(
    certificate: tuple[Path, Path], run: Run, tmp_path: Path
) -> None:
    async def work() -> None:
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        async with origin(certificate) as url:
            reader, sink, arena = HttpOrigin(url, tls=trusted), MemorySink(CHUNK), Arena(2, 2)
            await reader.fetch_into(CHUNK, sink, stall_s=10)
            assert bytes(sink.data) == BODY
            file = tmp_path / "file"
            landed = DirectSink(CHUNK, os.open(file, os.O_RDWR | os.O_CREAT), 77, path=str(file), arena=arena)
            await reader.fetch_into(CHUNK, landed, stall_s=10)
            await landed.quiet()
            assert landed.digest() == CHUNK.digest and file.read_bytes()[77:] == BODY
            landed.close()
            await reader.close()

    run(work())


def test_a_server_that_nobody_vouches_for_is_down_and_sends_nothing(certificate: tuple[Path, Path]) -> None:
    async def work() -> None:
        async with origin(certificate) as url:
            reader, sink = HttpOrigin(url), MemorySink(CHUNK)
            with pytest.raises(SourceDown, match="TLS"):
                await reader.fetch_into(CHUNK, sink, stall_s=10)
            assert sink.received == 0

    asyncio.run(work())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_peers_speak_tls_and_each_must_show_who_it_is(certificate: tuple[Path, Path], run: Run) -> None:
    async def work() -> None:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(*certificate)
        serving.load_verify_locations(certificate[0])
        serving.verify_mode = ssl.CERT_REQUIRED
        limits, library = ServerLimits(heartbeat_s=0.05), Library([MANIFEST])
        server = PeerServer(ScriptedAnswerer(), FileShelf([BODY]), limits, tls=serving, documents=library)
        node = Node("node-b", "127.0.0.1", await server.start("127.0.0.1", 0))
        known = ssl.create_default_context(cafile=str(certificate[0]))
        known.load_cert_chain(*certificate)
        client, stranger = PeerClient(tls=known), PeerClient(tls=ssl.create_default_context(cafile=str(certificate[0])))
        for _ in range(3):
            sink = MemorySink(CHUNK)
            await client.fetch_into(node, CHUNK, ASK, sink, stall_s=10)
            assert bytes(sink.data) == BODY
        assert await client.tell(node, "echo", b"x" * 100_000, stall_s=10) == b"x" * 100_000
        about = Ask(MANIFEST.digest, "node-a")
        assert await client.whereabouts(node, about, stall_s=10) == ("node-b",)
        for digest, body in MANIFEST.documents_by_digest.items():
            assert await client.read_document(node, digest, about, bytes_max=1 << 20, stall_s=10) == body
        with pytest.raises(SourceDown):
            await stranger.fetch_into(node, CHUNK, ASK, MemorySink(CHUNK), stall_s=10)
        with pytest.raises(SourceDown):
            await stranger.whereabouts(node, about, stall_s=10)
        with pytest.raises(SourceDown):
            await stranger.read_document(node, MANIFEST.digest, about, bytes_max=1 << 20, stall_s=10)
        await client.close()
        await server.stop()

    run(work())

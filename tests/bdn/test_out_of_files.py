"""A node without a descriptor to spare says so; it never takes that for a chunk that is gone or went bad."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdn.bitfield import Bitfield
from bdn.digest import Digest
from bdn.errors import Invalid
from bdn.http.head import Request
from bdn.http.server import ServerLimits
from bdn.http.static import DirectoryServer
from bdn.nvme import NvmeStore
from bdn.origins.layout import chunk_key
from tests.bdn.models import Model, model
from tests.bdn.test_pack_sink import many
from tests.contract.test_store_contract import fill, same_files


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("made", [model(), many()], ids=["chunks", "pack"])
def test_a_complete_model_stays_where_it_is(made: Model, tmp_path: Path) -> None:
    """Readers have it open under its name; and no byte of it was found to be wrong."""

    async def work() -> None:
        store, digest = NvmeStore(tmp_path), made.manifest.digest
        await fill(store, made)
        path = await store.publish(digest)
        with no_descriptor_left():
            for asked in (store.verify(digest), store.recheck(made.chunks[0].digest)):
                with pytest.raises(Invalid, match="too many files"):
                    await asked
            with pytest.raises(Invalid, match="too many files"):
                store.open(made.chunks[0].digest)
        assert store.published(digest) == path and store.bad_chunks == 0 and store.has(made.chunks[0].digest)
        assert await store.verify(digest) == ()
        same_files(path, made)
        store.close()

    asyncio.run(work())


def test_a_pull_says_what_it_lacks_and_goes_on_later(tmp_path: Path) -> None:
    async def work() -> None:
        store, made = NvmeStore(tmp_path), model()
        await store.admit(made.manifest)
        with no_descriptor_left(), pytest.raises(Invalid, match="too many files"):
            store.sink(made.manifest.digest, made.chunks[0])
        await fill(store, made)
        same_files(await store.publish(made.manifest.digest), made)
        store.close()

    asyncio.run(work())


def test_an_origin_says_come_back_and_not_that_it_is_missing(tmp_path: Path) -> None:
    async def work() -> None:
        key = chunk_key(Digest.of(b"x"))
        (tmp_path / key).parent.mkdir(parents=True)
        (tmp_path / key).write_bytes(b"x")
        origin, request = DirectoryServer(tmp_path), Request("GET", f"/{key}", {}, True)
        with no_descriptor_left():
            assert (await origin.handle(request, b"")).status == 503
        answer = await origin.handle(request, b"")
        assert answer.status == 200 and answer.done is not None
        answer.done(0)

    asyncio.run(work())


def test_bad_chunks_are_forgotten_even_where_that_cannot_be_written_down(tmp_path: Path) -> None:
    """As on a full disk. After a restart the bits that were durable would call wrong bytes verified."""
    bits = Bitfield(tmp_path, 8, "boot")
    for i in range(8):
        bits.set(i)
    bits.make_durable(bits.snapshot())
    (tmp_path / "durable.new").mkdir()
    with pytest.raises(OSError):
        bits.clear([3])
    bits.close()
    (tmp_path / "durable.new").rmdir()
    again = Bitfield(tmp_path, 8, "boot")
    assert 3 not in again and again.held == 7
    again.close()


def test_who_cannot_be_let_in_yet_waits_and_the_loop_rests(tmp_path: Path) -> None:
    class Counted(DirectoryServer):
        tries = 0

    async def work() -> None:
        server = Counted(tmp_path, ServerLimits())
        accept = server.http._accept

        def counted() -> None:
            Counted.tries += 1
            accept()

        server.http._accept = counted  # type: ignore[method-assign]
        port = await server.start("127.0.0.1", 0)
        caller = socket.socket()
        caller.setblocking(False)
        with no_descriptor_left():
            with contextlib.suppress(BlockingIOError):
                caller.connect(("127.0.0.1", port))
            await asyncio.sleep(0.3)
        assert 1 <= Counted.tries <= 3
        caller.setblocking(True)
        caller.settimeout(20)
        caller.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await asyncio.to_thread(caller.recv, 100)
        assert answer.startswith(b"HTTP/1.1 ")
        caller.close()
        await server.stop()

    asyncio.run(work())

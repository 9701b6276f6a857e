"""S3: our signer signs as the SDK does, and each refusal is told apart and says what to do."""

from __future__ import annotations

import asyncio
import base64
import random
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from bdn.digest import Digest
from bdn.errors import BdnError, ChunkMissing, Corrupt, Invalid, Missing, SourceDown
from bdn.http.server import Response, ServerLimits
from bdn.http.static import DirectoryServer
from bdn.manifest import Chunk
from bdn.mirror import MirrorPlan, mirror
from bdn.origins.http import HttpOrigin
from bdn.origins.layout import chunk_key
from bdn.origins.s3 import S3Origin, place
from bdn.origins.s3_writer import S3Writer
from bdn.origins.sigv4 import Credentials, Signer, encode_path
from tests.bdn.fakes import MemorySink, MemoryUpstream
from tests.bdn.test_mirror import example
from tests.servers import ADMIN, READER, S3Service

BODY = random.Random(6).randbytes(300_000)
CHUNK = Chunk(Digest.of(BODY), len(BODY))
KEYS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


@given(
    path=st.text(min_size=1, max_size=20).filter(lambda s: "\0" not in s and s.strip("/.") == s),
    token=st.sampled_from(["", "a-session-token"]),
    seconds=st.integers(0, 10**9),
)
def test_our_signature_is_the_sdks(path: str, token: str, seconds: int) -> None:
    now = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    target = encode_path(f"/bucket/{path.encode('utf-8', 'replace').decode()}")
    ours = Signer(Credentials(KEYS.access_key, KEYS.secret_key, token), "eu-west-3")
    mine = dict(ours.headers("GET", target, (), [("host", "s3.example.com:9000")], now))
    request = AWSRequest("GET", f"http://s3.example.com:9000{target}", headers={"host": "s3.example.com:9000"})
    theirs = S3SigV4Auth(BotoCredentials(KEYS.access_key, KEYS.secret_key, token or None), "s3", "eu-west-3")
    request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["X-Amz-Content-SHA256"] = mine["x-amz-content-sha256"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    assert mine["authorization"].rpartition("=")[2] == theirs.signature(text, request)


def test_secrets_do_not_show_in_a_repr() -> None:
    assert KEYS.secret_key not in repr(KEYS) and KEYS.access_key not in repr(KEYS)


@pytest.mark.parametrize("url", ["s3://", "s3://b/../..", "http://x", "s3://a b/c", "s3:///x"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    if url == "s3://b/../..":
        url = "s3://b/"  # One letter is no bucket name either.
    with pytest.raises(Invalid):
        place(url, "", "us-east-1")


def reader(service: S3Service, url: str, keys: tuple[str, str] | None = READER) -> S3Origin:
    found = None if keys is None else Credentials(*keys)
    return S3Origin(url, endpoint=service.endpoint, find_credentials=lambda: found)


def test_a_mirrored_model_reads_back_through_our_reader_with_read_only_keys(s3: S3Service) -> None:
    async def work() -> None:
        url = s3.place()
        writer = S3Writer(url, endpoint=s3.endpoint, keys=Credentials(*ADMIN))
        upstream = MemoryUpstream(example())
        result = await mirror(upstream, writer, MirrorPlan("test/model", window_bytes=64 << 20))
        again = await mirror(upstream, writer, MirrorPlan("test/model"))
        assert (again.manifest, again.bytes_read, again.bytes_uploaded) == (result.manifest, 0, 0)
        origin = reader(s3, url)
        assert await origin.read_tag("test/model", "latest") == result.manifest
        sink = MemorySink(Chunk(Digest.of(example()["codec/weights.bin"][: 8 << 20]), 8 << 20))
        await origin.fetch_into(sink.chunk, sink, stall_s=10)
        assert sink.digest() == sink.chunk.digest
        await origin.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("bucket", "keys", "says"),
    [
        ("no-such-bucket", ADMIN, "no bucket"),
        ("", (ADMIN[0], "wrong"), "secret key"),
        ("", ("nobody", "x"), "access key is unknown"),
        ("", None, "access is denied"),
    ],
)
def test_a_refused_read_says_why(s3: S3Service, bucket: str, keys: tuple[str, str] | None, says: str) -> None:
    async def work() -> None:
        url = f"s3://{bucket}/x" if bucket else s3.place()
        origin = reader(s3, url, keys)
        for call in (
            origin.fetch_into(CHUNK, MemorySink(CHUNK), stall_s=10),
            origin.read_tag("a", "b"),
            origin.read_document(CHUNK.digest, bytes_max=100),
        ):
            with pytest.raises(Invalid, match=says) as caught:
                await call
            assert caught.value.hint and caught.value.where
        await origin.close()

    asyncio.run(work())


@pytest.mark.parametrize(("bucket", "keys"), [("no-such-bucket", ADMIN), ("tests", READER), ("tests", ("nobody", "x"))])
def test_a_refused_write_says_why_and_moves_nothing(s3: S3Service, bucket: str, keys: tuple[str, str]) -> None:
    async def work() -> None:
        writer = S3Writer(f"s3://{bucket}/w", endpoint=s3.endpoint, keys=Credentials(*keys))
        with pytest.raises(Invalid) as caught:
            await mirror(MemoryUpstream({"a": b"b"}), writer, MirrorPlan("m"))
        assert caught.value.hint and caught.value.where

    asyncio.run(work())


def test_an_endpoint_that_is_not_there_is_down(tmp_path: Path) -> None:
    async def work() -> None:
        origin = S3Origin("s3://bucket/x", endpoint="http://127.0.0.1:9", find_credentials=lambda: KEYS)
        with pytest.raises(SourceDown):
            await origin.read_tag("a", "b")

    asyncio.run(work())


class Scripted:
    """An S3 service that gives one answer after the other, and keeps what it was asked."""

    def __init__(self, *answers: Response) -> None:
        self.answers, self.asked = list(answers), list[dict[str, str]]()

    async def handle(self, request: object, body: bytes) -> Response:
        self.asked.append(dict(request.headers))  # type: ignore[attr-defined]
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def scripted(*answers: Response) -> AsyncIterator[tuple[Scripted, str]]:
    from bdn.http.server import HttpServer

    handler = Scripted(*answers)
    server = HttpServer(handler, ServerLimits())
    try:
        yield handler, f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.stop()


def error(status: int, code: str, *headers: tuple[str, str], more: str = "") -> Response:
    return Response(status, headers, f"<?xml?><Error><Code>{code}</Code>{more}</Error>".encode())


def fetch(*answers: Response, keys: Sequence[Credentials] = (KEYS,)) -> tuple[Scripted, bytes | BdnError]:
    async def work() -> tuple[Scripted, bytes | BdnError]:
        left = list(keys)
        async with scripted(*answers) as (service, endpoint):
            origin = S3Origin(
                "s3://bucket/x", endpoint=endpoint, find_credentials=lambda: left.pop(0) if len(left) > 1 else left[0]
            )
            sink = MemorySink(CHUNK)
            try:
                await origin.fetch_into(CHUNK, sink, stall_s=5)
            except BdnError as why:
                return service, why
            finally:
                await origin.close()
            return service, bytes(sink.data)

    return asyncio.run(work())


GOOD = Response(200, body=BODY)


def test_a_wrong_clock_is_learned_and_the_request_repeated() -> None:
    service, got = fetch(error(403, "RequestTimeTooSkewed", ("date", "Thu, 01 Jan 2032 10:00:00 GMT")), GOOD)
    assert got == BODY
    assert service.asked[1]["x-amz-date"].startswith("20320101T10000")
    assert not service.asked[0]["x-amz-date"].startswith("2032")


def test_a_wrong_region_is_learned_and_the_request_repeated() -> None:
    malformed = error(400, "AuthorizationHeaderMalformed", more="<Region>eu-west-3</Region>")
    service, got = fetch(malformed, GOOD)
    assert got == BODY
    assert "/eu-west-3/s3/" in service.asked[1]["authorization"]


def test_expired_credentials_are_renewed_once() -> None:
    fresh = Credentials("AKIDFRESH", "secret", "token")
    service, got = fetch(error(400, "ExpiredToken"), GOOD, keys=(KEYS, fresh))
    assert got == BODY
    assert service.asked[1]["x-amz-security-token"] == "token"
    service, got = fetch(error(400, "ExpiredToken"), keys=(KEYS, fresh))
    assert isinstance(got, Invalid) and "expired" in str(got) and len(service.asked) == 3


def test_a_throttle_is_down_and_says_for_how_long() -> None:
    _, got = fetch(error(503, "SlowDown", ("retry-after", "3")))
    assert isinstance(got, SourceDown) and got.retry_after_s == 3


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(404, "NoSuchKey"), ChunkMissing),
        (error(404, "NoSuchBucket"), Invalid),
        (error(403, "AccessDenied"), Invalid),
        (error(301, "PermanentRedirect"), Invalid),
        (error(500, "InternalError"), SourceDown),
        (Response(200, body=b"<html>captive portal</html>"), BdnError),
        (Response(200, [("content-encoding", "gzip")], BODY), BdnError),
    ],
)
def test_no_answer_but_the_chunk_fills_a_sink(answer: Response, kind: type[BdnError]) -> None:
    _, got = fetch(answer)
    assert isinstance(got, kind)


def test_an_http_origin_sends_its_token_and_never_follows_a_redirect(tmp_path: Path) -> None:
    async def work() -> None:
        elsewhere = Response(302, [("location", "https://cdn.example/steal?x=1")])
        async with scripted(Response(401), elsewhere, Response(503, [("retry-after", "9")])) as (service, url):
            origin = HttpOrigin(f"{url}/base?sig=s1gnature", bearer="t0ps3cret")
            with pytest.raises(Invalid, match="credentials") as caught:
                await origin.read_tag("a", "b")
            assert "s1gnature" not in str(caught.value) and "t0ps3cret" not in str(caught.value)
            with pytest.raises(Invalid, match=r"redirects to https://cdn\.example"):
                await origin.read_tag("a", "b")
            with pytest.raises(SourceDown) as down:
                await origin.read_tag("a", "b")
            assert down.value.retry_after_s == 9
            assert [a["authorization"] for a in service.asked] == ["Bearer t0ps3cret"] * 3
            await origin.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "range_", "status", "body"),
    [
        ("{chunk}", "", 200, BODY),
        ("{chunk}", "bytes=0-0", 206, BODY[:1]),
        ("{chunk}", "bytes=100-199", 206, BODY[100:200]),
        ("{chunk}", "bytes=299990-", 206, BODY[299990:]),
        ("{chunk}", "bytes=299990-999999", 206, BODY[299990:]),
        ("{chunk}", "bytes=300000-", 416, b""),
        ("../secret", "", 404, b""),
        ("tags/../../secret", "", 404, b""),
        (".partial/tags.lock", "", 404, b""),
        ("chunks", "", 404, b""),
    ],
)
def test_a_directory_is_served_by_range_and_nothing_beside_it(
    tmp_path: Path, path: str, range_: str, status: int, body: bytes
) -> None:
    from bdn.origins.directory import DirectoryWriter

    async def work() -> None:
        writer = DirectoryWriter(tmp_path / "origin")
        (tmp_path / "secret").write_text("x")
        await writer.put(CHUNK, BODY)
        server = DirectoryServer(tmp_path / "origin")
        port = await server.start("127.0.0.1", 0)
        stream, out = await asyncio.open_connection("127.0.0.1", port)
        key = path.replace("{chunk}", chunk_key(CHUNK.digest))
        extra = f"range: {range_}\r\n" if range_ else ""
        out.write(f"GET /{key} HTTP/1.1\r\n{extra}connection: close\r\n\r\n".encode())
        head, _, rest = (await stream.read()).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status and rest == body
        assert server.http.sent.bytes_total == len(body)
        out.close()
        await server.stop()

    asyncio.run(work())


def test_missing_is_missing_where_the_bucket_exists(s3: S3Service) -> None:
    async def work() -> None:
        origin = reader(s3, s3.place())
        with pytest.raises(ChunkMissing):
            await origin.fetch_into(CHUNK, MemorySink(CHUNK), stall_s=10)
        with pytest.raises(Missing):
            await origin.read_tag("a", "b")
        await origin.close()

    asyncio.run(work())


def test_a_damaged_tag_in_a_bucket_is_named_after_the_others_and_can_be_moved(s3: S3Service) -> None:
    async def work() -> None:
        url, client = s3.place(), s3.client()
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        writer = S3Writer(url, endpoint=s3.endpoint, keys=Credentials(*ADMIN))
        whole = Digest.of(b"1")
        for tag in ("a", "b", "c"):
            await writer.move_tag("m", tag, whole, expect=None)
        client.put_object(Bucket=bucket, Key=f"{prefix}/tags/m/b", Body=b"")
        listed = []
        with pytest.raises(Corrupt, match="damaged: m:b"):
            async for entry in writer.tags():
                listed.append(entry.tag)
        assert listed == ["a", "c"]
        await writer.move_tag("m", "b", whole, expect=None)
        assert [entry.tag async for entry in writer.tags()] == ["a", "b", "c"]
        await writer.close()

    asyncio.run(work())


def put(*answers: Response) -> tuple[Scripted, BdnError | None]:
    """One chunk stored at a service that answers so, after the tag was asked for as a mirror does."""

    async def work() -> tuple[Scripted, BdnError | None]:
        async with scripted(*answers) as (service, endpoint):
            writer = S3Writer("s3://bucket/x", endpoint=endpoint, keys=KEYS)
            try:
                await writer.put(CHUNK, memoryview(bytearray(BODY)))
            except BdnError as why:
                return service, why
            finally:
                await writer.close()
            return service, None

    return asyncio.run(work())


def test_a_stored_chunk_is_sent_with_a_checksum_that_the_service_can_check() -> None:
    service, why = put(Response(200))
    assert why is None
    crc = zlib.crc32(BODY).to_bytes(4, "big")
    assert base64.b64decode(service.asked[0]["x-amz-checksum-crc32"]) == crc
    assert "x-amz-checksum-crc32" in service.asked[0]["authorization"], "signed, so that nobody can take it away"
    assert service.asked[0]["content-length"] == str(len(BODY))


def test_a_mirror_waits_out_a_throttle_and_learns_the_region() -> None:
    busy = error(503, "SlowDown", ("retry-after", "0"))
    malformed = error(400, "AuthorizationHeaderMalformed", more="<Region>eu-west-3</Region>")
    service, why = put(busy, busy, busy, malformed, Response(200))
    assert why is None and len(service.asked) == 5
    assert "/eu-west-3/s3/" in service.asked[4]["authorization"]


@pytest.mark.parametrize("answer", [error(403, "AccessDenied"), error(404, "NoSuchBucket"), error(400, "BadDigest")])
def test_a_refused_chunk_is_not_asked_again(answer: Response) -> None:
    service, why = put(answer)
    assert isinstance(why, Invalid) and len(service.asked) == 1


def test_a_bucket_whose_service_is_not_there_is_down_soon() -> None:
    async def work() -> None:
        writer = S3Writer("s3://bucket/x", endpoint="http://127.0.0.1:9", keys=KEYS)
        with pytest.raises(SourceDown):
            await writer.read_tag("a", "b")
        await writer.close()

    asyncio.run(work())


def test_a_damaged_chunk_in_a_bucket_is_found_when_it_is_read_back(s3: S3Service) -> None:
    async def work() -> None:
        url = s3.place()
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        writer = S3Writer(url, endpoint=s3.endpoint, keys=Credentials(*ADMIN))
        await writer.put(CHUNK, BODY)
        assert await writer.held([CHUNK], reread=True) == {CHUNK.digest}
        damaged = BODY[:-1] + bytes([BODY[-1] ^ 1])
        s3.client().put_object(Bucket=bucket, Key=f"{prefix}/{chunk_key(CHUNK.digest)}", Body=damaged)
        assert await writer.held([CHUNK]) == {CHUNK.digest}, "by length alone it looks whole"
        assert await writer.held([CHUNK], reread=True) == frozenset()
        await writer.put(CHUNK, BODY)
        assert await writer.held([CHUNK], reread=True) == {CHUNK.digest}
        await writer.close()

    asyncio.run(work())

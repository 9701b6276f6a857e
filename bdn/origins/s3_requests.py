"""Owns requests that write to S3, a mirror's and a claim's: signed here, each body sent from its own buffer.

boto3 hands a body to the socket 16 KiB at a time, hashes it with SHA-256 over plain HTTP and takes milliseconds of
Python for each request and 0.15 s to begin. Connections, proxies and certificates are botocore's all the same, so that
a mirror works wherever the AWS tools do. Blocking: run it in threads.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from bdn.digest import Digest, Hasher
from bdn.errors import BdnError, Corrupt, Invalid, SourceDown, SourceSilent
from bdn.origins.s3 import FindCredentials, Place, clock_skew, error_code, named_region, place, s3_error
from bdn.origins.sigv4 import EMPTY_SHA256, UNSIGNED, Signer

READ_PIECE_BYTES = 256 << 10
SEND_PIECE_BYTES = 128 << 10  # One call's bytes must be gone within CONNECT_S, on a link that many share.
CONNECT_S, READ_S = 5.0, 60.0


class NoConditions(Invalid):
    """A service that takes no write under a condition."""


@dataclass(frozen=True, slots=True)
class Found:
    """A small object. age_s: how long ago it was written, by the service's own clock."""

    body: bytes
    etag: str
    age_s: float


class S3Requests:
    """Requests of a few threads at once; what one learns (clock, region, new credentials) the others use."""

    def __init__(
        self, url: str, endpoint: str, region: str, find: FindCredentials, connections_max: int, *,
        connect_s: float = CONNECT_S, read_s: float = READ_S,
    ) -> None:  # fmt: skip
        self._url, self._endpoint, self._region, self._find = url, endpoint, region, find
        self._connections_max, self._connect_s, self.read_s = connections_max, connect_s, read_s
        self._place = place(url, endpoint, region)
        self._session: Any = None
        self._signer: Signer | None = None
        self._skew = timedelta(0)
        self._lock = threading.Lock()
        self._proven = False
        """One PUT was taken: until then the service is asked before a body is sent, because one that refuses while
        8 MiB are under way only closes the connection, and its reason is lost."""

    def size(self, key: str) -> int | None:
        """The object's length, or None where there is none."""
        answer = self._ask("HEAD", key)
        if answer.status_code == 404:  # A HEAD has no body to say which; a missing bucket shows at the first PUT.
            return None
        self._must(answer)
        length = answer.headers.get("content-length", "")
        return int(length) if _is_number(length) else -1

    def get(self, key: str, bytes_max: int) -> Found | None:
        """None where there is none. Raises Corrupt for one that is too long."""
        answer = self._ask("GET", key, stream=True)
        try:
            if answer.status_code == 404 and error_code(answer.content or b"") != "NoSuchBucket":
                return None
            self._must(answer)
            body = b""  # To the end, where it shows whether it was cut off.
            while len(body) <= bytes_max and (piece := answer.raw.read(bytes_max + 1 - len(body))):
                body += piece
        finally:
            _done(answer)
        if len(body) > bytes_max:
            raise Corrupt(f"an object of more than {bytes_max} bytes", where=f"{self._place.name}/{key}")
        return Found(body, answer.headers.get("etag", ""), _age_s(answer.headers))

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Whole or not at all; the service checks the CRC32, so that a flipped bit on the way is not stored."""
        self._must(self._put(key, body))

    def swap(self, key: str, body: bytes, condition: tuple[str, str]) -> str | None:
        """A PUT under a condition: the new object's ETag, or None where the condition did not hold.

        Raises NoConditions.
        """
        answer = self._put(key, body, condition)
        gone = answer.status_code == 404 and error_code(answer.content or b"") != "NoSuchBucket"
        if gone or answer.status_code in (409, 412):
            return None
        if answer.status_code == 501:
            raise NoConditions("this S3 service knows no conditional writes", where=self._place.name)
        self._must(answer)
        return str(answer.headers.get("etag", ""))

    def _put(self, key: str, body: bytes | memoryview, *more: tuple[str, str]) -> Any:
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        answer = self._ask("PUT", key, body, (("x-amz-checksum-crc32", checksum), *more))
        self._proven = self._proven or answer.status_code in (200, 412)
        return answer

    def digest(self, key: str, size: int) -> Digest | None:
        """Of the object's bytes as they are read back now; None where it is missing or of another length."""
        answer = self._ask("GET", key, stream=True)
        try:
            if answer.status_code == 404:
                return None
            self._must(answer)
            hasher, got = Hasher(), 0
            while got <= size and (piece := answer.raw.read(READ_PIECE_BYTES)):
                hasher.update(piece)
                got += len(piece)
        finally:
            _done(answer)
        return hasher.digest() if got == size else None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _must(self, answer: Any) -> None:
        if answer.status_code >= 300:
            raise self._refusal(answer)

    def _refusal(self, answer: Any) -> BdnError:
        after = answer.headers.get("retry-after", "")
        retry_after_s = float(after) if _is_number(after) else None
        return s3_error(answer.status_code, error_code(answer.content or b""), self._place, retry_after_s)

    def _ask(
        self, method: str, key: str, body: bytes | memoryview | None = None,
        headers: tuple[tuple[str, str], ...] = (), *, stream: bool = False,
    ) -> Any:  # fmt: skip
        """The answer; after one that teaches something, the answer to the same request with what was learned."""
        for attempt in range(3):
            where, signer = self._ready()
            answer = self._once(where, signer, method, key, body, headers, stream)
            if answer.status_code in (200, 404) or attempt == 2 or not self._learn(answer, signer):
                break
        return answer

    def _ready(self) -> tuple[Place, Signer | None]:
        with self._lock:
            if self._session is None:
                self._session = _session(self._origin(), self._connections_max, (self._connect_s, self.read_s))
            found = self._find()  # Each time: botocore refreshes the credentials of a role before they expire.
            if found is None:
                self._signer = None
            elif self._signer is None or self._signer.credentials != found or self._signer.region != self._region:
                self._signer = Signer(found, self._region)
            return self._place, self._signer

    def _origin(self) -> str:
        return f"{'https' if self._place.secure else 'http'}://{self._place.authority}"

    def _once(
        self, where: Place, signer: Signer | None, method: str, key: str, body: bytes | memoryview | None,
        headers: tuple[tuple[str, str], ...], stream: bool,
    ) -> Any:  # fmt: skip
        from botocore.awsrequest import AWSPreparedRequest, HeadersDict

        path = where.path(key)
        lines = [("host", where.authority), *headers]
        if signer is not None:
            payload = EMPTY_SHA256 if body is None else UNSIGNED
            lines = signer.headers(method, path, (), lines, datetime.now(UTC) + self._skew, payload)
        if body is not None:
            lines.append(("content-length", str(len(body))))
            if not self._proven:
                lines.append(("expect", "100-continue"))
        pieces = None if body is None else _pieces(body)
        answer = self._session.send(
            AWSPreparedRequest(method, f"{self._origin()}{path}", HeadersDict(lines), pieces, stream)
        )
        answer.raw.enforce_content_length = True  # botocore has it off: a body cut off would look like a short one.
        return answer

    def _learn(self, answer: Any, signer: Signer | None) -> bool:
        """Whether the refusal says what to do otherwise."""
        words = answer.content or b""
        code, region = error_code(words), named_region(words) or answer.headers.get("x-amz-bucket-region", "")
        with self._lock:
            if code == "RequestTimeTooSkewed" and "date" in answer.headers:
                self._skew = clock_skew(answer.headers["date"])
                return True
            if region and region != self._region:
                self._region = region
                if not self._endpoint:
                    self._place = place(self._url, "", region)
                return True
            return code in ("ExpiredToken", "TokenRefreshRequired") and self._find() != (signer and signer.credentials)


def _pieces(body: bytes | memoryview) -> list[memoryview]:
    """A chunk in one call would have the few seconds of a connection's beginning for all of its megabytes: the library
    sets the longer timeout only for the answer."""
    view = memoryview(body)
    return [view[at : at + SEND_PIECE_BYTES] for at in range(0, len(view), SEND_PIECE_BYTES)]


@contextlib.contextmanager
def sent_to(name: str, read_s: float = READ_S) -> Iterator[None]:
    """What ends a request on the way becomes the origin's failure."""
    from botocore.exceptions import BotoCoreError, ReadTimeoutError
    from urllib3.exceptions import HTTPError  # What ends in the middle of a body: botocore is no longer there.
    from urllib3.exceptions import ReadTimeoutError as BodyTimeout

    try:
        yield
    except (ReadTimeoutError, BodyTimeout):
        raise SourceSilent(name, read_s) from None
    except (BotoCoreError, HTTPError, OSError) as why:
        raise SourceDown(name, (str(why).splitlines() or [type(why).__name__])[0]) from None


def _age_s(headers: Any) -> float:
    """Of an object, by its own times; nothing where it tells none, so that it counts as new."""
    try:
        now, then = (parsedate_to_datetime(headers[name]) for name in ("date", "last-modified"))
        return max(0.0, (now - then).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _done(answer: Any) -> None:
    """Give the connection back; one that still has bytes of the answer under way is closed, as nobody wants them."""
    if answer.raw.isclosed():
        answer.raw.release_conn()
    else:
        answer.raw.close()


def _session(url: str, connections_max: int, timeouts: tuple[float, float]) -> Any:
    """Connections as boto3 would make them: its proxies, its certificates."""
    import botocore.session
    from botocore.httpsession import URLLib3Session
    from botocore.utils import get_environ_proxies

    verify = botocore.session.get_session().get_config_variable("ca_bundle") or True
    return URLLib3Session(
        verify=verify, proxies=get_environ_proxies(url), timeout=timeouts,
        max_pool_connections=connections_max,
    )  # fmt: skip

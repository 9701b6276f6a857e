"""Owns the mirror's own requests to S3: signed here, each body sent in one call from the buffer it lies in.

boto3 hands a body to the socket 16 KiB at a time, hashes it with SHA-256 over plain HTTP and takes milliseconds of
Python for each request and 0.15 s to begin. Connections, proxies and certificates are botocore's all the same, so that
a mirror works wherever the AWS tools do. Blocking: run it in threads.
"""

from __future__ import annotations

import base64
import threading
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from bdn.digest import Digest, Hasher
from bdn.errors import BdnError, Corrupt
from bdn.origins.s3 import FindCredentials, Place, clock_skew, error_code, named_region, place, s3_error
from bdn.origins.sigv4 import EMPTY_SHA256, UNSIGNED, Signer

READ_PIECE_BYTES = 256 << 10
CONNECT_S, READ_S = 5, 60


class S3Requests:
    """Requests of a few threads at once; what one learns (clock, region, new credentials) the others use."""

    def __init__(self, url: str, endpoint: str, region: str, find: FindCredentials, connections_max: int) -> None:
        self._url, self._endpoint, self._region, self._find = url, endpoint, region, find
        self._connections_max = connections_max
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

    def get(self, key: str, bytes_max: int) -> tuple[bytes, str] | None:
        """A small object and its ETag, or None where there is none. Raises Corrupt for one that is too long."""
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
        return body, answer.headers.get("etag", "")

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Whole or not at all; the service checks the CRC32, so that a flipped bit on the way is not stored."""
        self._must(self._put(key, body))

    def swap(self, key: str, body: bytes, condition: tuple[str, str]) -> bool | None:
        """A PUT under a condition: whether it held; None from a service that knows no conditions."""
        answer = self._put(key, body, condition)
        if answer.status_code in (409, 412):
            return False
        if answer.status_code == 501:
            return None
        self._must(answer)
        return True

    def _put(self, key: str, body: bytes | memoryview, *more: tuple[str, str]) -> Any:
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        answer = self._ask("PUT", key, body, (("x-amz-checksum-crc32", checksum), *more))
        self._proven = self._proven or answer.status_code == 200
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
                self._session = _session(self._origin(), self._connections_max)
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
        answer = self._session.send(
            AWSPreparedRequest(method, f"{self._origin()}{path}", HeadersDict(lines), body, stream)
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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _done(answer: Any) -> None:
    """Give the connection back; one that still has bytes of the answer under way is closed, as nobody wants them."""
    if answer.raw.isclosed():
        answer.raw.release_conn()
    else:
        answer.raw.close()


def _session(url: str, connections_max: int) -> Any:
    """Connections as boto3 would make them: its proxies, its certificates."""
    import botocore.session
    from botocore.httpsession import URLLib3Session
    from botocore.utils import get_environ_proxies

    verify = botocore.session.get_session().get_config_variable("ca_bundle") or True
    return URLLib3Session(
        verify=verify, proxies=get_environ_proxies(url), timeout=(CONNECT_S, READ_S),
        max_pool_connections=connections_max,
    )  # fmt: skip

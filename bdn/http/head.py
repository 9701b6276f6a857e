"""Owns the text of HTTP/1.1: request and response heads, parsed strictly and bounded. No I/O here.

Only what agents, origins and static servers say to each other: one message at a time, bodies with a Content-Length.
What is ambiguous (two lengths, a folded header, a transfer coding) is refused: guessing is how bodies get mixed up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HEAD_BYTES_MAX = 32 << 10
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DIGITS = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class BadMessage(Exception):
    """What came is not the HTTP that this side speaks; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    keep_alive: bool

    @property
    def length(self) -> int:
        return _length(self.headers) or 0


@dataclass(frozen=True, slots=True)
class Head:
    """A response's first lines."""

    status: int
    headers: Mapping[str, str]
    keep_alive: bool

    @property
    def length(self) -> int | None:
        return _length(self.headers)

    @property
    def informational(self) -> bool:
        return 100 <= self.status < 200

    @property
    def retry_after_s(self) -> float | None:
        """Seconds only; a date says nothing to a monotonic clock."""
        text = self.headers.get("retry-after", "")
        try:
            seconds = float(text)
        except ValueError:
            return None
        return min(max(seconds, 0.0), 3600.0) if seconds == seconds else None  # NaN would be a wait without end.

    def content_range(self) -> tuple[int, int] | None:
        """(first byte, how many), or None where the header is absent or unreadable."""
        match = _CONTENT_RANGE.fullmatch(self.headers.get("content-range", ""))
        if not match:
            return None
        first, last = int(match[1]), int(match[2])
        return (first, last - first + 1) if last >= first else None


def parse_request(block: bytes) -> Request:
    first, headers = _split(block)
    parts = first.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not _TOKEN.fullmatch(parts[0]):
        raise BadMessage("not an HTTP/1.1 request line")
    try:
        path = parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise BadMessage("a request target that is not ASCII") from None
    return Request(parts[0].decode(), path, headers, _keeps_alive(parts[2] == b"HTTP/1.1", headers))


def parse_head(block: bytes) -> Head:
    first, headers = _split(block)
    parts = first.split(b" ", 2)
    if len(parts) < 2 or parts[0] not in (b"HTTP/1.1", b"HTTP/1.0") or not re.fullmatch(rb"[1-5][0-9]{2}", parts[1]):
        raise BadMessage("not an HTTP/1.1 status line")
    return Head(int(parts[1]), headers, _keeps_alive(parts[0] == b"HTTP/1.1", headers))


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """(offset, size) of a single satisfiable range; None otherwise, and the whole object or 416 is for the caller."""
    match = _RANGE.fullmatch(text)
    if not match:
        return None
    first = int(match[1])
    last = min(int(match[2]) if match[2] else size - 1, size - 1)
    return (first, last - first + 1) if first <= last else None


def request_bytes(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers), "", ""]
    return _encode(lines)


def response_bytes(status: int, reason: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{k}: {v}" for k, v in headers), "", ""]
    return _encode(lines)


def _encode(lines: list[str]) -> bytes:
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1:
        raise BadMessage("a header value with a line break")
    return text.encode("latin-1", "replace")


def _split(block: bytes) -> tuple[bytes, dict[str, str]]:
    first, *rest = block.split(b"\r\n")
    headers: dict[str, str] = {}
    for line in rest:
        if not line:
            continue
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadMessage("a header line that is not name: value")
        key, text = name.decode().lower(), value.strip(b" \t").decode("latin-1")
        if key in headers:
            if key in ("content-length", "transfer-encoding", "content-range", "host"):
                raise BadMessage(f"two {key} headers")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    if headers.get("transfer-encoding", "identity").lower() != "identity":
        raise BadMessage("a transfer coding: only bodies with a Content-Length are accepted")
    return first, headers


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadMessage("a Content-Length that is not a number")
    return int(text)


def _keeps_alive(http11: bool, headers: Mapping[str, str]) -> bool:
    said = headers.get("connection", "").lower()
    return "close" not in said if http11 else "keep-alive" in said

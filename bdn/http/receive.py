"""Owns what may count as a chunk's body: the right status, length and coding before a byte reaches the sink."""

from __future__ import annotations

from typing import cast

from bdn.errors import Corrupt, ShortRead
from bdn.http.head import Head
from bdn.http.wire import Landing, Write
from bdn.ports import Sink


class WholeChunk:
    """A 200 with exactly the chunk's bytes, uncoded. Any other status leaves the sink untouched."""

    def __init__(self, sink: Sink, source: str) -> None:
        self._sink, self._source = sink, source

    def begin(self, head: Head) -> Write | None:
        if head.status not in (200, 206):
            return None
        refuse_coding(head, self._source)
        chunk, length = self._sink.chunk, head.length or 0
        if length != chunk.size:
            raise ShortRead(chunk.digest, source=self._source, got_bytes=length, want_bytes=chunk.size)
        if head.status == 206 and head.content_range() != (0, chunk.size):
            raise Corrupt("a part of the chunk was sent that nobody asked for", where=self._source)
        if self._sink.received:
            self._sink.restart()  # A second attempt on another connection starts over.
        return self._sink.write

    def landing(self) -> Landing | None:
        return cast(Landing, self._sink) if hasattr(self._sink, "room") else None  # isinstance costs 20 µs a chunk.


class Words:
    """A small body, returned whole."""

    def begin(self, head: Head) -> Write | None:
        return None

    def landing(self) -> Landing | None:
        return None


class Document:
    """A body of at most `bytes_max`, collected. Any status but 200 comes back as words."""

    def __init__(self, source: str, bytes_max: int) -> None:
        self._source, self._bytes_max = source, bytes_max
        self.body = bytearray()

    def begin(self, head: Head) -> Write | None:
        if head.status != 200:
            return None
        refuse_coding(head, self._source)
        if (head.length or 0) > self._bytes_max:
            raise Corrupt(f"a document of {head.length} bytes, at most {self._bytes_max} expected", where=self._source)
        self.body.clear()
        return self._take

    def landing(self) -> Landing | None:
        return None

    def _take(self, piece: memoryview) -> None:
        self.body += piece


def refuse_coding(head: Head, source: str) -> None:
    coding = head.headers.get("content-encoding", "identity").lower()
    if coding not in ("", "identity"):
        raise Corrupt(f"the body is {coding}-encoded", where=source, hint="turn compression off there")

"""Owns how this node calls the others: `Peers` and `PeerDocuments` over HTTP, with a pool of its own."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from bdn.digest import Digest
from bdn.documents import checked
from bdn.errors import BdnError, Busy, ChunkMissing, Invalid, Missing, SourceDown
from bdn.http.head import Head, request_bytes
from bdn.http.peer import LETTERS, ask_headers
from bdn.http.pool import Pool
from bdn.http.receive import Document, WholeChunk, Words
from bdn.http.wire import Receiver
from bdn.manifest import Chunk
from bdn.ports import Ask, Holding, Sink
from bdn.roster import NAME, Node

CONNECTIONS_PER_NODE = 32  # Most of them wait for chunks that are still coming; waiting costs nothing but a socket.
ANSWER_BYTES_MAX = 4 << 20
HOLDERS_MAX = 64  # Of the names in one answer; a liar may send a head full of them.
_HOLDINGS = {letter[0]: holding for holding, letter in LETTERS.items()}


class PeerClient:
    """`Peers` and `PeerDocuments` for a node. Close it when done."""

    def __init__(self, *, per_node_max: int = CONNECTIONS_PER_NODE, tls: ssl.SSLContext | None = None) -> None:
        self._pool = Pool(per_host_max=per_node_max, tls=tls)

    async def fetch_into(self, node: Node, chunk: Chunk, ask: Ask, sink: Sink, *, stall_s: float) -> None:
        request = _request("GET", node, f"/v1/chunks/{chunk.digest.hex}", ask_headers(ask))
        head, words = await self._exchange(node, request, WholeChunk(sink, node.name), stall_s)
        if head.status == 404:
            raise ChunkMissing(chunk.digest, source=node.name)
        if head.status != 200:
            raise refusal(head, words, node.name)

    async def probe(self, node: Node, chunks: Sequence[Digest], ask: Ask, *, stall_s: float) -> tuple[Holding, ...]:
        body = b"".join(d.raw for d in chunks)
        request = _request("POST", node, "/v1/probe", [*ask_headers(ask), ("content-length", str(len(body)))]) + body
        answer = await self._small(node, request, stall_s)
        try:
            holdings = tuple(_HOLDINGS[letter] for letter in answer)
        except KeyError:
            raise SourceDown(node.name, "its answer to a probe makes no sense") from None
        if len(holdings) != len(chunks):
            raise SourceDown(node.name, f"it said {len(holdings)} words on {len(chunks)} chunks")
        return holdings

    async def tell(self, node: Node, topic: str, body: bytes, *, stall_s: float) -> bytes:
        request = _request("POST", node, f"/v1/tell/{topic}", [("content-length", str(len(body)))]) + body
        return await self._small(node, request, stall_s)

    async def whereabouts(self, node: Node, ask: Ask, *, stall_s: float) -> tuple[str, ...]:
        request = _request("HEAD", node, f"/v1/documents/{ask.manifest.hex}", ask_headers(ask))
        head, words = await self._exchange(node, request, Words(), stall_s, no_body=True)
        if head.status not in (200, 404):
            raise refusal(head, words, node.name)
        return ((node.name,) if head.status == 200 else ()) + _holders(head)

    async def read_document(self, node: Node, digest: Digest, ask: Ask, *, bytes_max: int, stall_s: float) -> bytes:
        document = Document(node.name, bytes_max)
        request = _request("GET", node, f"/v1/documents/{digest.hex}", ask_headers(ask))
        head, words = await self._exchange(node, request, document, stall_s)
        if head.status == 404:
            raise Missing(f"{node.name} does not have manifest document {digest.short}", where=node.name)
        if head.status != 200:
            raise refusal(head, words, node.name)
        return checked(bytes(document.body), digest, node.name)

    async def close(self) -> None:
        self._pool.close()

    async def _small(self, node: Node, request: bytes, stall_s: float) -> bytes:
        document = Document(node.name, ANSWER_BYTES_MAX)
        head, words = await self._exchange(node, request, document, stall_s)
        if head.status != 200:
            raise refusal(head, words, node.name)
        return bytes(document.body)

    async def _exchange(
        self, node: Node, request: bytes, receiver: Receiver, stall_s: float, *, no_body: bool = False
    ) -> tuple[Head, bytes]:
        return await self._pool.exchange(
            node.name, node.host, node.port, request, receiver, stall_s=stall_s, no_body=no_body
        )


def refusal(head: Head, words: bytes, name: str) -> BdnError:
    """A peer's refusal as the error that its own side raised."""
    text = words[:200].decode("utf-8", "replace").strip()
    if head.status == 429:
        retry_s = head.retry_after_s
        return Busy(name, holders=_holders(head), retry_after_s=0.1 if retry_s is None else retry_s)
    if head.status in (400, 405, 413):
        return Invalid(f"{name} refused the request: {text}", where=name, hint="the two agents differ in version")
    return SourceDown(name, f"status {head.status}: {text or 'no reason given'}", retry_after_s=head.retry_after_s)


def _holders(head: Head) -> tuple[str, ...]:
    named = head.headers.get("x-bdn-holders", "").split(",", HOLDERS_MAX)
    return tuple(name for name in named[:HOLDERS_MAX] if NAME.fullmatch(name))


def _request(method: str, node: Node, target: str, headers: Sequence[tuple[str, str]]) -> bytes:
    return request_bytes(method, target, [("host", f"{node.host}:{node.port}"), *headers])



"""Owns a pack of small files while it arrives: in memory, from where it goes into its files once it is verified."""

from __future__ import annotations

from bdn.manifest import Chunk
from bdn.sinks import FileSink

HOT_BYTES = 256 << 10
SPARES_MAX = 8  # As many packs as arrive at once; their memory is used again, for its first touch is dear.


class PackSink(FileSink):
    """A `FileSink` without a file: `body` is what came. Its memory goes back to `spares`."""

    def __init__(self, chunk: Chunk, spares: list[bytearray]) -> None:
        super().__init__(chunk, -1, 0, path="", in_place=False)
        self._spares, self._memory = spares, bytearray()

    @property
    def buffered(self) -> bool:
        return False

    def body(self) -> memoryview:
        return memoryview(self._memory)[: self.received]

    def room(self) -> memoryview:
        if not self._memory:
            spare = self._spares.pop() if self._spares else bytearray()
            self._memory = spare if len(spare) >= self.chunk.size else bytearray(self.chunk.size)
        return memoryview(self._memory)[self.received : min(self.received + HOT_BYTES, self.chunk.size)]

    def filled(self, size: int) -> None:
        self._hasher.update(memoryview(self._memory)[self.received : self.received + size])
        self.received += size

    def write(self, piece: memoryview | bytes) -> None:
        self._refuse_more(len(piece))
        self.room()
        end = self.received + len(piece)
        memoryview(self._memory)[self.received : end] = piece
        self.filled(len(piece))

    def close(self) -> None:
        if self._memory and len(self._spares) < SPARES_MAX:
            self._spares.append(self._memory)
        self._memory = bytearray()

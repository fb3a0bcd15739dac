"""The rows of one chunk on the device, read while the chunk before is worked on."""

from __future__ import annotations

from torch import Tensor

from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.buffered_rows import BufferedRows
from peergraph.fullgraph.offload.rows.row_store import RowStore


class RowWindow(BufferedRows):
    """Rows of a store, chunk by chunk. Rows that are on the device are not copied.

    Args:
        chunks: of the store's rows.
        store: this rank's rows.
    """

    def __init__(self, chunks: Chunks, store: RowStore) -> None:
        super().__init__(store, chunks.largest, in_place=store.in_place)
        self.chunks = chunks

    def load(self, batch: int, chunk: int) -> None:
        """Reads the rows of a chunk, which is number `batch` of the pass."""
        if self.loads:
            start, stop = self.chunks.range(chunk)
            self.store.read(start, stop, self._buffers[batch % 2][: stop - start])

    def rows(self, batch: int, chunk: int) -> Tensor:
        """Returns the rows of a chunk, which :meth:`load` has read."""
        start, stop = self.chunks.range(chunk)
        if self._in_place:
            return self.store.read(start, stop)
        return self._buffers[batch % 2][: stop - start]

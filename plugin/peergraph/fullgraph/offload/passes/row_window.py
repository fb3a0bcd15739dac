"""The rows of one chunk on the device, read while the chunk before is worked on."""

from __future__ import annotations

from torch import Tensor

from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.rows.row_store import RowStore


class RowWindow:
    """Rows of a store, chunk by chunk, in two buffers that are used in turn.

    Rows that are on the device are not copied.

    Args:
        chunks: of the store's rows.
        store: this rank's rows.
    """

    def __init__(self, chunks: Chunks, store: RowStore) -> None:
        self.chunks = chunks
        self.store = store
        count = 0 if store.in_place else 2
        self._buffers = [store.empty(chunks.largest) for _ in range(count)]

    @property
    def loads(self) -> bool:
        """Whether rows are copied for each batch; otherwise they are read in place."""
        return bool(self._buffers)

    def load(self, batch: int, chunk: int) -> None:
        """Reads the rows of a chunk, which is number `batch` of the pass."""
        if self._buffers:
            start, stop = self.chunks.range(chunk)
            self.store.read(start, stop, self._buffers[batch % 2][: stop - start])

    def rows(self, batch: int, chunk: int) -> Tensor:
        """Returns the rows of a chunk, which :meth:`load` has read."""
        start, stop = self.chunks.range(chunk)
        if not self._buffers:
            return self.store.read(start, stop)
        return self._buffers[batch % 2][: stop - start]

    def has_memory_of(self, rows: Tensor) -> bool:
        """Whether a tensor lies in one of the buffers."""
        storage = rows.untyped_storage().data_ptr()
        return any(storage == buffer.untyped_storage().data_ptr() for buffer in self._buffers)

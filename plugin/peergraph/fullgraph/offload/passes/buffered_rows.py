"""Rows of a store in two buffers on the device: one is filled while the other is used."""

from __future__ import annotations

from torch import Tensor

from peergraph.fullgraph.offload.rows.row_store import RowStore


class BufferedRows:
    """Rows of a store, part by part, in two buffers that are used in turn.

    Args:
        store: this rank's rows.
        most_rows: of a part.
        in_place: whether rows are read where they are, without buffers.
    """

    def __init__(self, store: RowStore, most_rows: int, *, in_place: bool) -> None:
        self.store = store
        self._in_place = in_place
        self._buffers = [] if in_place else [store.empty(most_rows) for _ in range(2)]

    @property
    def loads(self) -> bool:
        """Whether rows are copied for each batch; otherwise they are read in place."""
        return not self._in_place

    def has_memory_of(self, rows: Tensor) -> bool:
        """Whether a tensor lies in one of the buffers."""
        storage = rows.untyped_storage().data_ptr()
        return any(storage == buffer.untyped_storage().data_ptr() for buffer in self._buffers)

"""Rows of sources that are copied to the device as a whole for one pass."""

from __future__ import annotations

from collections.abc import Iterable

from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.rows.row_store import RowStore


class SourceCopies:
    """Copies source rows to the device where it has room for all of them.

    A chunk reads most rows that its neighbours in the pass read, too: whole rows cross the link
    once, and in the order of addresses. Rows of few edges, such as those to labelled nodes, are
    left where they are. Not collective: each rank decides by its own room.

    Args:
        sources: stores that a pass reads by the edges of a structure.
    """

    def __init__(self, sources: Iterable[tuple[RowStore, ChunkedCsc]]) -> None:
        self._copies: dict[int, tuple[RowStore, RowStore]] = {}
        for store, csc in sources:
            rows = store.row_layout.local_count
            if store.in_place or id(store) in self._copies or csc.edge_layout.local_count < rows:
                continue
            copy = None if store.allocator is None else store.allocator.allocate_copy(store)
            if copy is not None:
                self._copies[id(store)] = store, copy

    def find(self, store: RowStore) -> RowStore:
        """Returns the store to read in place of `store`: its copy, or itself if there is none."""
        entry = self._copies.get(id(store))
        return store if entry is None else entry[1]

    def load(self) -> int:
        """Copies the rows; returns the bytes."""
        for store, copy in self._copies.values():
            store.read(0, store.row_layout.local_count, copy.memory)
        rows = ((store, store.row_layout.local_count) for store, _ in self._copies.values())
        return sum(store.moved_bytes(0, count) for store, count in rows)

    def release(self) -> None:
        """Returns the memory of the copies to the allocator."""
        for _, copy in self._copies.values():
            copy.release()
        self._copies.clear()

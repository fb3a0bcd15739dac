"""Rows of a store on the device, part by part: one buffer is filled while the other is used."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.rows.row_store import RowStore


class BufferedRows:
    """Rows of a store, part by part, in two buffers that are used in turn.

    Args:
        store: this rank's rows.
        most_rows: of a part.
        in_place: whether rows are read where they are, without buffers.
        dtype: of the buffers; None: the store's.
    """

    def __init__(
        self, store: RowStore, most_rows: int, *, in_place: bool, dtype: torch.dtype | None = None
    ) -> None:
        self.store = store
        self.in_place = in_place
        """Whether rows are read where they are; otherwise they are copied for each batch."""
        self._buffers = [store.empty(most_rows, dtype) for _ in range(0 if in_place else 2)]

    def has_memory_of(self, rows: Tensor) -> bool:
        """Whether a tensor lies in one of the buffers."""
        storage = rows.untyped_storage().data_ptr()
        return any(storage == buffer.untyped_storage().data_ptr() for buffer in self._buffers)


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
        if not self.in_place:
            start, stop = self.chunks.range(chunk)
            self.store.read(start, stop, self._buffers[batch % 2][: stop - start])

    def rows(self, batch: int, chunk: int) -> Tensor:
        """Returns the rows of a chunk, which :meth:`load` has read."""
        start, stop = self.chunks.range(chunk)
        if self.in_place:
            return self.store.read(start, stop)
        return self._buffers[batch % 2][: stop - start]


class SourceWindow(BufferedRows):
    """Source rows of a store, batch by batch.

    Args:
        transfers: the plan of the batches.
        store: this rank's rows.
    """

    def __init__(self, transfers: SourceTransfers, store: RowStore) -> None:
        # Rows on the device that no other rank needs are gathered when they are asked for.
        in_place = store.in_place and transfers.plan.is_empty
        super().__init__(store, transfers.capacity, in_place=in_place)
        self.transfers = transfers

    def load(self, number: int) -> None:
        """Loads this rank's rows of a batch that the batch before has not."""
        if self.in_place:
            return
        batch = self.transfers.batches[number]
        first = len(batch.reused)
        out = self._buffers[number % 2][first : batch.own_stop]
        self.store.gather(batch.loaded, out)

    def assemble(self, number: int) -> None:
        """Keeps rows of the batch before, and exchanges rows between ranks. Collective.

        Follows :meth:`load` of the batch, and :meth:`assemble` of the one before.
        """
        if self.in_place:
            return
        batch = self.transfers.batches[number]
        before, buffer = self._buffers[1 - number % 2], self._buffers[number % 2]
        if len(batch.reused):
            torch.index_select(before, 0, batch.reused, out=buffer[: len(batch.reused)])
        for route in batch.sources:
            if self.transfers.deduplicate_ranks:
                packed = route.pack(buffer)
            else:
                assert isinstance(route.sent, Tensor)
                packed = self.store.gather(route.sent)
            route.copy(packed, buffer)

    def rows(self, number: int) -> Tensor:
        """Returns the window of a batch, [window rows, *features]."""
        if self.in_place:
            return self.store.gather(self.transfers.rows(number))
        return self._buffers[number % 2][: self.transfers.batches[number].num_rows]


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

"""Rows of a store on the device, part by part: one buffer is filled while the other is used."""

from __future__ import annotations

import torch
from torch import Tensor

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
        self._in_place = in_place
        self._buffers = [store.empty(most_rows, dtype) for _ in range(0 if in_place else 2)]

    @property
    def loads(self) -> bool:
        """Whether rows are copied for each batch; otherwise they are read in place."""
        return not self._in_place

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
        if self.loads:
            start, stop = self.chunks.range(chunk)
            self.store.read(start, stop, self._buffers[batch % 2][: stop - start])

    def rows(self, batch: int, chunk: int) -> Tensor:
        """Returns the rows of a chunk, which :meth:`load` has read."""
        start, stop = self.chunks.range(chunk)
        if self._in_place:
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
        if self._in_place:
            return
        batch = self.transfers.batches[number]
        first = len(batch.reused)
        out = self._buffers[number % 2][first : batch.own_stop]
        self.store.gather(batch.loaded, out)

    def assemble(self, number: int) -> None:
        """Keeps rows of the batch before, and exchanges rows between ranks. Collective.

        Follows :meth:`load` of the batch, and :meth:`assemble` of the one before.
        """
        if self._in_place:
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
        if self._in_place:
            return self.store.gather(self.transfers.rows(number))
        return self._buffers[number % 2][: self.transfers.batches[number].num_rows]

"""The source rows of one batch on the device, loaded while the batch before is worked on."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.rows.row_store import RowStore


class SourceWindow:
    """Source rows of a store, batch by batch, in two buffers that are used in turn.

    Args:
        transfers: the plan of the batches.
        store: this rank's rows.
    """

    def __init__(self, transfers: SourceTransfers, store: RowStore) -> None:
        self.transfers = transfers
        self.store = store
        # Rows on the device that no other rank needs are gathered when they are asked for.
        self._in_place = store.in_place and transfers.plan.is_empty
        count = 0 if self._in_place else 2
        self._buffers = [store.empty(transfers.capacity) for _ in range(count)]

    @property
    def loads(self) -> bool:
        """Whether rows are copied for each batch; otherwise they are read in place."""
        return not self._in_place

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

    def has_memory_of(self, rows: Tensor) -> bool:
        """Whether a tensor lies in one of the buffers."""
        storage = rows.untyped_storage().data_ptr()
        return any(storage == buffer.untyped_storage().data_ptr() for buffer in self._buffers)

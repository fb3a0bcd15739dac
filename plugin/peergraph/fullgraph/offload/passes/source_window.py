"""The source rows of one batch on the device, loaded while the batch before is worked on."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.passes.buffered_rows import BufferedRows
from peergraph.fullgraph.offload.rows.row_store import RowStore


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

"""The source rows of one batch on the device, and the sums of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.offload.chunk_exchange import ChunkExchange
from peergraph.fullgraph.offload.row_store import RowStore


class SourceWindow:
    """Source rows of a store, batch by batch, in two buffers that are used in turn.

    Args:
        exchange: the plan of the batches.
        store: this rank's rows.
    """

    def __init__(self, exchange: ChunkExchange, store: RowStore) -> None:
        self.exchange = exchange
        self.store = store
        self._buffers = [store.empty(exchange.capacity) for _ in range(2)]

    def load(self, number: int) -> None:
        """Loads this rank's rows of a batch that the batch before has not."""
        batch = self.exchange.batches[number]
        first = len(batch.kept)
        out = self._buffers[number % 2][first : batch.own_stop]
        self.store.gather(batch.loaded, out)

    def assemble(self, number: int) -> None:
        """Keeps rows of the batch before, and exchanges rows between ranks. Collective.

        Follows :meth:`load` of the batch, and :meth:`assemble` of the one before.
        """
        batch = self.exchange.batches[number]
        before, buffer = self._buffers[1 - number % 2], self._buffers[number % 2]
        if len(batch.kept):
            torch.index_select(before, 0, batch.kept, out=buffer[: len(batch.kept)])
        plan = self.exchange.plan
        if plan.is_empty:
            return
        if self.exchange.deduplicate_ranks:
            sent = [buffer.index_select(0, positions) for positions in batch.sent]
        else:
            sent = [self.store.gather(rows) for rows in batch.sent]
        received = buffer[batch.own_stop : len(batch.rows)]
        plan.transport.all_to_all(split_rows(received, batch.received_counts), sent)

    def rows(self, number: int) -> Tensor:
        """Returns the window of a batch, [window rows, *features]."""
        return self._buffers[number % 2][: len(self.exchange.batches[number].rows)]


class GradientWindow:
    """Sums of gradients of source rows, which are added to their owners when rows leave.

    The sums of a row have a fixed order: batch by batch, in a batch this rank's and then those
    of the other ranks in rank order. Half types are summed in float32 within a window.

    Args:
        exchange: the plan of the batches.
        store: this rank's rows, which the sums overwrite.
    """

    def __init__(self, exchange: ChunkExchange, store: RowStore) -> None:
        self.exchange = exchange
        self.store = store
        dtype = sum_dtype(store.dtype) if store.dtype.is_floating_point else store.dtype
        shape = (exchange.capacity, *store.features)
        self._buffers = [torch.empty(shape, dtype=dtype, device=store.device) for _ in range(2)]
        store.zero_()

    def add(self, number: int, rows: Tensor | None) -> None:
        """Adds the gradients of a batch's window, [window rows, *features]; None: zeros."""
        batch = self.exchange.batches[number]
        kept, count = len(batch.kept), len(batch.rows)
        before, buffer = self._buffers[1 - number % 2], self._buffers[number % 2]
        if kept:
            torch.index_select(before, 0, batch.kept, out=buffer[:kept])
        if rows is None:
            buffer[kept:count].zero_()
            return
        buffer[:kept].add_(rows[:kept])
        buffer[kept:count].copy_(rows[kept:])

    def flush(self, number: int) -> None:
        """Adds the rows that leave the window to their owners. Collective. Follows :meth:`add`."""
        batch, exchange = self.exchange.batches[number], self.exchange
        buffer = self._buffers[number % 2]
        received: list[Tensor] = []
        if not exchange.plan.is_empty:
            returned = buffer.index_select(0, batch.returned)
            received = [buffer.new_empty((len(t), *self.store.features)) for t in batch.taken_back]
            exchange.plan.transport.all_to_all(
                received, list(split_rows(returned, batch.returned_counts))
            )
        if exchange.deduplicate_ranks:
            for positions, part in zip(batch.taken_back, received, strict=bool(received)):
                buffer.index_add_(0, positions, part)
        leaving = buffer.index_select(0, batch.leaving)
        self.store.add(batch.leaving_rows, leaving)
        if not exchange.deduplicate_ranks:
            for rows, part in zip(batch.taken_back, received, strict=bool(received)):
                self.store.add(rows, part)

"""Sums of gradients of source rows on the device, until the rows leave the window."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.offload.chunk_exchange import ChunkExchange
from peergraph.fullgraph.offload.row_store import RowStore
from peergraph.fullgraph.offload.transfers import InFlight, Lane

_ZERO_BYTES = 64 << 20


class GradientWindow:
    """Sums of gradients of source rows, which go to their owners when the rows leave the window.

    The sums of a row have a fixed order: batch by batch, in a batch this rank's and then those
    of the other ranks in rank order. Half types are summed in float32 within a window.

    Args:
        exchange: the plan of the batches.
        store: this rank's rows, which the sums overwrite.
        lane: where rows are written.
    """

    def __init__(self, exchange: ChunkExchange, store: RowStore, lane: Lane) -> None:
        self.exchange = exchange
        self.store = store
        self._lane = lane
        self._in_flight = InFlight()
        dtype = sum_dtype(store.dtype) if store.dtype.is_floating_point else store.dtype
        shape = (exchange.capacity, *store.features)
        self._buffers = [torch.empty(shape, dtype=dtype, device=store.device) for _ in range(2)]
        if exchange.deduplicate_ranks:
            self._write_zeros(exchange.untouched)
        else:
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
        """Sends the rows that leave the window to their owners. Collective. Follows :meth:`add`."""
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
            first, rows = batch.first_leaving, batch.leaving_rows
            new = buffer.index_select(0, batch.leaving[:first]).to(self.store.dtype)
            self._start(rows[:first], new, is_new=True)
            old = buffer.index_select(0, batch.leaving[first:])
            self._start(rows[first:], old, is_new=False)
            return
        self._start(batch.leaving_rows, buffer.index_select(0, batch.leaving), is_new=False)
        for rows, part in zip(batch.taken_back, received, strict=bool(received)):
            self._start(rows, part, is_new=False)

    def finish(self) -> None:
        """Lets the current stream wait until all sums are in the store."""
        self._in_flight.wait()

    def _start(self, rows: Tensor, values: Tensor, *, is_new: bool) -> None:
        """Starts to write or to add rows to the store."""
        if rows.numel() == 0:
            return
        write = self.store.scatter if is_new else self.store.add
        self._in_flight.add(self._lane.start(lambda: write(rows, values)), values)

    def _write_zeros(self, rows: Tensor) -> None:
        step = max(1, _ZERO_BYTES // max(1, self.store.row_bytes))
        zeros = self.store.empty(min(step, len(rows))).zero_()
        for part in torch.split(rows, step):
            self._start(part, zeros[: len(part)], is_new=True)

"""Sums of gradients of source rows on the device, until the rows leave the window."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.fullgraph.exchange.transport import Wait
from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.passes.copy_queue import CopyQueue, InFlight
from peergraph.fullgraph.offload.passes.windows import BufferedRows
from peergraph.fullgraph.offload.rows.row_store import RowStore

_ZERO_BYTES = 64 << 20

Write = Callable[[Tensor, Tensor], None]


class GradientWindow(BufferedRows):
    """Sums of gradients of source rows, which go to their owners when the rows leave the window.

    The sums of a row have a fixed order: batch by batch, in a batch this rank's and then those
    of the other ranks in rank order; those of ranks of another machine are added up there before.
    Half types are summed in float32 within a window.

    Args:
        transfers: the plan of the batches.
        store: this rank's rows, which the sums overwrite.
        queue: where rows are written.
    """

    def __init__(self, transfers: SourceTransfers, store: RowStore, queue: CopyQueue) -> None:
        dtype = sum_dtype(store.dtype) if store.dtype.is_floating_point else store.dtype
        # Rows on the device that no other rank adds to are summed where they are.
        in_place = store.in_place and transfers.plan.is_empty and dtype == store.dtype
        super().__init__(store, transfers.capacity, in_place=in_place, dtype=dtype)
        self.transfers = transfers
        self._queue = queue
        self._in_flight = InFlight()
        self._flushed: list[Wait] = []
        if transfers.continues_sums and not self.in_place:
            self._write_zeros(transfers.untouched)
        else:
            store.zero_()

    def load(self, number: int) -> None:
        """Reads the sums of rows that have left a window before and are in this batch's again.

        Follows :meth:`flush` of the batch before the last.
        """
        if self.in_place:
            return
        batch = self.transfers.batches[number]
        buffer, num_reused = self._buffers[number % 2], len(batch.reused)
        again = num_reused + (batch.again if self.transfers.continues_sums else 0)
        if again > num_reused:
            for wait in self._flushed:
                wait()
            buffer[num_reused:again].copy_(self.store.gather(batch.loaded[: batch.again]))
        buffer[again : batch.num_rows].zero_()

    def keep(self, number: int) -> None:
        """Keeps the sums of rows that the batch before had, too.

        Follows :meth:`flush` of the batch before, and comes before :meth:`load` of the next one.
        """
        positions = self.transfers.batches[number].reused
        if len(positions) and not self.in_place:
            before, buffer = self._buffers[1 - number % 2], self._buffers[number % 2]
            torch.index_select(before, 0, positions, out=buffer[: len(positions)])

    def add(self, number: int, rows: Tensor) -> None:
        """Adds gradients of a batch's window, [window rows, *features].

        Follows :meth:`load` and :meth:`keep` of the batch.
        """
        if self.in_place:
            # The rows are distinct, so the sums have one order.
            window = self.transfers.rows(number)
            self.store.memory.index_add_(0, window, rows.to(self.store.dtype))
        else:
            self._buffers[number % 2][: len(rows)].add_(rows)

    def flush(self, number: int) -> None:
        """Sends the rows that leave the window to their owners. Collective. Follows :meth:`add`."""
        if self.in_place:
            return
        batch, transfers = self.transfers.batches[number], self.transfers
        buffer = self._buffers[number % 2]
        of_stored: list[tuple[Tensor, Tensor]] = []
        for route in batch.gradients:
            returned = route.exchange_by_rank(buffer)
            if transfers.deduplicate_ranks:
                for positions, part in returned:
                    buffer.index_add_(0, positions, part)
            else:
                of_stored += returned
        positions = transfers.leaving(number)
        rows = transfers.rows(number).index_select(0, positions)
        leaving = buffer.index_select(0, positions)
        if transfers.continues_sums:
            self._start(self.store.scatter, rows, leaving.to(self.store.dtype))
            return
        self._start(self.store.add, rows, leaving)
        for others, part in of_stored:
            self._start(self.store.add, others, part)

    def finish(self) -> None:
        """Lets the current stream wait until all sums are in the store."""
        self._in_flight.wait()

    def _start(self, write: Write, rows: Tensor, values: Tensor) -> None:
        """Starts to write or to add rows to the store."""
        if rows.numel():
            wait = self._queue.start(lambda: write(rows, values))
            self._in_flight.add(wait, (rows, values))
            self._flushed = [wait]  # The queue ends one work before it begins the next.

    def _write_zeros(self, rows: Tensor) -> None:
        step = max(1, _ZERO_BYTES // max(1, self.store.row_bytes))
        zeros = self.store.empty(min(step, len(rows))).zero_()
        for part in torch.split(rows, step):
            self._start(self.store.scatter, part, zeros[: len(part)])

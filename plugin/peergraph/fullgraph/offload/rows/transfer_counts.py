"""Bytes that a pass over chunks moves."""

from __future__ import annotations

from dataclasses import dataclass, fields

from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.rows.row_store import RowStore


@dataclass
class TransferCounts:
    """Bytes that this rank has moved."""

    to_device: int = 0
    """From the host or a file."""
    from_device: int = 0
    """To the host or a file."""
    to_ranks: int = 0
    """Sent to other ranks."""
    reused: int = 0
    """Of source rows that stayed on the device from one batch to the next."""

    def __iadd__(self, other: TransferCounts) -> TransferCounts:
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)
        return self

    def add_sources(self, transfers: SourceTransfers, store: RowStore, number: int) -> None:
        """Counts the source rows of a batch."""
        batch = transfers.batches[number]
        sent = batch.rows_sent
        loaded = batch.num_loaded + sent * (not transfers.deduplicate_ranks)
        self.to_device += loaded * _moved_row(store)
        self.to_ranks += sent * store.row_bytes
        self.reused += len(batch.reused) * store.row_bytes

    def add_gradients(self, transfers: SourceTransfers, store: RowStore, number: int) -> None:
        """Counts the gradients of a batch.

        Rows that have left a window before are loaded again and go on being summed.
        """
        batch = transfers.batches[number]
        written, again = batch.num_leaving, batch.again
        if not transfers.deduplicate_ranks:
            written += sum(route.num_received for route in batch.gradients)
        if not transfers.continues_sums:
            again = written
        self.to_device += again * _moved_row(store)
        self.from_device += written * _moved_row(store)
        self.to_ranks += batch.rows_returned * store.row_bytes

    def add_zeros(self, transfers: SourceTransfers, store: RowStore) -> None:
        """Counts the zeros that are written before the first gradients."""
        untouched = len(transfers.untouched)
        rows = untouched if transfers.continues_sums else store.row_layout.local_count
        self.from_device += rows * _moved_row(store)


def _moved_row(store: RowStore) -> int:
    """Bytes of a row of a store of sources that cross the link."""
    return store.moved_bytes(0, 1)

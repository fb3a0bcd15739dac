"""Messages with rows of several tables, to several ranks or from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.packed_rows import ALIGNMENT, pack, packed_offsets, unpack

# For each row set: the tables as bits, and the number of rows.
Counts = Mapping[RowSet, tuple[int, int]]
# Rows of each table: uint8 [rows, row bytes].
Rows = dict[DistributedTable, Tensor]


class RowMessages:
    """The places of rows in a buffer of messages.

    The buffer has a message for each rank, in the order of `counts`. A message has a matrix of rows
    for each table that its mask names; each matrix begins at a multiple of 16 bytes.
    """

    def __init__(self, layout: Layout, counts: Mapping[int, Counts]) -> None:
        """
        Args:
            counts: for each rank, the tables and the number of rows.
        """
        self._counts = counts
        self._tables = {
            rank: [
                (table, count)
                for row_set, (mask, count) in of_rank.items()
                for table in layout.named(row_set, mask)
            ]
            for rank, of_rank in counts.items()
        }
        matrices = [matrix for of_rank in self._tables.values() for matrix in of_rank]
        self._sizes = [(count, table.row_bytes) for table, count in matrices]
        self.num_rows = sum(count for count, _ in self._sizes)
        """The number of rows, counted once for each table."""
        self.unpadded_bytes = sum(count * row_bytes for count, row_bytes in self._sizes)
        """The bytes of the rows, without padding."""
        self.bytes_by_rank = {
            rank: packed_offsets([(n, t.row_bytes) for t, n in of_rank])[-1]
            for rank, of_rank in self._tables.items()
        }
        """The bytes of the message of each rank."""
        # The rows of a single table without padding are the buffer.
        tables = {table for table, _ in matrices}
        is_padded = any(count * row_bytes % ALIGNMENT for count, row_bytes in self._sizes)
        self._only = tables.pop() if len(tables) == 1 and not is_padded else None

    def pack(self, rows: Rows, device: torch.device) -> Tensor:
        """Returns the buffer: uint8 [bytes] on the device.

        Args:
            rows: for each table, the rows for the ranks that read its row set, rank after rank.
        """
        if self._only is not None and len(rows[self._only]) == self.num_rows:
            return rows[self._only].view(-1)
        pieces: dict[tuple[int, DistributedTable], Tensor] = {}
        for table, matrix in rows.items():
            counts = {
                rank: of_rank[table.row_set][1]
                for rank, of_rank in self._counts.items()
                if table.row_set in of_rank
            }
            parts = torch.split(matrix, list(counts.values()))
            pieces |= {(rank, table): part for rank, part in zip(counts, parts, strict=True)}
        return pack([pieces[matrix] for matrix in self._matrices()], device)

    def unpack(self, buffer: Tensor) -> Rows:
        """Returns the rows of each table, rank after rank.

        Args:
            buffer: uint8 [bytes].
        """
        if self._only is not None:
            return {self._only: buffer.view(self.num_rows, self._only.row_bytes)}
        pieces: dict[DistributedTable, list[Tensor]] = {}
        for (_, table), part in zip(self._matrices(), unpack(buffer, self._sizes), strict=True):
            pieces.setdefault(table, []).append(part)
        return {t: parts[0] if len(parts) == 1 else torch.cat(parts) for t, parts in pieces.items()}

    def _matrices(self) -> Iterator[tuple[int, DistributedTable]]:
        """Yields the rank and the table of each matrix, in the order of the buffer."""
        for rank, tables in self._tables.items():
            for table, _ in tables:
                yield rank, table

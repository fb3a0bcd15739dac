"""Rows of a table that an operation reads in place, without a gather."""

from __future__ import annotations

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list, integers
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.table import Table

# How much longer a GPU takes for a row of another GPU's memory, or of the host's, than of its own.
_PEER_COST = 8.0
_HOST_COST = 80.0


class TableRows:
    """``[len(ids), *row shape]``: rows of a table by the users' ids, not gathered.

    :func:`peergraph.aggregate.g_spmm` takes it in place of the sources' features, and reads each
    row in place. A change of the table's rows changes these rows.

    Args:
        table: of any plan; must not be closed before the rows are read.
        ids: [n] int32 or int64, on the CPU or the table's device.

    Raises:
        TypeError, ValueError: ids of another dtype, device or shape.
        IndexError: an id out of range; found when rows are read, on a GPU as
            :meth:`Table.gather` finds it.
    """

    def __init__(self, table: Table, ids: torch.Tensor) -> None:
        ids = integers(ids) if isinstance(ids, torch.Tensor) else ids
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be an int32 or int64 tensor, got {_kind(ids)}")
        if ids.dim() != 1:
            raise ValueError(f"ids must have one dimension, got {list(ids.shape)}")
        self.table = table
        self.ids = ids.to(table.device).contiguous()
        self._addresses: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that a gather of the rows would return."""
        return (self.ids.numel(), *self.table.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of the table."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """Of the table."""
        return self.table.device

    @property
    def alignment_bits(self) -> int:
        """The bitwise or of all rows' addresses and the row size: shows their common alignment."""
        return _C.alignment_bits(self.table.view)

    @property
    def can_be_read(self) -> bool:
        """Whether kernels can read the rows: they have no narrow storage, and on a GPU none is on
        disk.
        """
        if isinstance(self.table, NarrowTable):
            return False
        return self.device.type == "cpu" or self.table.tiers.disk == 0

    def addresses(self) -> torch.Tensor:
        """The address of each row, int64 [n]; 0 for ids out of range. Asynchronous on a GPU."""
        view = self.table.view
        if self._addresses is None:
            self._addresses = torch.empty_like(self.ids, dtype=torch.int64)
            _C.row_addresses(view, id_list(self.ids), self._addresses, launch_on(self.device))
        return self._addresses

    def tensors(self) -> list[torch.Tensor]:
        """The ids, and the addresses where they were computed: what a read of the rows uses."""
        return [self.ids] if self._addresses is None else [self.ids, self._addresses]

    def count_reads(self, positions: torch.Tensor) -> None:
        """Counts reads in place, if the table's reads are being counted.

        Args:
            positions: which of these rows were read, once for each read; on the device.
        """
        if self.table.counter is not None:
            self.table.counter.add(self.ids[positions])

    def gather(self) -> torch.Tensor:
        """The rows as a tensor, as :meth:`Table.gather` does."""
        return self.table.gather(self.ids)

    def first(self, count: int) -> TableRows:
        """The first rows."""
        rows = TableRows(self.table, self.ids[:count])
        if self._addresses is not None:
            rows._addresses = self._addresses[:count]
        return rows

    def pays_to_read(self, reads: int) -> bool:
        """Whether `reads` reads of these rows in place cost less than gathering them first.

        A gather reads each row once from where it is stored, writes it to local memory, and later
        reads are local. Reads in place cross the link at each read of a row on another GPU or the
        host.
        """
        if isinstance(self.table, NarrowTable):
            return False
        tiers, total = self.table.tiers, max(1, self.table.rows)
        if self.device.type == "cpu":
            return True
        world = self.table.group.world_size
        remote = tiers.sharded * (world - 1) / world
        local = tiers.replicated + tiers.sharded - remote
        cost = (local + remote * _PEER_COST + tiers.host * _HOST_COST) / total
        rows = self.ids.numel()
        return reads * cost < rows * (cost + 1) + reads

    def __repr__(self) -> str:
        return f"TableRows({list(self.shape)}, {self.dtype}, of {self.table!r})"


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__

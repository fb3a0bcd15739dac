"""Rows of a table that an operation reads in place, without a gather."""

from __future__ import annotations

from copy import copy

import torch

import peergraph._C as _C
from peergraph.memory.device.default_machine import WORK
from peergraph.memory.device.launching import launch_on
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.table.encoded_rows import EncodedRows
from peergraph.memory.table.id_list import id_list, integers
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.memory.table.table import Table


class TableRows:
    """Rows of a table, chosen by users' ids and not gathered: ``[len(ids), *row shape]``.

    :func:`peergraph.aggregate.g_spmm` takes it instead of the sources' features, and reads each row
    where it is stored. It sees later writes to the table.

    Args:
        table: a table with any tiers. It must not be closed before the rows are read.
        ids: [n] users' ids, int32 or int64, on the CPU or the table's device. They are copied.

    Raises:
        TypeError, ValueError: the ids have another dtype, device or shape.
        IndexError: an id is out of range. This is found when the rows are read: see
            :meth:`Table.gather`.
    """

    def __init__(self, table: Table, ids: torch.Tensor) -> None:
        ids = integers(plain("ids", ids))
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be an int32 or int64 tensor, got {ids.dtype}")
        if ids.dim() != 1:
            raise ValueError(f"ids must have one dimension, got {list(ids.shape)}")
        self.table = table
        # Addresses are kept, so the ids are those of now, whatever happens to the user's tensor.
        # Copies made in inference mode could not be saved for a gradient.
        with torch.inference_mode(False):
            self.ids = ids.to(table.device, copy=True, memory_format=torch.contiguous_format)
        self._addresses: torch.Tensor | None = None
        self._scale_addresses: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the gathered rows."""
        return (self.ids.numel(), *self.table.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the table."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """The device of the table."""
        return self.table.device

    @property
    def view(self) -> _C.TableView:
        """The table that has the rows, as they are stored."""
        return self._stored.view

    @property
    def leases(self) -> list[_C.Lease]:
        """The leases of all memory that reads use."""
        scales = self._scales
        return self.view.leases + ([] if scales is None else scales.view.leases)

    @property
    def row_codec(self) -> RowCodec | None:
        """How the rows are stored, where their storage is narrow."""
        return self.table.codec if isinstance(self.table, NarrowTable) else None

    @property
    def codec(self) -> _C.RowCodec | None:
        """:attr:`row_codec` as kernels take it."""
        codec = self.row_codec
        return None if codec is None else codec.native

    @property
    def has_scales_apart(self) -> bool:
        """Whether the scales of rows are in another table than the rows."""
        return self._scales is not None

    @property
    def alignment_bits(self) -> int:
        """The bitwise or of all rows' addresses and the row size. Its lowest set bit is the
        alignment of all rows.
        """
        return _C.alignment_bits(self.view)

    @property
    def can_be_read(self) -> bool:
        """Whether kernels can read the rows in place. On a GPU, a table with rows on disk cannot be
        read.
        """
        return self.device.type == "cpu" or self.table.tiers.disk == 0

    def addresses(self) -> torch.Tensor:
        """Returns the address of each row, int64 [n], 0 for ids out of range. Asynchronous."""
        view = self.view
        if self._addresses is None:
            self._addresses = self._found_in(view)
        return self._addresses

    def scale_addresses(self) -> torch.Tensor | None:
        """Returns the address of the scales of each row, as :meth:`addresses`; None if the stored
        rows have their scales, or there are none.
        """
        if self._scale_addresses is None and self._scales is not None:
            self._scale_addresses = self._found_in(self._scales.view)
        return self._scale_addresses

    def tensors(self) -> list[torch.Tensor]:
        """Returns the tensors that reads use: the ids, and the addresses if they were computed."""
        used = (self.ids, self._addresses, self._scale_addresses)
        return [tensor for tensor in used if tensor is not None]

    def count_reads(self, positions: torch.Tensor | None = None) -> None:
        """Counts reads in place, if the table counts reads.

        Args:
            positions: for each read, the position of the row among these rows; on the device. None:
                each row is read once.
        """
        counter = self.table.counter  # Another thread may take it away.
        if counter is not None:
            counter.add(self.ids if positions is None else self.ids[positions])

    def gather(self) -> torch.Tensor:
        """Returns the rows as a tensor: see :meth:`Table.gather`."""
        return self.table.gather(self.ids)

    def gather_encoded(self) -> EncodedRows | None:
        """Returns the rows as they are stored; None unless their storage is narrow."""
        if not isinstance(self.table, NarrowTable):
            return None
        rows = [table.gather(self.ids) for table in self.table.encoded_tables]
        return EncodedRows(self.table.codec, *rows)

    def first(self, count: int) -> TableRows:
        """Returns the first `count` rows."""
        rows = copy(self)
        rows.ids = self.ids[:count]
        if self._addresses is not None:
            rows._addresses = self._addresses[:count]
        if self._scale_addresses is not None:
            rows._scale_addresses = self._scale_addresses[:count]
        return rows

    def pays_to_read(self, reads: int) -> bool:
        """Returns whether `reads` reads of these rows in place cost less than gathering them first.

        A gather reads each row once where it is stored and writes it to local memory; later reads
        are local. Reads in place cross the link each time that they read a row of another GPU or of
        the host.
        """
        tiers, total = self.table.tiers, max(1, self.table.rows)
        if self.device.type == "cpu":
            return True
        world = self.table.group.world_size
        remote = tiers.sharded * (world - 1) / world
        local = tiers.replicated + tiers.sharded - remote
        cost = (local + remote * WORK.peer_read + tiers.host * WORK.host_read) / total
        if isinstance(self.table, NarrowTable):
            # Reads of the table move fewer bytes than those of gathered rows.
            cost *= self.table.row_bytes / max(1, self.table.codec.user_bytes)
        rows = self.ids.numel()
        return reads * cost < rows * (cost + 1) + reads

    @property
    def _stored(self) -> Table | RowsWithScales:
        return self.table.stored if isinstance(self.table, NarrowTable) else self.table

    @property
    def _scales(self) -> Table | None:
        stored = self._stored
        return stored.scales if isinstance(stored, RowsWithScales) else None

    def _found_in(self, view: _C.TableView) -> torch.Tensor:
        addresses = torch.empty_like(self.ids, dtype=torch.int64)
        _C.row_addresses(view, id_list(self.ids), addresses, launch_on(self.device))
        return addresses

    def __repr__(self) -> str:
        return f"TableRows({list(self.shape)}, {self.dtype}, of {self.table!r})"

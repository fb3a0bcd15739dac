"""Rows of a user's tensor or table, which are read where they are and never changed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.row_allocator import Role, RowAllocator
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.rows.staged_rows import read_staged
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.staged_rows import staging_launch
from peergraph.memory.table.table import Table
from peergraph.memory.table.table_view import dense_view

# Rows whose ids are on the CPU at once.
_PIECE_ROWS = 1 << 22


class UserRows(RowStore):
    """This rank's rows of a tensor on the CPU, or of a table, in the order of a layout.

    No copy of the rows is made. Of a tensor on the CPU, which may be a mapped file, CPU threads
    gather the rows for a GPU into pinned buffers; rows of a table are read as the table reads them.
    Reads wait on the host where ranks compute on GPUs.

    Args:
        layout: the rows of all ranks; ids are rows of `table`.
        table: [layout.size, *features], equal on all ranks: a table, or a contiguous tensor on the
            CPU. It must not be changed as long as the rows are used. Sums that are kept of it are
            made again if :meth:`digest` tells that it was.
        allocator: of the graph's other rows.
    """

    def __init__(self, layout: RowLayout, table: Table | Tensor, allocator: RowAllocator) -> None:
        rows = table if isinstance(table, Table) else table.detach()
        super().__init__(
            layout, rows.shape[1:], rows.dtype, "user", allocator=allocator, is_users=True
        )
        self._table: Table | Tensor | None = rows
        self._version = _version_of(rows)
        self.first = first_of_consecutive(layout)
        """The id of the first local row if those of the others follow it in order, else None."""

    def _read(self, start: int, out: Tensor) -> None:
        for part in torch.split(out, _PIECE_ROWS):
            stop = start + len(part)
            if self.first is None:
                self._copy(self.row_layout.positions[start:stop], part)
            else:
                self._copy(self.first + start, part)
            start = stop

    def _gather(self, rows: Tensor, out: Tensor) -> None:
        for local, part in zip(*(torch.split(x, _PIECE_ROWS) for x in (rows, out)), strict=True):
            ids = local + self.first if self.first is not None else self.row_layout.positions[local]
            self._copy(ids, part)

    def release(self) -> None:
        """Lets go of the user's tensor. A second call does nothing."""
        self._table = None
        super().release()

    def _copy(self, ids: Tensor | int, out: Tensor) -> None:
        """Copies the user's rows `ids`, or consecutive ones from a first one on, to `out`."""
        table = self._table
        if table is None:
            raise RuntimeError(f"{self} was released")
        if out.nbytes == 0:
            return
        if isinstance(table, Table):
            if not isinstance(ids, Tensor):
                ids = torch.arange(ids, ids + len(out), device=self.device)
            table.gather(ids, out)
            return
        if _version_of(table) != self._version:
            raise RuntimeError(
                f"a tensor {list(table.shape)} was changed in place after an offloaded graph was "
                "made with it, which reads its rows where they are: change a copy, tensor.clone()"
            )
        if self.device.type == "cuda":
            threads = staging_launch(self.row_layout.processes.node_group.world_size).num_threads
            read_staged(table, ids, out, threads)
        elif isinstance(ids, Tensor):
            view = dense_view(table, len(table), self.row_bytes)
            _C.gather(view, id_list(ids.contiguous()), out, launch_on(self.device))
        else:
            out.copy_(table[ids : ids + len(out)])


def first_of_consecutive(layout: RowLayout) -> int | None:
    """Returns the id of the first local row if the ids of all local rows follow it, else None.

    Synchronises; 0 without local rows.
    """
    if layout.local_count == 0:
        return 0
    first = int(layout.positions[0])
    for start in range(0, layout.local_count, _PIECE_ROWS):
        ids = layout.positions[start : start + _PIECE_ROWS]
        begin = first + start
        if not torch.equal(ids, torch.arange(begin, begin + len(ids), device=ids.device)):
            return None
    return first


def _version_of(table: Table | Tensor) -> int:
    if isinstance(table, Table) or table.is_inference():
        return 0
    return table._version


_PIECE_BYTES = 64 << 20


def is_offloaded(table: Table | Tensor) -> bool:
    """Returns whether rows of a table are stored outside of the device: floats, several a row."""
    return table.dtype.is_floating_point and torch.Size(table.shape[1:]).numel() > 1


def store_table(
    allocator: RowAllocator,
    table: Table | Tensor,
    layout: RowLayout,
    what: str,
    on_device: bool = True,
) -> RowStore:
    """Returns a store with this rank's rows of a table. Not collective; synchronises.

    Rows may go to the device, if it has room for rows that are read in order. Otherwise a table,
    and a contiguous tensor on the CPU, which may be a mapped file, are read where they are, without
    a copy: they must not be changed. Any other tensor is copied, piece by piece.

    Args:
        allocator: the allocator.
        table: [layout.size, *features], a store's table, or a tensor on any device.
        layout: the rows of all ranks.
        what: the rows, for errors.
        on_device: whether they may take memory of the device.

    Raises:
        MemoryError: there is no room for the rows of a tensor that is copied.
    """
    features = tuple(table.shape[1:])
    num_bytes = layout.local_count * math.prod(features) * table.dtype.itemsize
    user_rows: UserRows | None = None
    if isinstance(table, Table) or (table.device.type == "cpu" and table.is_contiguous()):
        user_rows = UserRows(layout, table, allocator)
    if user_rows is not None and not (on_device and allocator.has_device_room(num_bytes)):
        if isinstance(table, Table) or user_rows.first is None or not table.is_pinned():
            return user_rows
        # The GPU reads pinned memory itself.
        pinned = table.detach()[user_rows.first : user_rows.first + layout.local_count]
        return RowStore(
            layout, features, table.dtype, "host", pinned, allocator=allocator, is_users=True
        )
    role: Role = "sequential" if on_device else "given"
    store = allocator.allocate(layout, features, table.dtype, role, what=what)
    if user_rows is not None and store.in_place:
        user_rows.read(0, layout.local_count, store.memory)
        return store
    if store.device.type == "cuda":
        # Queued work of this memory's last owner may still read it.
        torch.cuda.current_stream(store.device).synchronize()
    step = max(1, _PIECE_BYTES // max(1, store.row_bytes))
    for start in range(0, layout.local_count, step):
        ids = layout.positions[start : start + step]
        store.memory[start : start + len(ids)].copy_(read_rows(table, ids))
    return store


def read_rows(table: Table | Tensor, ids: Tensor) -> Tensor:
    """Returns rows of a table by the user's ids, on the table's device."""
    if isinstance(table, Table):
        return table.gather(ids)
    return table.detach().index_select(0, ids.to(table.device))

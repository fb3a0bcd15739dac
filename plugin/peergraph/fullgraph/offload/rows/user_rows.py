"""Rows of a user's tensor or table, which are read where they are and never changed."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
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

    def read(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Returns local rows start..stop on the device: see :meth:`RowStore.read`."""
        if out is None:
            out = self.empty(stop - start)
        for first in range(start, stop, _PIECE_ROWS):
            last = min(stop, first + _PIECE_ROWS)
            if self.first is None:
                self._copy(self.row_layout.positions[first:last], out[first - start : last - start])
            else:
                self._copy(self.first + first, out[first - start : last - start])
        return out

    def gather(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the local rows named by `rows`: see :meth:`RowStore.gather`."""
        if out is None:
            out = self.empty(len(rows))
        for part in range(0, len(rows), _PIECE_ROWS):
            local = rows[part : part + _PIECE_ROWS]
            ids = local + self.first if self.first is not None else self.row_layout.positions[local]
            self._copy(ids, out[part : part + len(local)])
        return out

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

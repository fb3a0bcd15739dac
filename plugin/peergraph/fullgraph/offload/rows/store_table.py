"""This rank's rows of a user's tensor or table, as a store."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.row_allocator import Role, RowAllocator
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.rows.user_rows import UserRows
from peergraph.memory.table.table import Table

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

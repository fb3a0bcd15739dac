"""The rows of a user's table in a store of this rank, read piece by piece."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.row_store import RowStore
from peergraph.fullgraph.offload.row_stores import RowStores
from peergraph.memory.table.table import Table

_PIECE_BYTES = 64 << 20


def is_offloaded(table: Table | Tensor) -> bool:
    """Returns whether rows of a table are stored outside of the device: floats, several a row."""
    return table.dtype.is_floating_point and torch.Size(table.shape[1:]).numel() > 1


def store_rows(stores: RowStores, table: Table | Tensor, layout: RowLayout, what: str) -> RowStore:
    """Returns a store with this rank's rows of a table. Not collective.

    Rows pass the device piece by piece, and only if the table is there. A tensor of one rank that
    is in shared memory (for a GPU, in pinned memory) in the order of the layout is not copied: it
    must not be changed.

    Args:
        stores: the allocator.
        table: [layout.size, *features], a store's table, or a tensor on any device.
        layout: the rows of all ranks.
        what: the rows, for errors.

    Raises:
        MemoryError: there is no room for the rows.
    """
    num_bytes = layout.local_count * torch.Size(table.shape[1:]).numel() * table.dtype.itemsize
    if not stores.has_device_room(num_bytes) and _serves(table, layout):
        return RowStore(layout, table.detach(), "host", allocator=stores)
    store = stores.allocate(layout, tuple(table.shape[1:]), table.dtype, "sequential", what=what)
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


def _serves(table: Table | Tensor, layout: RowLayout) -> TypeGuard[Tensor]:
    """Returns whether a tensor's own memory can be the host memory of a store."""
    if type(table) is not Tensor or table.device.type != "cpu" or not table.is_contiguous():
        return False
    is_shared: bool = table.is_shared()  # type: ignore[no-untyped-call]
    on_gpu = layout.group.device.type == "cuda"
    if layout.group.world_size > 1 or not (table.is_pinned() if on_gpu else is_shared):
        return False
    return torch.equal(layout.positions.cpu(), torch.arange(layout.size))

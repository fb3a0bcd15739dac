"""Trained tables: which rank updates which row, and the update in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.table import Table
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.training.coalesce import SparseRows, accumulator, coalesce
from peergraph.memory.training.exchange import Outgoing, join


def owned_tiers(tiers: Tiers, world_size: int) -> Tiers:
    """The tiers, with a few rows moved so that each rank owns the rows of its shard.

    Row r belongs to rank r % world_size, and the sharded rows are split round robin from the first
    sharded row on, whose number must therefore be a multiple of the world size.
    """
    if tiers.sharded == 0:
        return tiers
    moved = tiers.replicated % world_size
    return replace(tiers, replicated=tiers.replicated - moved, sharded=tiers.sharded + moved)


class TrainedTable:
    """A table of rows [rows, width] and tables of optimizer state with the same rows.

    One rank, the owner, updates each row and stores the row's state; the other ranks send it their
    gradients. State is not replicated: only the owner reads it.
    """

    def __init__(self, table: Table) -> None:
        if table.tiers.disk:
            raise NotImplementedError("rows on disk are not trained")
        self.table = table
        self.group = table.group
        self.width = table.shape[1]
        self.accumulator = accumulator(table.dtype)
        # Rows of each owner, rounded up: keys are owner * span + the row's place among its own.
        self._span = max(1, -(-table.rows // self.group.world_size))

    def new_state(self, value: float) -> Table:
        """A table of optimizer state, all rows `value`. Collective; follow with a barrier."""
        on_gpus = self.table.tiers.replicated + self.table.tiers.sharded
        tiers = Tiers(sharded=on_gpus, host=self.table.tiers.host)
        shape = self.table.shape
        order = self.table._order
        state = Table.create(shape, self.accumulator, tiers, self.group, order=order, check=False)
        _fill(state, value)
        return state

    def outgoing(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> Outgoing:
        """This rank's gradients, the sum for each row, in order of owner. Synchronises.

        Args:
            ids: int32 or int64 user ids, any shape, on the CPU or the table's device.
            grads: one for each, [*ids.shape, width] of the table's dtype.

        Raises IndexError where an id is out of range, ValueError where gradients are of other
        shapes than the rows.
        """
        given = self._flat(ids, grads)
        return self._by_owner(SparseRows(self._keys(given.keys), given.values))

    def summed(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> SparseRows:
        """This rank's gradients, the sum for each user id. Synchronises; arguments and errors as
        :meth:`outgoing`.
        """
        given = self._flat(ids, grads)
        self._check(given.keys)
        return coalesce(given)

    def _flat(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> SparseRows:
        for row_ids, grad in zip(ids, grads, strict=True):
            if grad.shape != (*row_ids.shape, self.width):
                raise ValueError(
                    f"gradients of ids {list(row_ids.shape)} must be "
                    f"{[*row_ids.shape, self.width]}, got {list(grad.shape)}"
                )
        device = self.table.device
        none = torch.empty(0, dtype=torch.int64, device=device)
        flat = torch.cat([none, *(i.flatten().to(device, torch.int64) for i in ids)])
        values = [g.reshape(-1, self.width).to(device) for g in grads]
        empty = torch.empty((0, self.width), dtype=self.table.dtype, device=device)
        return SparseRows(flat, torch.cat([empty, *values]))

    def _by_owner(self, given: SparseRows) -> Outgoing:
        device = self.table.device
        rows = coalesce(given)
        world = self.group.world_size
        bounds = torch.arange(world + 1, device=device) * self._span
        ends = torch.searchsorted(rows.keys, bounds).tolist()
        return Outgoing(rows, [ends[r + 1] - ends[r] for r in range(world)])

    def update(
        self, incoming: Sequence[SparseRows], rule: _C.UpdateRule, states: Sequence[Table]
    ) -> None:
        """Applies gradients to the rows that this rank owns.

        Args:
            incoming: of each rank; they are summed in this order.
            states: in the order that the rule has them.
        """
        # One rank's gradients are summed already, in order.
        rows = incoming[0] if len(incoming) == 1 else coalesce(join(incoming))
        world = self.group.world_size
        owned = (rows.keys - self.group.rank * self._span) * world + self.group.rank
        values = rows.values.contiguous()
        views = self.table.write_views
        _C.sparse_update(
            views[0],
            DTYPES[self.table.dtype],
            [state.view for state in states],
            rule,
            owned,
            values,
            launch_on(self.table.device),
        )
        if len(views) > 1:
            self._copy_rows(owned)

    def _copy_rows(self, rows: Tensor) -> None:
        """Copies updated rows to the other copies of their shards."""
        table = self.table
        by_row = Table(
            table.shape,
            table.dtype,
            table.tiers,
            self.group,
            table._regions,
            None,
            table._partitions,
            table.split,
            staged=0.0,
        )
        plain = by_row.write_views
        fresh = torch.empty((rows.numel(), self.width), dtype=table.dtype, device=table.device)
        _C.gather(plain[0], id_list(rows), fresh, launch_on(table.device))
        for view in plain[1:]:
            _C.scatter(view, id_list(rows), fresh, launch_on(table.device))

    def _check(self, ids: Tensor) -> None:
        bad = (ids < 0) | (ids >= self.table.rows)
        if bool(bad.any()):
            raise IndexError(
                f"id {int(ids[bad][0])} is out of range for a table of {self.table.rows} rows"
            )

    def _keys(self, ids: Tensor) -> Tensor:
        self._check(ids)
        order = self.table._order_values
        rows = ids if order is None else order[ids].long()
        world = self.group.world_size
        return rows if world == 1 else rows % world * self._span + rows // world


def _fill(table: Table, value: float) -> None:
    """Sets all elements in this rank's memory."""
    for region in table._regions.values():
        size = region.sizes[table.group.rank] // table.dtype.itemsize
        if size:
            region.local(table.dtype, (size,)).fill_(value)

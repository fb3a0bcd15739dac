"""Trained tables: assigns each row to the rank that updates it, and updates rows in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.table.table import Table
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.training.coalesce import SparseRows, accumulator, coalesce
from peergraph.memory.training.exchange import Outgoing, join


def owned_tiers(tiers: Tiers, world_size: int) -> Tiers:
    """Returns the tiers with a few rows moved, so that each rank owns the rows of its shard.

    Rank ``r % world_size`` owns row r. The sharded rows are split round robin, starting at the
    first sharded row, so the number of that row must be a multiple of the world size.
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
        # Rows of each owner, rounded up: a key is owner * span + the row's index at the owner.
        self._span = max(1, -(-table.rows // self.group.world_size))

    def new_state(self, value: float) -> Table:
        """Returns a table of optimizer state with all elements `value`. Collective; call a barrier
        afterwards.
        """
        on_gpus = self.table.tiers.replicated + self.table.tiers.sharded
        tiers = Tiers(sharded=on_gpus, host=self.table.tiers.host)
        if not PeerAccess.of(self.group).is_full:
            # All ranks read the state, to save it, and no rank reaches all GPUs.
            tiers = Tiers.all_host(self.table.rows)
        shape = self.table.shape
        order = self.table._order
        state = Table.create(shape, self.accumulator, tiers, self.group, order=order, check=False)
        _fill(state, value)
        return state

    def outgoing(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> Outgoing:
        """Sums this rank's gradients of each row; returns the sums in order of owner. Synchronises.

        Args:
            ids: int32 or int64 user ids, any shape, on the CPU or the table's device.
            grads: the gradients for each tensor of ids: [*ids.shape, width] of the table's dtype.

        Raises IndexError if an id is out of range, ValueError if gradients have other shapes than
        the rows.
        """
        rows = self._flat(ids, grads)
        return self._by_owner(SparseRows(self._keys(rows.keys), rows.values))

    def summed(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> SparseRows:
        """Sums this rank's gradients of each user id. Synchronises; arguments and errors as in
        :meth:`outgoing`.
        """
        rows = self._flat(ids, grads)
        self._check(rows.keys)
        return coalesce(rows)

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

    def _by_owner(self, rows: SparseRows) -> Outgoing:
        device = self.table.device
        rows = coalesce(rows)
        world = self.group.world_size
        bounds = torch.arange(world + 1, device=device) * self._span
        ends = torch.searchsorted(rows.keys, bounds).tolist()
        return Outgoing(rows, [ends[r + 1] - ends[r] for r in range(world)])

    def update(
        self, incoming: Sequence[SparseRows], rule: _C.UpdateRule, states: Sequence[Table]
    ) -> None:
        """Applies gradients to the rows that this rank owns.

        Args:
            incoming: the gradients of each rank; they are summed in this order.
            rule: the optimizer's update.
            states: the optimizer's state tables, in the order of the rule.
        """
        # The gradients of a single rank are summed already.
        rows = incoming[0] if len(incoming) == 1 else coalesce(join(incoming))
        world = self.group.world_size
        owned = (rows.keys - self.group.rank * self._span) * world + self.group.rank
        values = rows.values.contiguous()
        with self.table._writing():
            # The copy that this rank reads is updated, and copied to the others.
            _C.sparse_update(
                self.table.view,
                DTYPES[self.table.dtype],
                [state.view for state in states],
                rule,
                owned,
                values,
                launch_on(self.table.device),
            )
            if self.table.has_copies:
                self._copy_rows(owned)

    def _copy_rows(self, rows: Tensor) -> None:
        """Copies updated rows to the other copies of their shards, and to replicas that this rank
        does not reach.
        """
        # A table without an order: its ids are internal rows.
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
        by_row.scatter(rows, by_row.gather(rows))

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
    """Sets all elements of the table in this rank's memory to `value`."""
    for region in table._regions.values():
        size = region.sizes[table.group.rank] // table.dtype.itemsize
        if size:
            region.local(table.dtype, (size,)).fill_(value)

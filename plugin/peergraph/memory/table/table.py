"""Tables: rows of one dtype and shape, spread over the tiers of a group's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import torch

import peergraph._C as _C
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import close_all
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table import loading
from peergraph.memory.table.access import Access
from peergraph.memory.table.checks import check_table
from peergraph.memory.table.id_list import check_device, near_ids, out_tensor
from peergraph.memory.table.partitions import Partitions, everyone_reaches_all
from peergraph.memory.table.read_counter import ReadCounter
from peergraph.memory.table.table_view import leases_of
from peergraph.memory.table.tier_sizes import local_bytes
from peergraph.memory.table.tiers import Tiers


class Table:
    """A [rows, ...] array whose rows lie on the replicated, sharded, host and disk tiers.

    One kernel reads it whatever the tiers (WholeGraph III-C3). Made with :meth:`create`, released
    with :meth:`close`. Pickles as a handle, as :class:`SharedRegion` does.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tiers: Tiers
    group: Group
    row_bytes: int
    counter: ReadCounter | None = None
    """Counts gathers, where :meth:`count_reads` made one."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        tiers: Tiers,
        group: Group,
        regions: dict[str, SharedRegion],
        order: Table | torch.Tensor | None,
        partitions: Partitions | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.tiers = tiers
        self.group = group
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._regions = regions
        self._order = order
        self._order_values = _values(order)
        self._partitions = partitions
        self._access: Access | None = Access(
            tiers,
            self.row_bytes,
            group,
            regions,
            self._order_values,
            partitions,
            order.leases if isinstance(order, Table) else (),
        )

    @classmethod
    @collective("Table.create")
    def create(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        tiers: Tiers,
        group: Group,
        *,
        order: Table | torch.Tensor | None = None,
        partitions: Partitions | None = None,
        spill: str | PathLike[str] | None = None,
        check: bool = True,
    ) -> Table:
        """Allocates a table. Collective; all ranks pass the same shape, dtype and tiers.

        Args:
            shape: rows, then the shape of a row; 1-D to n-D, any of them may be 0.
            dtype: any torch dtype whose elements are whole bytes.
            tiers: rows per tier; they add up to the rows.
            group: the ranks.
            order: user id -> internal row; int32 or int64 [rows] on the group's device, kept and
                not copied; a permutation. Give a table whose rows are all local (:meth:`as_tensor`)
                rather than a tensor where this table is to be pickled. None: the users' ids are the
                rows.
            partitions: which ranks store copies of which shards, and who reads it from where (XGNN
                4.2); None: rank i stores shard i.
            spill: folder for the rows on disk: a file without a name there, which ends with the
                table or with the ranks.
            check: verify that `order`, whose values must be there on all ranks, is a permutation;
                synchronises with a GPU. One that is not and is not checked is undefined behaviour.

        Rows on the replicated tier are stored once per rank, row j behind them on shard
        j % world_size. On CUDA the host tier is pinned. Contents are undefined until written.

        Raises:
            ValueError: shape, dtype or tiers do not fit together, or ranks disagree about them; the
                first id of `order` that repeats another.
            IndexError: the first id of `order` out of range.
            MemoryError: the memory does not suffice.
            OSError: the room in `spill` does not.
            PeerLostError: a rank is missing.
        """

        def describe() -> tuple[tuple[int, ...], torch.dtype, Tiers, Partitions | None]:
            values = _values(order)
            return check_table(shape, dtype, tiers, group, values, partitions, spill, check)

        wanted = collective_call(group, describe)
        group.agree(order=order is not None)
        for rank, other in enumerate(group.all_gather(wanted)):
            if other != wanted:
                raise ValueError(f"rank {rank} creates a table {other}, this rank {wanted}")
        rows_shape, row_bytes = wanted[0], math.prod(wanted[0][1:]) * dtype.itemsize
        with ExitStack() as undo:
            regions: dict[str, SharedRegion] = {}
            for name, num_bytes, device in local_bytes(tiers, row_bytes, group, partitions):
                if getattr(tiers, name):
                    folder = spill if name == "disk" else None
                    regions[name] = SharedRegion.create(num_bytes, group, device, folder)
                    undo.callback(regions[name].close)
            table = cls(rows_shape, dtype, tiers, group, regions, order, partitions)
            undo.pop_all()
        return table

    @property
    def rows(self) -> int:
        """Rows of all tiers."""
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        """Where rows are gathered to: the group's device."""
        return self.group.device

    @property
    def view(self) -> _C.TableView:
        """What kernels get; valid until the table is closed.

        NotImplementedError for a table with rows on disk on a GPU, where kernels cannot read them.
        """
        return self._opened().view

    @property
    def leases(self) -> list[_C.Lease]:
        """Of the memory of the rows: kernels that get addresses in it must be inside of them."""
        return leases_of(self._regions)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows, each counted once."""
        return self.rows * self.row_bytes

    @property
    def allocated(self) -> dict[str, list[int]]:
        """By tier, the bytes of each rank; copies of shards included."""
        return {name: region.sizes for name, region in self._regions.items()}

    def gather(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, *, padded: bool = False
    ) -> torch.Tensor:
        """Returns the rows `ids`, shaped [*ids.shape, *row shape] (WholeGraph III-C3). One-sided.

        Args:
            ids: int32 or int64, any shape, on the CPU or the table's device.
            out: where to write; contiguous, of the table's dtype and the result's shape, on the
                table's device or the CPU.
            padded: an id of -1 is padding and gives a row of zeros.

        On a GPU it runs in the current stream and does not synchronise, except to copy into an
        `out` on the CPU, and, with rows on disk, to find out which of them are wanted: the CPU
        reads these while the GPU gathers the others.

        Raises:
            IndexError: an id is negative or not below the rows. For ids on a GPU it is found while
                the kernel runs, which returns rows of zeros for such ids; a later call of peergraph
                on that device raises, or :func:`peergraph.synchronize`.
            TypeError, ValueError: ids or out are not as above.
            RuntimeError: the table is closed.
        """
        access = self._opened()
        ids = near_ids(ids, self.rows, self.device, padded)
        shape = (*ids.shape, *self.shape[1:])
        target = out_tensor(out, shape, self.dtype, self.device)
        result = target
        if target.device != self.device:
            result = torch.empty(shape, dtype=self.dtype, device=self.device)
        if self.counter is None:
            access.gather(ids, result.data_ptr(), padded)
        else:
            with self.counter.gather(ids):
                access.gather(ids, result.data_ptr(), padded)
        if target is not result:
            target.copy_(result)
        return target

    def count_reads(self) -> ReadCounter:
        """From now on counts gathers of this object, until :attr:`counter` is None again."""
        parts = self._partitions or everyone_reaches_all(self.group.world_size)
        order = self._order_values
        self.counter = ReadCounter(self.tiers, parts, self.group.rank, self.device, order)
        return self.counter

    def scatter(self, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Overwrites the rows `ids` with `values`, in every replica. One-sided.

        Args:
            ids: int32 or int64, any shape, on the CPU or the table's device. Of duplicates any
                one's value remains, and ranks may see different ones on the replicated tier.
            values: [*ids.shape, *row shape] of the table's dtype, on the CPU or the table's device.

        On a GPU it runs in the current stream and does not synchronise, except with rows on disk.
        Other ranks see the rows after a barrier of the group.

        Raises as :meth:`gather` does; ids out of range on a GPU write nothing.
        """
        access = self._opened()
        ids = near_ids(ids, self.rows, self.device)
        shape = (*ids.shape, *self.shape[1:])
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"values must be a tensor, got {type(values).__name__}")
        if values.dtype != self.dtype:
            raise ValueError(f"values must be {self.dtype}, got {values.dtype}")
        if tuple(values.shape) != shape:
            raise ValueError(f"values must have shape {shape}, got {tuple(values.shape)}")
        check_device("values", values, self.device)
        values = values.to(self.device, non_blocking=True).contiguous()
        access.scatter(ids, values.data_ptr())

    def load(
        self,
        source: torch.Tensor | np.ndarray[Any, Any],
        start: int = 0,
        *,
        chunk_bytes: int = 64 << 20,
        progress: bool | None = None,
    ) -> None:
        """Writes `source` to the users' rows [start, start + len(source)). One-sided.

        Rank 0 may load everything, or every rank its share; follow with `group.barrier()` before
        others read. Goes chunk by chunk straight into the memory of all ranks: no second full copy.

        Args:
            source: a tensor, an array or a memory map of the table's dtype, [n, *row shape].
            start: first row.
            chunk_bytes: how much is in flight at a time.
            progress: whether to show a bar; None: for more than 1 GB, on a terminal.

        Synchronises with the GPU. Raises ValueError for a source that does not fit.
        """
        self._opened()
        loading.load(self, source, start, chunk_bytes, progress)

    def read(
        self, start: int = 0, stop: int | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the users' rows [start, stop) on the CPU. One-sided; synchronises with the GPU.

        Args:
            start, stop: as in a slice, without negative numbers; None: to the end.
            out: where to write; contiguous, on the CPU, of the result's dtype and shape.

        Raises ValueError for a range outside the table, or an `out` that does not fit.
        """
        self._opened()
        return loading.read(self, start, stop, out)

    def as_tensor(self) -> torch.Tensor:
        """Returns the whole table as a tensor over its memory, without a copy. Not collective.

        Only where all rows lie together in memory that this rank reaches: all replicated, all on
        the host tier or on disk, or on one rank. Changes are changes of this rank's copy.
        ValueError otherwise. The tensor is in internal order, and invalid once the table is closed.
        """
        self._opened()
        names = [f.name for f in fields(self.tiers) if getattr(self.tiers, f.name)]
        together = len(names) <= 1 and (names != ["sharded"] or self.group.world_size == 1)
        if not together:
            raise ValueError(f"the rows of a table with {self.tiers} do not lie together")
        if not names or self.num_bytes == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        rank = 0 if names[0] in ("host", "disk") else self.group.rank
        return self._regions[names[0]].part(rank, self.dtype, self.shape)

    @collective("Table.close")
    def close(self) -> None:
        """Releases the memory. Collective, except on a copy that came by pickle; idempotent.

        Waits for gathers of other threads, and for the GPU; later ones raise RuntimeError. An
        `order` is not closed. Raises as :meth:`SharedRegion.close`.
        """
        self._access = None
        self._order_values = None
        # Not emptied: another thread may be looking into it.
        regions, self._regions = self._regions, {}
        why = "this table has been closed"
        close_all(partial(region.close, why) for region in regions.values())

    def _opened(self) -> Access:
        if self._access is None:
            raise RuntimeError("this table has been closed")
        return self._access

    def _write_range(self, start: int, count: int, values: int) -> None:
        """Scatters to the users' rows from `start` on, from an address the device reaches."""
        self._opened().write_range(start, count, values)

    def _read_range(self, start: int, out: torch.Tensor) -> None:
        """Gathers the users' rows from `start` on into a tensor on the device."""
        self._opened().read_range(start, len(out), out.data_ptr())

    def __reduce__(self) -> tuple[Any, ...]:
        self._opened()
        if isinstance(self._order, torch.Tensor):
            raise TypeError("a table is pickled with its order only where that is a Table, too")
        return (
            Table,
            (
                self.shape,
                self.dtype,
                self.tiers,
                self.group,
                self._regions,
                self._order,
                self._partitions,
            ),
        )

    def __repr__(self) -> str:
        return f"Table(shape={self.shape}, dtype={self.dtype}, {self.tiers})"


def _values(order: Table | torch.Tensor | None) -> torch.Tensor | None:
    return order.as_tensor() if isinstance(order, Table) else order

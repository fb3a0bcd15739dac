"""Tables: rows of one dtype and shape on the tiers of a group's memory."""

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
from peergraph.memory.device.launching import Launch, launch_on
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import close_all
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.access import Access, DirectRead, open_access
from peergraph.memory.table.byte_rows import as_bytes, download_rows
from peergraph.memory.table.checks import check_access, check_table
from peergraph.memory.table.id_list import ids_on_device
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.memory.table.read_counter import ReadCounter, counted
from peergraph.memory.table.row_arguments import (
    check_values,
    gathered_to,
    out_tensor,
    range_of_rows,
)
from peergraph.memory.table.source import check_source, chunks_on_device
from peergraph.memory.table.staged_rows import disk_launch
from peergraph.memory.table.table_view import leases_of
from peergraph.memory.table.tier_sizes import Split, local_bytes, shard_rows
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.table.write_mark import MarkedRows
from peergraph.profiling import GATHER, profiled
from peergraph.progress import progress_bar


class Table(MarkedRows):
    """A [rows, ...] array whose rows are on the replicated, sharded, host and disk tiers.

    One kernel reads rows of all tiers (WholeGraph III-C3). :meth:`create` allocates a table,
    :meth:`close` releases it. A table pickles as a handle, as :class:`SharedRegion` does.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tiers: Tiers
    group: Group
    row_bytes: int
    split: Split
    counter: ReadCounter | None = None
    """Counts gathers after :meth:`count_reads`."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        tiers: Tiers,
        group: Group,
        regions: dict[str, SharedRegion],
        order: Table | torch.Tensor | None,
        partitions: Partitions | None = None,
        split: Split = "round_robin",
        *,
        staged: float | None = None,
    ) -> None:
        """Makes a table over existing memory. Use :meth:`create` to allocate a table.

        Args:
            shape, dtype, tiers, group, order, partitions, split: as for :meth:`create`.
            regions: the memory of each tier that has rows.
            staged: the share of rows in host memory that CPU threads read for a GPU while its
                kernels read the others; None: the share that was fastest in measurements.
        """
        self.shape = shape
        self.dtype = dtype
        self.tiers = tiers
        self.group = group
        self.split = split
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._regions = regions
        self._order = order
        self._order_values = _values(order)
        self._partitions = partitions
        order_leases = order.leases if isinstance(order, Table) else []
        self._access: Access | None = open_access(
            tiers,
            self.row_bytes,
            group,
            regions,
            self._order_values,
            partitions or one_partition_per_gpu(group.world_size),
            split,
            order_leases,
            staged,
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
        split: Split = "round_robin",
        spill: str | PathLike[str] | None = None,
        check: bool = True,
    ) -> Table:
        """Allocates a table. Collective; all ranks pass the same shape, dtype, tiers and split.

        Args:
            shape: the number of rows, then the shape of a row; 1-D to n-D, sizes may be 0.
            dtype: any torch dtype whose elements are whole bytes.
            tiers: rows per tier; their sum is the number of rows.
            group: the ranks.
            order: the internal row of each user id: a permutation, int32 or int64 [rows] on the
                group's device, kept and not copied. To pickle the table, pass a table whose rows
                are all local (:meth:`as_tensor`) instead of a tensor. None: they are equal.
            partitions: which ranks store copies of which shards, and which copy each rank reads
                (XGNN 4.2); None: rank i stores shard i, which all ranks reach.
            split: "round_robin": sharded row j is on rank j % world_size. "blocks": each rank has
                a contiguous range of ceil(sharded / world_size) rows, the last ranks fewer or none
                (:meth:`shard_rows`).
            spill: the folder for the rows on disk. They are in a file without a name, which is
                deleted when the table is closed or the ranks end.
            check: whether to check that `order` is a permutation, which synchronises with a GPU.
                The values must be equal on all ranks. If an unchecked order is not a permutation,
                the behaviour is undefined.

        Each rank stores the replicated rows once. On CUDA the host tier is pinned. The contents are
        undefined until they are written.

        Raises:
            ValueError: shape, dtype or tiers do not fit together, or ranks pass different ones, or
                `order` contains an id twice.
            IndexError: `order` contains an id that is out of range.
            MemoryError: there is not enough memory.
            OSError: there is not enough space in `spill`.
            RuntimeError: a rank reads a shard from a rank whose memory it cannot map.
            PeerLostError: a rank is missing.
        """

        def describe() -> tuple[object, ...]:
            values = _values(order)
            check_access(partitions, tiers, access)
            return check_table(shape, dtype, tiers, group, values, partitions, split, spill, check)

        access = PeerAccess.of(group)
        mine = collective_call(group, describe)
        group.agree(order=order is not None)
        for rank, other in enumerate(group.all_gather(mine)):
            if other != mine:
                raise ValueError(f"rank {rank} creates a table {other}, this rank {mine}")
        sizes = tuple(int(size) for size in shape)
        row_bytes = math.prod(sizes[1:]) * dtype.itemsize
        with ExitStack() as undo:
            regions: dict[str, SharedRegion] = {}
            for name, num_bytes, device in local_bytes(tiers, row_bytes, group, partitions, split):
                if getattr(tiers, name):
                    folder = spill if name == "disk" else None
                    regions[name] = SharedRegion.create(
                        num_bytes, group, device, folder, mapped="reached"
                    )
                    undo.callback(regions[name].close)
            table = cls(sizes, dtype, tiers, group, regions, order, partitions, split)
            undo.pop_all()
        return table

    @property
    def rows(self) -> int:
        """The number of rows of all tiers."""
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the group, to which rows are gathered."""
        return self.group.device

    @property
    def view(self) -> _C.TableView:
        """The view of the table that kernels take; valid until the table is closed.

        Raises NotImplementedError on a GPU for a table with rows on disk: kernels cannot read them.
        """
        access = self._opened()
        if access.on_disk is not None:
            raise NotImplementedError(
                f"kernels on {self.device} cannot read the {self.tiers.disk} rows of a table "
                "that are on disk; gather them"
            )
        return access.view

    @property
    def write_views(self) -> list[_C.TableView]:
        """Views for kernels that write rows: together they contain all copies of all rows.

        Raises RuntimeError if a copy is on a GPU that this rank's GPU does not reach:
        :meth:`scatter` has a route to it over the host.
        """
        access = self._opened()
        for distant in access.distant:
            raise distant.error()
        self._forget_mark()
        return access.write_views

    @property
    def has_copies(self) -> bool:
        """Whether writes take more than one kernel: shards have copies, or some are out of the
        GPU's reach.
        """
        access = self._opened()
        return len(access.write_views) > 1 or bool(access.distant)

    @property
    def leases(self) -> list[_C.Lease]:
        """The leases of the memory of the rows. Hold them while kernels use addresses in it."""
        return leases_of(self._regions)

    @property
    def num_bytes(self) -> int:
        """The bytes of all rows; each row counts once."""
        return self.rows * self.row_bytes

    @property
    def allocated(self) -> dict[str, list[int]]:
        """The bytes that each rank has allocated, by tier, including copies of shards."""
        return {name: region.sizes for name, region in self._regions.items()}

    @profiled(GATHER)
    def gather(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, *, padded: bool = False
    ) -> torch.Tensor:
        """Returns the rows `ids`, shaped [*ids.shape, *row shape] (WholeGraph III-C3). One-sided.

        Args:
            ids: int32 or int64, any shape, on the CPU or the table's device.
            out: the tensor to write to; contiguous, of the table's dtype and the result's shape, on
                the table's device or the CPU. It must not share memory with the table or `ids`.
            padded: an id of -1 is padding and gives a row of zeros.

        On a GPU this runs in the current stream. It synchronises only in two cases: to copy to an
        `out` on the CPU, and if rows are on disk, because the CPU reads these rows while the GPU
        gathers the others.

        Raises:
            IndexError: an id is negative, or not below the number of rows. For ids on a GPU, the
                kernel finds this while it runs, and returns rows of zeros for such ids; a later
                call of peergraph on that device, or :func:`peergraph.synchronize`, raises.
            TypeError, ValueError: `ids` or `out` is not as described above.
            RuntimeError: the table is closed.
        """
        access = self._opened()
        ids = ids_on_device(ids, self.rows, self.device, padded)
        shape = (*ids.shape, *self.shape[1:])
        with (
            gathered_to(out, shape, self.dtype, self.device) as result,
            counted(self.counter, ids),
        ):
            access.gather(ids, result, self._launch(), padded)
        return result if out is None else out

    def direct_read(self) -> DirectRead | None:
        """Returns what one kernel needs to gather rows; None if a gather takes other steps."""
        return self._opened().direct if self.counter is None else None

    def gather_decoded(
        self, ids: torch.Tensor, out: torch.Tensor, codec: _C.RowCodec, padded: bool
    ) -> None:
        """Writes the rows `ids`, decoded by a codec, to `out`; for a table of encoded rows.

        On a GPU, no row may be in host memory or on disk. `padded` is as in :meth:`gather`.
        """
        with counted(self.counter, ids):
            self._opened().gather_decoded(ids, out, codec, self._launch(), padded)

    def gather_stored(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows `ids` as they are stored: uint8 [n, row_bytes]. As :meth:`gather`.

        Args:
            ids: [n] row ids as in :meth:`gather`.
        """
        return as_bytes(self.gather(ids))

    def count_reads(self) -> ReadCounter:
        """Counts gathers of this object from now on, until :attr:`counter` is set to None."""
        self.counter = ReadCounter(
            self.tiers,
            self._partitions or one_partition_per_gpu(self.group.world_size),
            self.group.rank,
            self.device,
            self._order_values,
            self.split,
        )
        return self.counter

    def scatter(self, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Overwrites the rows `ids` with `values`, in every replica. One-sided.

        Args:
            ids: int32 or int64, any shape, on the CPU or the table's device. If an id occurs twice,
                one of its values remains; on the replicated tier, ranks may see different ones.
            values: [*ids.shape, *row shape] of the table's dtype, on the CPU or the table's device.
                Neither shares memory with the table.

        On a GPU this runs in the current stream. It synchronises with rows on disk, if writes are
        marked, and for copies on a GPU that cannot be mapped, which get the rows over the host.
        Other ranks see the rows after a barrier of the group.

        Raises as :meth:`gather` does; ids out of range on a GPU write nothing.
        """
        access = self._opened()
        ids = ids_on_device(ids, self.rows, self.device)
        shape = (*ids.shape, *self.shape[1:])
        values = check_values(values, shape, self.dtype, self.device)
        values = values.to(self.device, non_blocking=True).contiguous()
        with self._writing():
            access.scatter(ids, values, self._launch())

    def write(self, ids: torch.Tensor, values: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrites rows as :meth:`scatter` does. `ids` are rows of this table, not users' ids.

        Args:
            ids, values: as in :meth:`scatter`.
            numbers: the user's id of each row, in the shape of `ids`, for errors about values.
        """
        self.scatter(ids, values)

    def load(
        self,
        source: torch.Tensor | np.ndarray[Any, Any],
        start: int = 0,
        *,
        chunk_bytes: int = 64 << 20,
        progress: bool | None = None,
    ) -> None:
        """Writes `source` to the users' rows [start, start + len(source)). One-sided.

        Rank 0 may load all rows, or each rank its share. Call `group.barrier()` before other ranks
        read. Rows are written to the memory of all ranks in chunks: there is no second full copy.

        Args:
            source: a tensor, an array or a memory map of the table's dtype, [n, *row shape].
            start: the first row.
            chunk_bytes: the size of a chunk; on a GPU two chunks are pinned.
            progress: whether to show a progress bar; None: only on a terminal, for more than 1 GB.

        Synchronises with the GPU. Raises ValueError if the source does not fit the table.
        """
        self._opened()
        source = check_source(source, start, chunk_bytes, self.shape, self.dtype)
        if self.row_bytes == 0:
            return
        with progress_bar("load", len(source) * self.row_bytes, progress) as moved:
            for part, rows in chunks_on_device(source, self.device, chunk_bytes):
                count = part.stop - part.start
                access, launch = self._opened(), self._launch()
                with self._writing():
                    access.write_range(start + part.start, count, rows, launch)
                moved(count * self.row_bytes)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def read(
        self, start: int = 0, stop: int | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the users' rows [start, stop) on the CPU. One-sided; synchronises with the GPU.

        Args:
            start, stop: as in a slice, without negative numbers; None: to the end.
            out: the tensor to write to; contiguous, on the CPU, of the result's dtype and shape.

        Raises ValueError for a range outside the table, or an `out` that does not fit.
        """
        self._opened()
        shape = (len(range_of_rows(start, stop, self.rows)), *self.shape[1:])
        result = out_tensor(out, shape, self.dtype, torch.device("cpu"))
        if result.numel() == 0:
            return result

        def read(first: int, out: torch.Tensor) -> None:
            self._opened().read_range(start + first, out, self._launch())

        if self.device.type == "cpu":
            read(0, result)
        else:
            download_rows(result, self.device, read)
        return result

    def shard_rows(self, rank: int | None = None) -> range:
        """Returns the internal rows of a rank's shard, in the order in which they are stored.

        Args:
            rank: a rank; None: this one.

        Without an `order`, internal rows are user ids. Not collective.
        """
        rank = self.group.rank if rank is None else rank
        if not 0 <= rank < self.group.world_size:
            raise ValueError(f"rank must be one of 0..{self.group.world_size - 1}, got {rank}")
        rows = shard_rows(self.tiers.sharded, self.group.world_size, self.split)[rank]
        first = self.tiers.replicated
        return range(first + rows.start, first + rows.stop, rows.step)

    def local_shard(self) -> torch.Tensor:
        """Returns this rank's shard as a tensor over its memory, without a copy. Not collective.

        Returns:
            [len(shard_rows()), *row shape], on the table's device. Row i is the internal row
            ``shard_rows()[i]``. Writes change the table; other ranks see them once the stream is
            synchronised and a barrier has passed. Invalid once the table is closed.

        Raises ValueError if `partitions` store more than this rank's shard on it, or another shard.
        """
        regions, _ = self._regions, self._opened()  # `close` of another thread takes them away
        rank = self.group.rank
        if self._partitions is not None and self._partitions.stored[rank] != (rank,):
            stored = self._partitions.stored[rank]
            raise ValueError(f"rank {rank} stores the shards {stored}, not shard {rank} alone")
        shape = (len(self.shard_rows()), *self.shape[1:])
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        region = regions["sharded"]
        return self._over_memory("local_shard", partial(region.local, self.dtype, shape))

    def as_tensor(self) -> torch.Tensor:
        """Returns the whole table as a tensor over its memory, without a copy. Not collective.

        The tensor is in internal order, and invalid once the table is closed. Writing to it changes
        this rank's copy. Autograd sees the writes of this rank's table, and none of other ranks.

        Raises ValueError unless this rank reaches all rows in contiguous memory: all rows are
        replicated, or all in host memory, or all on disk, or all sharded with a single rank.
        """
        regions, _ = self._regions, self._opened()  # `close` of another thread takes them away
        names = [f.name for f in fields(self.tiers) if getattr(self.tiers, f.name)]
        contiguous = len(names) <= 1 and (names != ["sharded"] or self.group.world_size == 1)
        if not contiguous:
            raise ValueError(f"the rows of a table with {self.tiers} are not contiguous")
        if not names or self.num_bytes == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        rank = 0 if names[0] in ("host", "disk") else self.group.rank
        part = partial(regions[names[0]].part, rank, self.dtype, self.shape)
        return self._over_memory("as_tensor", part)

    @collective("Table.close")
    def close(self) -> None:
        """Releases the memory. Collective, except on an unpickled copy. A second call does nothing.

        Waits for gathers of other threads and for the GPU; later gathers raise RuntimeError. Does
        not close a table that was given as `order`. Raises as :meth:`SharedRegion.close`.
        """
        self._access = None
        self._order_values = None
        self._tensors.clear()
        # The dictionary is not emptied: another thread may be reading it.
        regions, self._regions = self._regions, {}
        why = "this table has been closed"
        closers = [mark.close for mark in self._marks()] + [r.close for r in regions.values()]
        close_all(partial(close, why) for close in closers)

    def _opened(self) -> Access:
        if self._access is None:
            raise RuntimeError("this table has been closed")
        return self._access

    def _launch(self) -> Launch:
        if self.device.type == "cpu" and self.tiers.disk:
            return disk_launch()
        return launch_on(self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        self._opened()
        if isinstance(self._order, torch.Tensor):
            raise TypeError("a table is pickled with its order only where the order is a Table")
        memory = self._regions, self._order, self._partitions, self.split
        arguments = self.shape, self.dtype, self.tiers, self.group, *memory
        return Table, arguments, {"write_mark": self.write_mark}

    def __repr__(self) -> str:
        return f"Table(shape={self.shape}, dtype={self.dtype}, {self.tiers})"


def _values(order: Table | torch.Tensor | None) -> torch.Tensor | None:
    return order.as_tensor() if isinstance(order, Table) else order

"""Makes the views by which a rank reads and writes the rows of a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch, most_blocks
from peergraph.memory.device.machine_cache import host_reads_file
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.distant_rows import DistantRows, distant_rows, write_distant
from peergraph.memory.table.host_gather import HostGather, Staging
from peergraph.memory.table.host_read_speeds import staged_share
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.staged_rows import StagedRows, disk_launch, staging_launch
from peergraph.memory.table.table_view import cpu_view, table_view
from peergraph.memory.table.tier_sizes import Split, tier_bytes
from peergraph.memory.table.tiers import Tiers

_logger = logging.getLogger(__name__)


class DirectRead(NamedTuple):
    """What a kernel needs to gather rows of a table."""

    view: _C.TableView
    """All rows."""
    codec: _C.RowCodec | None = None
    """Decodes the rows; None where they are stored as users see them."""
    scales: _C.TableView | None = None
    """The scales of the rows, where they are in another table."""


class Access(NamedTuple):
    """The views of a table, and the objects that read the rows that the device does not read."""

    view: _C.TableView
    """All rows that the device can read."""
    write_views: list[_C.TableView]
    """Views that together contain all copies of all shards that the device reaches. If no shard has
    copies, there is one."""
    distant: Sequence[DistantRows] = ()
    """The copies that the device does not reach."""
    on_disk: StagedRows | None = None
    """The rows on disk, if the device is a GPU; None if no row is on disk."""
    host_gather: HostGather | None = None
    """Gathers rows, if the device is a GPU and some rows are in host memory or on disk."""
    reads_disk: bool = False
    """Whether the device is a CPU that reads rows on disk, which more threads do."""

    @property
    def direct(self) -> DirectRead | None:
        """What one kernel needs to gather rows; None if a gather takes other steps."""
        return None if self.host_gather or self.reads_disk else DirectRead(self.view)

    def gather(
        self, ids: torch.Tensor, out: torch.Tensor, launch: Launch, padded: bool = False
    ) -> None:
        """Writes the rows `ids` to `out`, as they are stored.

        Both tensors are contiguous and on the device. `launch` is where rows are read that the
        device reads itself; an id of -1 gives a row of zeros if `padded`.
        """
        if self.host_gather is not None:
            self.host_gather.gather(ids, out, padded)
        else:
            listed = id_list(ids, padded=padded, max_blocks=most_blocks())
            _C.gather(self.view, listed, out, launch)

    def scatter(self, ids: torch.Tensor, values: torch.Tensor, launch: Launch) -> None:
        """Overwrites the rows `ids` with `values`; both are contiguous and on the device."""
        ready = None if self.on_disk is None else self.on_disk.ready()
        for view in self.write_views:
            _C.scatter(view, id_list(ids), values, launch)
        if self.on_disk is not None and ready is not None:
            self.on_disk.scatter(ids, values, ready)
        write_distant(self.distant, ids, values)

    def write_range(self, start: int, count: int, values: torch.Tensor, launch: Launch) -> None:
        """Overwrites the users' rows from `start` on with `values`, contiguous on the device."""
        if self.on_disk is not None or self.distant:
            ids = torch.arange(start, start + count, device=values.device)
            self.scatter(ids, values, launch)
            return
        for view in self.write_views:
            _C.scatter(view, _C.IdList(first=start, count=count), values, launch)

    def read_range(self, start: int, out: torch.Tensor, launch: Launch) -> None:
        """Gathers the users' rows from `start` on into a tensor on the device."""
        if self.on_disk is not None:
            ids = torch.arange(start, start + len(out), device=out.device)
            self.gather(ids, out, launch)
        else:
            _C.gather(self.view, _C.IdList(first=start, count=len(out)), out, launch)

    def gather_decoded(
        self,
        ids: torch.Tensor,
        out: torch.Tensor,
        codec: _C.RowCodec,
        launch: Launch,
        padded: bool = False,
    ) -> None:
        """As :meth:`gather`, decoded by a codec. The device must read all rows itself."""
        listed = id_list(ids, padded=padded, max_blocks=most_blocks())
        _C.decode_gather(self.view, codec, listed, out, launch)


def open_access(
    tiers: Tiers,
    row_bytes: int,
    group: Group,
    regions: Mapping[str, SharedRegion],
    order: torch.Tensor | None,
    partitions: Partitions,
    split: Split,
    order_leases: Sequence[_C.Lease],
    staged: float | None,
) -> Access:
    """Makes the views of a table.

    Args:
        tiers: rows per tier.
        row_bytes: the bytes of a row.
        group: the ranks.
        regions: the memory of each tier that has rows.
        order: [rows] the internal row of each user id; None: they are equal.
        partitions: which ranks store which shards.
        split: how the sharded rows are split.
        order_leases: the leases of the memory of `order`.
        staged: the share of host rows that CPU threads read for a GPU; None: the share that was
            fastest in measurements.
    """
    sizes = tier_bytes(tiers, row_bytes, group.world_size, split)["sharded"]
    nothing: list[int | None] = [0] * group.world_size
    bases = regions["sharded"].reached if "sharded" in regions else nothing

    def make_view(shards: list[int], with_host: bool = True) -> _C.TableView:
        return table_view(
            tiers,
            row_bytes,
            group,
            regions,
            shards,
            order,
            split=split,
            with_host=with_host,
            order_leases=order_leases,
        )

    def staged_rows(launch: Launch, with_host: bool) -> StagedRows:
        view = cpu_view(tiers, row_bytes, regions, with_host=with_host)
        first, rows = tiers.rows - view.rows, tiers.rows
        return StagedRows(view, first, rows, row_bytes, order, group.device, launch)

    read_shards = partitions.read_addresses(group.rank, bases, sizes)
    view = make_view(read_shards)
    write_views = [make_view(shards) for shards in partitions.write_addresses(bases, sizes)]
    distant = distant_rows(tiers, row_bytes, regions, partitions, split, order)
    on_gpu = group.device.type == "cuda" and row_bytes > 0
    if not on_gpu or not (tiers.host or tiers.disk):
        return Access(view, write_views, distant, reads_disk=not on_gpu and tiers.disk > 0)
    on_disk = staged_rows(disk_launch(), with_host=False) if tiers.disk else None
    if staged is None and tiers.host:
        file = host_reads_file(group.device, group.world_size)
        staged = staged_share(file, row_bytes, tiers.host * row_bytes)
        _logger.debug("CPU threads read %.0f %% of %d host rows", 100 * staged, tiers.host)
    staging = None
    if staged:
        launch = disk_launch() if tiers.disk else staging_launch(group.world_size)
        staging = Staging(
            # The threads that read the disk read all host rows, too.
            share=1.0 if tiers.disk else staged,
            view=make_view(read_shards, with_host=False),
            rows=staged_rows(launch, with_host=True),
        )
    host_gather = HostGather(tiers, row_bytes, group.device, order, view, on_disk, staging)
    return Access(view, write_views, distant, on_disk, host_gather)

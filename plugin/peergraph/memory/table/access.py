"""Reading and writing the rows of a table at addresses: kernels for rows that the device reaches,
CPU threads for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch, launch_on, most_blocks
from peergraph.memory.device.machine_cache import host_reads_file
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.host_reads import staged_share
from peergraph.memory.table.id_list import id_list, sorted_by_row
from peergraph.memory.table.partitions import Partitions, everyone_reaches_all
from peergraph.memory.table.staged_rows import AwayRows, disk_launch, staging_launch
from peergraph.memory.table.table_view import cpu_view, dense_view, table_view
from peergraph.memory.table.tier_sizes import shard_bytes
from peergraph.memory.table.tiers import Tiers

# For fewer, sorting costs more than it saves, and so does what CPU threads have to be told.
_MANY_IDS = 4096


class Access:
    """What a table does with its memory; valid until that is freed.

    Args:
        regions: by tier, those that are not empty.
        order: [rows] user id -> row, None where they are the same.
        partitions: which ranks store which shards; None: rank i stores shard i.
        order_leases: of the memory of `order`, where it is a table's.
        staged: the share of the rows on the host that CPU threads bring a GPU, while its kernels
            read the others; None: as was measured to be fastest.
    """

    def __init__(
        self,
        tiers: Tiers,
        row_bytes: int,
        group: Group,
        regions: Mapping[str, SharedRegion],
        order: torch.Tensor | None,
        partitions: Partitions | None,
        order_leases: Sequence[_C.Lease] = (),
        staged: float | None = None,
    ) -> None:
        self._tiers = tiers
        self._row_bytes = row_bytes
        self._device = group.device
        self._order = order
        placed = partitions or everyone_reaches_all(group.world_size)
        sizes = shard_bytes(tiers, row_bytes, group)
        bases = regions["sharded"].addresses if "sharded" in regions else [0] * group.world_size

        def make_view(shards: list[int]) -> _C.TableView:
            return table_view(
                tiers, row_bytes, group, regions, shards, order, order_leases=order_leases
            )

        read = placed.read_addresses(group.rank, bases, sizes)
        self._near = make_view(read)
        # Writers reach all copies of a partition, each through a view of its own.
        self._copies = [make_view(shards) for shards in placed.write_addresses(bases, sizes)]
        self._on_disk: AwayRows | None = None
        self._share = 0.0
        self._staged: tuple[_C.TableView, AwayRows] | None = None
        if group.device.type != "cuda" or row_bytes == 0:
            return
        if tiers.disk:
            self._on_disk = self._away(group, regions, disk_launch(), with_host=False)
        if staged is None:
            file = host_reads_file(group.device, group.world_size)
            on_host = tiers.host * row_bytes
            staged = staged_share(file, row_bytes, on_host) if on_host else 0.0
        if staged > 0:
            self._share = 1.0 if tiers.disk else staged
            launch = disk_launch() if tiers.disk else staging_launch(group.world_size)
            near = table_view(
                tiers,
                row_bytes,
                group,
                regions,
                read,
                order,
                with_host=False,
                order_leases=order_leases,
            )
            self._staged = near, self._away(group, regions, launch, with_host=True)

    def _away(
        self, group: Group, regions: Mapping[str, SharedRegion], launch: Launch, with_host: bool
    ) -> AwayRows:
        view = cpu_view(self._tiers, self._row_bytes, regions, with_host=with_host)
        rows = self._tiers.rows
        return AwayRows(
            view, rows - view.rows, rows, self._row_bytes, self._order, group.device, launch
        )

    @property
    def view(self) -> _C.TableView:
        """For kernels that read rows themselves. NotImplementedError where they cannot."""
        if self._on_disk is not None:
            raise NotImplementedError(
                f"kernels on {self._device} cannot read the {self._tiers.disk} rows of a table "
                "that are on disk; gather them"
            )
        return self._near

    @property
    def copies(self) -> list[_C.TableView]:
        """For writers, who reach all copies of the rows: each through a view of its own."""
        return self._copies

    def gather(self, ids: torch.Tensor, out: int, padded: bool = False) -> None:
        """Writes the rows `ids` to an address on the device. `padded`: zeros for ids of -1."""
        # For a few rows the CPU is not worth waiting for.
        many = ids.numel() >= _MANY_IDS
        staged = self._staged
        if staged is not None and (not many or self._captures()):
            staged = None
        if staged is not None and self._share < 1:
            self._gather_shared(ids, out, padded, *staged)
            return
        view, away = staged or (self._near, self._on_disk)
        if away is not None and self._captures():
            raise NotImplementedError(
                f"a CUDA graph cannot gather from a table with rows on disk ({self._tiers})"
            )
        ready = None if away is None else away.ready()
        near, places, far = ids, None, None
        if many and self._pays_to_sort(view):
            near, places, far = self._sorted(ids)
        wanted = id_list(near, places, far, padded=padded, max_blocks=most_blocks())
        _C.gather(view, wanted, out, *self._launch())
        if away is not None and ready is not None:
            away.gather(ids, dense_view(out, ids.numel(), self._row_bytes), ready)

    def _gather_shared(
        self, ids: torch.Tensor, out: int, padded: bool, others: _C.TableView, away: AwayRows
    ) -> None:
        """Kernels read the first of the rows on the host, CPU threads bring the last meanwhile.

        Waits for the ids to be known.

        Args:
            others: the table without the rows on the host.
            away: those on the host.
        """
        near, places, far = self._sorted(ids)
        ready = away.ready()
        split = ids.numel() - round(self._share * (ids.numel() - int(far)))
        blocks = most_blocks()
        wanted = id_list(near[:split], places[:split], far, padded=padded, max_blocks=blocks)
        _C.gather(self._near, wanted, out, *self._launch())
        # Ids out of range are sorted to both ends: those of the last rows are looked at, too.
        wanted = id_list(near[split:], places[split:], padded=padded, max_blocks=blocks)
        _C.gather(others, wanted, out, *self._launch())
        result = dense_view(out, ids.numel(), self._row_bytes)
        away.gather(near[split:], result, ready, places[split:])

    def scatter(self, ids: torch.Tensor, values: int) -> None:
        """Overwrites the rows `ids` from an address on the device."""
        ready = None if self._on_disk is None else self._on_disk.ready()
        for view in self._copies:
            _C.scatter(view, id_list(ids), values, *self._launch())
        if self._on_disk is not None and ready is not None:
            self._on_disk.scatter(ids, values, ready)

    def read_range(self, start: int, count: int, out: int) -> None:
        """Writes the users' rows from `start` on to an address on the device."""
        if self._on_disk is not None:
            self.gather(self._range(start, count), out)
        else:
            _C.gather(self._near, _C.IdList(first=start, count=count), out, *self._launch())

    def write_range(self, start: int, count: int, values: int) -> None:
        """Overwrites the users' rows from `start` on from an address on the device."""
        if self._on_disk is not None:
            self.scatter(self._range(start, count), values)
            return
        for view in self._copies:
            _C.scatter(view, _C.IdList(first=start, count=count), values, *self._launch())

    def _sorted(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first_far = self._tiers.replicated + self._tiers.sharded
        return sorted_by_row(ids, self._tiers.rows, self._order, first_far)

    def _captures(self) -> bool:
        """Whether work is recorded for a CUDA graph, which cannot wait for the CPU."""
        return torch.cuda.is_current_stream_capturing()

    def _range(self, start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count, device=self._device)

    def _launch(self) -> Launch:
        if self._device.type == "cpu":
            return disk_launch() if self._tiers.disk else launch_on(self._device)
        return launch_on(self._device)

    def _pays_to_sort(self, view: _C.TableView) -> bool:
        """A GPU reads host memory in order of address at the link's speed, in random order at about
        half of it or less: address translation is what it waits for.
        """
        on_host = self._device.type == "cuda" and self._tiers.host > 0
        return on_host and view is self._near and self._row_bytes > 0

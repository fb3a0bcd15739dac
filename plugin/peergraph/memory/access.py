"""Reading and writing the rows of a table at addresses: kernels for rows that the device reaches,
CPU threads for the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import peergraph._C as _C
from peergraph.memory.away import AwayRows, disk_launch
from peergraph.memory.extents import shard_bytes
from peergraph.memory.group import Group
from peergraph.memory.ids import id_list, sorted_by_row
from peergraph.memory.launching import Launch, launch_on
from peergraph.memory.partitions import Partitions, everyone_reaches_all
from peergraph.memory.region import SharedRegion
from peergraph.memory.tiers import Tiers
from peergraph.memory.views import disk_view, table_view

# Below, a sort costs more than it saves.
_LEAST_IDS_TO_SORT = 4096


class Access:
    """What a table does with its memory; valid until that is freed.

    Args:
        regions: by tier, those that are not empty.
        order: [rows] user id -> row, None where they are the same.
        partitions: which ranks store which shards; None: rank i stores shard i.
    """

    def __init__(
        self,
        tiers: Tiers,
        row_bytes: int,
        group: Group,
        regions: Mapping[str, SharedRegion],
        order: torch.Tensor | None,
        partitions: Partitions | None,
    ) -> None:
        self._tiers = tiers
        self._row_bytes = row_bytes
        self._device = group.device
        self._order = order
        placed = partitions or everyone_reaches_all(group.world_size)
        sizes = shard_bytes(tiers, row_bytes, group)
        bases = regions["sharded"].addresses if "sharded" in regions else [0] * group.world_size

        def make_view(shards: list[int]) -> _C.TableView:
            return table_view(tiers, row_bytes, group, regions, shards, order)

        self._near = make_view(placed.read_addresses(group.rank, bases, sizes))
        # Writers reach all copies of a partition, each through a view of its own.
        self._copies = [make_view(shards) for shards in placed.write_addresses(bases, sizes)]
        self._away: AwayRows | None = None
        if tiers.disk and row_bytes and group.device.type == "cuda":
            on_disk = disk_view(tiers, row_bytes, regions)
            first = tiers.rows - tiers.disk
            self._away = AwayRows(on_disk, first, tiers.rows, row_bytes, order, group.device)

    @property
    def view(self) -> _C.TableView:
        """For kernels that read rows themselves. NotImplementedError where they cannot."""
        if self._away is not None:
            raise NotImplementedError(
                f"kernels on {self._device} cannot read the {self._tiers.disk} rows of a table "
                "that are on disk; gather them"
            )
        return self._near

    def gather(self, ids: torch.Tensor, out: int, padded: bool = False) -> None:
        """Writes the rows `ids` to an address on the device. `padded`: zeros for ids of -1."""
        ready = None if self._away is None else self._away.ready()
        near, places = ids, None
        if self._pays_to_sort(ids.numel()):
            near, places = sorted_by_row(ids, self._tiers.rows, self._order)
        _C.gather(self._near, id_list(near, places, padded=padded), out, *self._launch())
        if self._away is not None and ready is not None:
            self._away.gather(ids, out, ready)

    def scatter(self, ids: torch.Tensor, values: int) -> None:
        """Overwrites the rows `ids` from an address on the device."""
        ready = None if self._away is None else self._away.ready()
        for view in self._copies:
            _C.scatter(view, id_list(ids), values, *self._launch())
        if self._away is not None and ready is not None:
            self._away.scatter(ids, values, ready)

    def read_range(self, start: int, count: int, out: int) -> None:
        """Writes the users' rows from `start` on to an address on the device."""
        if self._away is not None:
            self.gather(self._range(start, count), out)
        else:
            _C.gather(self._near, _C.IdList(first=start, count=count), out, *self._launch())

    def write_range(self, start: int, count: int, values: int) -> None:
        """Overwrites the users' rows from `start` on from an address on the device."""
        if self._away is not None:
            self.scatter(self._range(start, count), values)
            return
        for view in self._copies:
            _C.scatter(view, _C.IdList(first=start, count=count), values, *self._launch())

    def _range(self, start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count, device=self._device)

    def _launch(self) -> Launch:
        if self._device.type == "cpu":
            return disk_launch() if self._tiers.disk else launch_on(self._device)
        return launch_on(self._device)

    def _pays_to_sort(self, count: int) -> bool:
        """A GPU reads host memory in order of address at the link's speed, in random order at about
        half of it or less: address translation is what it waits for.
        """
        on_host = self._device.type == "cuda" and self._tiers.host > 0
        return on_host and count >= _LEAST_IDS_TO_SORT and self._row_bytes > 0

"""A relation's CSC, spread over tiers, and the views of it that kernels get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import Group, SharedRegion, Table, Tiers
from peergraph.memory.region.closing import close_all
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.table.checks import check_access, check_spill
from peergraph.memory.table.distant_rows import distant_ranks, open_distant
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.memory.table.table_view import leases_of
from peergraph.store.csc.layout import PartLayout, split_by_tier
from peergraph.store.hotness.id_map import id_dtype, id_map_view

PartAddresses = tuple[int, int, int]

_NOWHERE: PartAddresses = (0, 0, 0)


@dataclass
class TieredCsc:
    """The in-neighbours of one relation's destinations. Kernels get :attr:`view`.

    Args:
        tiers: the number of destinations on each tier.
        num_sources, num_edges: the numbers of sources and of edges of the relation.
        world_size: the number of shards.
        rank: the rank of this process, which reads its own replica.
        device: the device of the rank.
        regions: the region of each tier by its name, without empty tiers.
        layouts: the layouts of each tier by its name: one for each rank, or for shards one for each
            partition.
        partitions: the partitions, which know the shards of each rank.
        edge_ids: [num_edges] the user's edge id of each CSC position; None: they are equal.
        order: [destinations] the row of each internal id; None: they are equal.
    """

    tiers: Tiers
    num_sources: int
    num_edges: int
    world_size: int
    rank: int
    device: torch.device
    regions: dict[str, SharedRegion]
    layouts: dict[str, list[PartLayout]]
    partitions: Partitions
    edge_ids: Table | None = None
    order: Table | None = None
    _view: _C.CscView | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls,
        degrees: Tensor,
        num_sources: int,
        tiers: Tiers,
        group: Group,
        partitions: Partitions | None = None,
        spill: str | PathLike[str] | None = None,
        order: Table | None = None,
    ) -> TieredCsc:
        """Allocates all parts and writes their indptr. Collective.

        Args:
            degrees: [destinations] int64 on the CPU, in the order of the rows, the same on every
                rank.
            num_sources: the number of sources.
            tiers: the number of destinations on each tier.
            group: the ranks.
            partitions: the partitions, which know the shards of each rank; None: rank i stores
                shard i.
            spill: the folder for the destinations on disk. On GPUs it raises NotImplementedError,
                since GPUs cannot sample from disk.
            order: the row of each internal id, in the memory of every rank; the structure frees it.
        """
        check_spill(spill, tiers)
        if tiers.disk and group.device.type == "cuda":
            raise NotImplementedError(
                f"structure on disk ({tiers}): {group.device} cannot sample from there"
            )
        placed = partitions or one_partition_per_gpu(group.world_size)
        check_access(placed, tiers, PeerAccess.of(group))
        index_bytes = id_dtype(num_sources).itemsize
        world = group.world_size
        parts_by_tier = split_by_tier(degrees, tiers, world)
        regions, layouts = {}, {}
        for tier, parts in parts_by_tier.items():
            layouts[tier] = [PartLayout(p.numel(), int(p.sum()), index_bytes) for p in parts]
            if all(layout.num_bytes == 0 for layout in layouts[tier]):
                continue
            device = "cpu" if tier in ("host", "disk") else None
            sizes = [layout.num_bytes for layout in layouts[tier]]
            owners = placed if tier == "sharded" else one_partition_per_gpu(world)
            held_bytes = owners.held_bytes(group.rank, sizes)
            folder = spill if tier == "disk" else None
            region = SharedRegion.create(held_bytes, group, device, folder, mapped="reached")
            for part in owners.stored[group.rank]:
                if sizes[part]:
                    begin = owners.offset(group.rank, part, sizes)
                    memory = region.local(torch.uint8, (held_bytes,))[begin:].view(torch.int64)
                    _write_indptr(memory[: layouts[tier][part].rows + 1], parts[part])
            regions[tier] = region
        # A rank that writes lists reads the indptr where it writes.
        group.barrier()
        num_edges = int(degrees.sum())
        return cls(
            tiers,
            num_sources,
            num_edges,
            world,
            group.rank,
            group.device,
            regions,
            layouts,
            placed,
            order=order,
        )

    @property
    def index_dtype(self) -> torch.dtype:
        """The dtype of the internal source ids: int32 where they fit."""
        return id_dtype(self.num_sources)

    @property
    def num_destinations(self) -> int:
        """The number of rows of the structure."""
        return self.tiers.rows

    @property
    def view(self) -> _C.CscView:
        """The struct that kernels get by value."""
        if self._view is None:
            bases, sizes = self._bases("sharded"), self._sizes("sharded")
            self._view = self._make_view(self.partitions.read_addresses(self.rank, bases, sizes))
        return self._view

    def write_views(self) -> list[_C.CscView]:
        """Returns the views for writing. Together they contain all copies of all shards that this
        rank's device reaches; :meth:`distant_views` has the others.
        """
        bases, sizes = self._bases("sharded"), self._sizes("sharded")
        return [self._make_view(s) for s in self.partitions.write_addresses(bases, sizes)]

    def distant_views(self) -> Iterator[tuple[torch.device, _C.CscView]]:
        """Yields each GPU that this rank's GPU does not reach, with a view of its copies for
        kernels that write there. It has no order, and leaves out lists of other GPUs and of the
        host.
        """
        sizes = self._sizes("sharded")
        for rank in distant_ranks(self.regions):
            device, bases = open_distant(self.regions, rank)
            shards = self.partitions.held_addresses(rank, bases.get("sharded"), sizes)
            replica = self.layouts["replicated"][rank].addresses(bases.get("replicated", 0))
            yield device, self._view_of([replica], 0, shards)

    def positions_view(self) -> _C.CscView:
        """Returns a view in which the id of an edge is its position in the user's CSC."""
        bases, sizes = self._bases("sharded"), self._sizes("sharded")
        shards = self.partitions.read_addresses(self.rank, bases, sizes)
        return self._make_view(shards, _C.TableView())

    def _make_view(self, shards: list[int], edge_ids: _C.TableView | None = None) -> _C.CscView:
        if edge_ids is None:
            edge_ids = _C.TableView() if self.edge_ids is None else self.edge_ids.view
        replicas = [
            layout.addresses(base)
            for layout, base in zip(
                self.layouts["replicated"], self._bases("replicated"), strict=True
            )
            if base is not None
        ]
        own = sum(base is not None for base in self._bases("replicated")[: self.rank])
        return self._view_of(
            replicas,
            own,
            shards,
            host=self._addresses("host", self._bases("host"))[0],
            disk=self._addresses("disk", self._bases("disk"))[0],
            edge_ids=edge_ids,
            order=id_map_view(self.order),
        )

    def _view_of(
        self,
        replicas: list[PartAddresses],
        own: int,
        shards: list[int],
        *,
        host: PartAddresses = _NOWHERE,
        disk: PartAddresses = _NOWHERE,
        edge_ids: _C.TableView | None = None,
        order: _C.IdMapView | None = None,
    ) -> _C.CscView:
        return _C.CscView(
            replicated=self.tiers.replicated,
            sharded=self.tiers.sharded,
            rows=self.tiers.rows,
            num_edges=self.num_edges,
            index_bytes=self.index_dtype.itemsize,
            rank=own,
            replicas=replicas,
            shards=self._addresses("sharded", shards),
            host=host,
            edge_ids=edge_ids or _C.TableView(),
            rows_on_disk=self.tiers.disk,
            disk=disk,
            order=order or _C.IdMapView(),
            leases=leases_of(self.regions),
        )

    def set_edge_ids(self, edge_ids: Table) -> None:
        """Sets the edge ids; their rows may be written later."""
        self.edge_ids = edge_ids
        # The view that wrote the lists has no edge ids.
        self._view = None

    def _bases(self, tier: str) -> list[int | None]:
        return self.regions[tier].reached if tier in self.regions else [0] * self.world_size

    def _sizes(self, tier: str) -> list[int]:
        return [layout.num_bytes for layout in self.layouts[tier]]

    def _addresses(self, tier: str, bases: Sequence[int | None]) -> list[PartAddresses]:
        return [
            layout.addresses(base or 0)
            for layout, base in zip(self.layouts[tier], bases, strict=True)
        ]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_view": None}

    def close(self) -> None:
        """Frees the structure. Collective if the ranks created it together."""
        self._view = None
        why = "this store has been closed"
        regions = (partial(region.close, why) for region in self.regions.values())
        tables = (table.close for table in (self.edge_ids, self.order) if table is not None)
        close_all((*regions, *tables))


def _write_indptr(indptr: Tensor, degrees: Tensor) -> None:
    indptr[0] = 0
    indptr[1:].copy_(degrees.cumsum(0))

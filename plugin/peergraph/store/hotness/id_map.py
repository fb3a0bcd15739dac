"""The renumbering by hotness: maps between users' ids and internal ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.region.closing import close_all
from peergraph.memory.table.id_list import check_distinct


def id_dtype(num_ids: int) -> torch.dtype:
    """Returns the narrowest of int32 and int64 that holds ids below `num_ids`."""
    return torch.int32 if num_ids <= torch.iinfo(torch.int32).max else torch.int64


def hottest_first(hotness: Tensor, device: torch.device) -> Tensor:
    """Returns the ids in descending order of hotness, then by id: [num_nodes] int64 on the CPU.

    Args:
        device: the device that sorts.
    """
    return torch.argsort(hotness.to(device), descending=True, stable=True).cpu()


@dataclass
class IdMap:
    """The renumbering of one node type; without renumbering both tables are None.

    Args:
        to_internal: [num_nodes] user id -> internal id, all rows in this rank's memory.
        to_user: [num_nodes] internal id -> user id.
    """

    to_internal: Table | None = None
    to_user: Table | None = None

    @classmethod
    def from_order(cls, order: Tensor, group: Group) -> IdMap:
        """Makes the maps of an order. Collective.

        Args:
            order: [num_nodes] internal id -> user id on the CPU, the same on every rank.

        Raises:
            IndexError, ValueError: the order is not a permutation; the error names the first wrong
                id.
        """
        check_distinct("order", order, order.numel(), "nodes")
        inverse = torch.empty_like(order).scatter_(
            0, order, torch.arange(order.numel(), device="cpu")
        )
        return cls(replicated_ids(inverse, group), replicated_ids(order, group))

    @property
    def internal_view(self) -> _C.IdMapView:
        """`to_internal` as the compiled module takes it."""
        return map_view(self.to_internal)

    @property
    def user_view(self) -> _C.IdMapView:
        """`to_user` as the compiled module takes it."""
        return map_view(self.to_user)

    def close(self) -> None:
        """Frees the maps. Collective if the ranks made them together."""
        tables = (self.to_internal, self.to_user)
        close_all(table.close for table in tables if table is not None)


def replicated_ids(ids: Tensor, group: Group) -> Table:
    """Makes a table of ids with all rows in this rank's memory, or without a GPU in the
    machine's.
    """
    tiers = Tiers.all_replicated if group.device.type == "cuda" else Tiers.all_host
    table = Table.create((ids.numel(),), id_dtype(ids.numel()), tiers(ids.numel()), group)
    if table.rows and (group.rank == 0 or group.device.type == "cuda"):
        table.as_tensor().copy_(ids)
    return table


def map_view(table: Table | None) -> _C.IdMapView:
    """Returns a table of ids as the compiled module takes it; None means the identity."""
    if table is None or table.rows == 0:
        return _C.IdMapView()
    return _C.IdMapView(table.as_tensor(), table.leases)

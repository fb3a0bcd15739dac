"""The renumbering by hotness: maps between users' ids and internal ids."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.region.closing import close_all
from peergraph.memory.table.id_list import check_distinct


def id_dtype(num_ids: int) -> torch.dtype:
    """Returns the narrowest of int32 and int64 that holds ids below `num_ids`."""
    return torch.int32 if num_ids <= torch.iinfo(torch.int32).max else torch.int64


# The user ids of rows, for tables in the order of `to_internal`.
_inverses: WeakKeyDictionary[Table, Table] = WeakKeyDictionary()


def inverse_order(order: Table | Tensor) -> Tensor:
    """Returns the user id of each row of a table with an order: [rows], on the order's device.

    Args:
        order: the internal row of each user id, as :meth:`Table.create` takes it. The inverse of an
            :class:`IdMap` is there already; any other one is computed in each call.
    """
    if isinstance(order, Table):
        inverse = _inverses.get(order)
        if inverse is not None:
            return inverse.as_tensor()
        order = order.as_tensor()
    places = torch.arange(order.numel(), dtype=order.dtype, device=order.device)
    return torch.empty_like(order).scatter_(0, order.long(), places)


def hottest_first(hotness: Tensor, device: torch.device) -> Tensor:
    """Returns the ids in descending order of hotness, then by id: [num_nodes] int64 on the CPU.

    Args:
        device: the device that sorts.
    """
    return torch.argsort(hotness.to(device), descending=True, stable=True).cpu()


@dataclass
class IdMap:
    """The renumbering of one node type. Without renumbering, both tables are None.

    Args:
        to_internal: [num_nodes] the internal id of each user id, all rows in this rank's memory.
        to_user: [num_nodes] the user id of each internal id.
    """

    to_internal: Table | None = None
    to_user: Table | None = None

    def __post_init__(self) -> None:
        if self.to_internal is not None and self.to_user is not None:
            _inverses[self.to_internal] = self.to_user

    @classmethod
    def from_order(cls, order: Tensor, group: Group) -> IdMap:
        """Makes the maps of an order. Collective.

        Args:
            order: [num_nodes] the user id of each internal id, on the CPU, the same on every rank.

        Raises:
            IndexError, ValueError: the order is not a permutation; the error names the first wrong
                id.
        """
        near = order.to(group.device)
        check_distinct("order", near, near.numel(), "nodes")
        ids = torch.arange(near.numel(), device=near.device)
        inverse = torch.empty_like(near).scatter_(0, near, ids)
        return cls(replicated_ids(inverse, group), replicated_ids(near, group))

    @property
    def internal_view(self) -> _C.IdMapView:
        """The view of `to_internal` that kernels take."""
        return id_map_view(self.to_internal)

    @property
    def user_view(self) -> _C.IdMapView:
        """The view of `to_user` that kernels take."""
        return id_map_view(self.to_user)

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


def id_map_view(table: Table | None) -> _C.IdMapView:
    """Returns the view of a table of ids that kernels take. With None or an empty table, the view
    returns each id unchanged.
    """
    if table is None or table.rows == 0:
        return _C.IdMapView()
    return _C.IdMapView(table.as_tensor(), table.leases)

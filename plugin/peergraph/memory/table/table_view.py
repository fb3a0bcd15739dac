"""Tables as the compiled module sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

import peergraph._C as _C
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.tiers import Tiers


def table_view(
    tiers: Tiers,
    row_bytes: int,
    group: Group,
    regions: Mapping[str, SharedRegion],
    shards: Sequence[int],
    order: torch.Tensor | None,
    *,
    with_host: bool = True,
    order_leases: Sequence[_C.Lease] = (),
) -> _C.TableView:
    """A whole table, as this rank's device reads it: a GPU does not read the rows on disk.

    Args:
        with_host: whether it reads those on the host.
        regions: by tier, those that are not empty.
        shards: addresses.
        order: user id -> row.
        order_leases: of the memory of `order`.
    """
    replicas = regions.get("replicated")
    return _C.TableView(
        replicated=tiers.replicated,
        sharded=tiers.sharded,
        rows=tiers.rows,
        row_bytes=row_bytes,
        rank=group.rank,
        replicas=replicas.addresses if replicas else [0] * group.world_size,
        shards=shards,
        host=_address(regions, "host") if with_host else 0,
        order=0 if order is None else order.data_ptr(),
        order_bytes=0 if order is None else order.dtype.itemsize,
        rows_on_disk=tiers.disk,
        disk=_address(regions, "disk") if group.device.type == "cpu" else 0,
        leases=[*leases_of(regions), *order_leases],
    )


def cpu_view(
    tiers: Tiers, row_bytes: int, regions: Mapping[str, SharedRegion], *, with_host: bool
) -> _C.TableView:
    """The rows on disk, behind those on the host or without them, as the CPU reads them."""
    return _C.TableView(
        replicated=0,
        sharded=0,
        rows=tiers.disk + (tiers.host if with_host else 0),
        row_bytes=row_bytes,
        rank=0,
        replicas=[0],
        shards=[0],
        host=_address(regions, "host") if with_host else 0,
        rows_on_disk=tiers.disk,
        disk=_address(regions, "disk"),
        leases=leases_of(regions),
    )


def dense_view(address: int, rows: int, row_bytes: int) -> _C.TableView:
    """Rows that lie one after the other from an address on, in memory of one processor."""
    return _C.TableView(
        replicated=rows,
        sharded=0,
        rows=rows,
        row_bytes=row_bytes,
        rank=0,
        replicas=[address],
        shards=[0],
        host=0,
    )


def leases_of(regions: Mapping[str, SharedRegion]) -> list[_C.Lease]:
    """Of all regions."""
    return [region.lease for region in regions.values()]


def _address(regions: Mapping[str, SharedRegion], tier: str) -> int:
    return regions[tier].addresses[0] if tier in regions else 0

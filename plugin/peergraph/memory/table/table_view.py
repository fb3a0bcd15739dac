"""Makes the views of tables that the compiled module takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

import peergraph._C as _C
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.tier_sizes import Split, rows_per_block
from peergraph.memory.table.tiers import Tiers


def table_view(
    tiers: Tiers,
    row_bytes: int,
    group: Group,
    regions: Mapping[str, SharedRegion],
    shards: Sequence[int],
    order: torch.Tensor | None,
    *,
    split: Split = "round_robin",
    with_host: bool = True,
    order_leases: Sequence[_C.Lease] = (),
) -> _C.TableView:
    """Returns the view of a table for this rank's device. A GPU does not read rows on disk.

    Args:
        tiers: rows per tier.
        row_bytes: the bytes of a row.
        group: the ranks.
        regions: the memory of each tier that has rows.
        shards: the address of each shard.
        order: [rows] the internal row of each user id; None: they are equal.
        split: how the sharded rows are split.
        with_host: whether the device reads the rows in host memory.
        order_leases: the leases of the memory of `order`.
    """
    replicas, own = replicas_in_reach(regions, group)
    return _C.TableView(
        replicated=tiers.replicated,
        sharded=tiers.sharded,
        rows=tiers.rows,
        row_bytes=row_bytes,
        rank=own,
        replicas=replicas,
        shards=shards,
        host=_address(regions, "host") if with_host else 0,
        order=order,
        rows_on_disk=tiers.disk,
        disk=_address(regions, "disk") if group.device.type == "cpu" else 0,
        block_rows=rows_per_block(tiers.sharded, group.world_size, split),
        leases=[*leases_of(regions), *order_leases],
    )


def cpu_view(
    tiers: Tiers, row_bytes: int, regions: Mapping[str, SharedRegion], *, with_host: bool
) -> _C.TableView:
    """Returns a view of the rows on disk for the CPU. With `with_host`, the rows in host memory
    come first.
    """
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


def dense_view(memory: torch.Tensor, rows: int, row_bytes: int) -> _C.TableView:
    """Returns a view of contiguous rows in one device's memory, which the caller keeps."""
    return _C.TableView(
        replicated=rows,
        sharded=0,
        rows=rows,
        row_bytes=row_bytes,
        rank=0,
        replicas=[memory.data_ptr()],
        shards=[0],
        host=0,
    )


def replicas_in_reach(regions: Mapping[str, SharedRegion], group: Group) -> tuple[list[int], int]:
    """Returns the addresses of the replicas that this rank reaches, and the place of its own."""
    if "replicated" not in regions:
        return [0] * group.world_size, group.rank
    bases = regions["replicated"].reached
    own = sum(base is not None for base in bases[: group.rank])
    return [base for base in bases if base is not None], own


def leases_of(regions: Mapping[str, SharedRegion]) -> list[_C.Lease]:
    """Returns the leases of all regions."""
    return [region.lease for region in regions.values()]


def _address(regions: Mapping[str, SharedRegion], tier: str) -> int:
    return regions[tier].addresses[0] if tier in regions else 0

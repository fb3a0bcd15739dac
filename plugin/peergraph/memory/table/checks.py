"""Checks of the arguments of Table.create."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch

import peergraph._C as _C
from peergraph.memory.group.group import Group
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.table.id_list import check_distinct
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.memory.table.tier_sizes import check_split
from peergraph.memory.table.tiers import Tiers
from peergraph.number_arguments import check_number


def check_table(
    shape: Sequence[int],
    dtype: torch.dtype,
    tiers: Tiers,
    group: Group,
    order: torch.Tensor | None,
    partitions: Partitions | None,
    split: str,
    spill: str | PathLike[str] | None,
    check_values: bool,
) -> tuple[object, ...]:
    """Checks the arguments of Table.create. Returns the values that must be equal on all ranks.

    Args:
        check_values: whether to check the values of `order`, too.
    """
    checked = _check_shape(shape)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    if group.world_size > _C.max_shards:
        raise ValueError(f"a table is split over at most {_C.max_shards} ranks")
    if tiers.rows != checked[0]:
        raise ValueError(f"{tiers} do not add up to the table's {checked[0]} rows")
    if order is not None:
        _check_order(order, checked[0], group)
        if check_values:
            check_distinct("order", order, checked[0], "rows")
    check_partitions(partitions, group)
    check_spill(spill, tiers)
    return checked, dtype, tiers, partitions, check_split(split)


def check_partitions(partitions: Partitions | None, group: Group) -> None:
    """Raises ValueError if the partitions are made for another number of ranks."""
    if partitions is not None and partitions.num_gpus != group.world_size:
        raise ValueError(
            f"partitions are for {partitions.num_gpus} GPUs, the group has {group.world_size} ranks"
        )


def check_access(partitions: Partitions | None, tiers: Tiers, access: PeerAccess) -> None:
    """Raises RuntimeError if a rank reads sharded rows from a rank whose memory it cannot map."""
    if not tiers.sharded or access.is_full:
        return
    placed = partitions or one_partition_per_gpu(len(access.devices))
    for rank, holders in enumerate(placed.source):
        for holder in holders:
            access.check(holder, rank)


def check_spill(spill: str | PathLike[str] | None, tiers: Tiers) -> None:
    """Raises ValueError if rows are on disk and `spill` is not a folder."""
    if spill is None and tiers.disk:
        raise ValueError(f"spill must be a folder for the rows on disk of {tiers}, got None")
    if spill is not None and not Path(spill).is_dir():
        raise ValueError(f"spill must be a folder, got {str(spill)!r}")


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    for size in shape:
        check_number("each size of shape", size, 0, 2**63 - 1)
    if not shape:
        raise ValueError("shape must have at least one dimension, the rows")
    return tuple(int(size) for size in shape)


def _check_order(order: torch.Tensor, rows: int, group: Group) -> None:
    if order.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"order must be int32 or int64, got {order.dtype}")
    if tuple(order.shape) != (rows,) or not order.is_contiguous():
        raise ValueError(f"order must be contiguous, of shape ({rows},), got {tuple(order.shape)}")
    if order.device != group.device:
        raise ValueError(f"order must be on {group.device}, got {order.device}")

"""Computes the rows and bytes of a table on each rank, by tier."""

from __future__ import annotations

from typing import Literal, get_args

from peergraph.memory.group.group import Group
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.memory.table.tiers import Tiers

Split = Literal["round_robin", "blocks"]
"""The ways to split the sharded rows over W ranks.

"round_robin": sharded row j is on rank j % W, so that every rank has rows of every hotness.
"blocks": each rank has one contiguous range of ceil(rows / W) rows, the last ranks fewer or none.
"""


def check_split(split: str) -> Split:
    """Returns the argument `split` of a table. Raises ValueError for an unknown value."""
    if split not in get_args(Split):
        names = " or ".join(f'"{name}"' for name in get_args(Split))
        raise ValueError(f"split must be {names}, got {split!r}")
    return split  # type: ignore[return-value]


def rows_per_block(sharded: int, world_size: int, split: Split) -> int:
    """Returns the rows of a rank's block; 0 for "round_robin". The last blocks may be smaller."""
    return 0 if split == "round_robin" else max(1, -(-sharded // world_size))


def shard_rows(sharded: int, world_size: int, split: Split) -> list[range]:
    """Returns the rows of each rank's shard, counted from the first sharded row."""
    if split == "round_robin":
        return [range(rank, sharded, world_size) for rank in range(world_size)]
    block = rows_per_block(sharded, world_size, split)
    bounds = [min(rank * block, sharded) for rank in range(world_size + 1)]
    return [range(bounds[rank], bounds[rank + 1]) for rank in range(world_size)]


def tier_bytes(
    tiers: Tiers, row_bytes: int, world_size: int, split: Split = "round_robin"
) -> dict[str, list[int]]:
    """Returns the bytes of each tier: for each rank, and on the sharded tier for each shard."""
    ranks = range(world_size)
    shards = shard_rows(tiers.sharded, world_size, split)
    return {
        "replicated": [row_bytes * tiers.replicated] * world_size,
        "sharded": [row_bytes * len(rows) for rows in shards],
        "host": [row_bytes * tiers.host if rank == 0 else 0 for rank in ranks],
        "disk": [row_bytes * tiers.disk if rank == 0 else 0 for rank in ranks],
    }


def local_bytes(
    tiers: Tiers, row_bytes: int, group: Group, partitions: Partitions | None, split: Split
) -> list[tuple[str, int, str | None]]:
    """Returns each tier's name, this rank's bytes, and its device; None: the group's device."""
    placed = partitions or one_partition_per_gpu(group.world_size)
    sizes = tier_bytes(tiers, row_bytes, group.world_size, split)
    return [
        ("replicated", sizes["replicated"][group.rank], None),
        ("sharded", placed.held_bytes(group.rank, sizes["sharded"]), None),
        ("host", sizes["host"][group.rank], "cpu"),
        ("disk", sizes["disk"][group.rank], "cpu"),
    ]

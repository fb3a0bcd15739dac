"""How many bytes of a table lie where."""

from __future__ import annotations

from peergraph.memory.group.group import Group
from peergraph.memory.table.partitions import Partitions, everyone_reaches_all
from peergraph.memory.table.tiers import Tiers


def shard_bytes(tiers: Tiers, row_bytes: int, group: Group) -> list[int]:
    """Of each shard."""
    return tier_bytes(tiers, row_bytes, group.world_size)["sharded"]


def tier_bytes(tiers: Tiers, row_bytes: int, world_size: int) -> dict[str, list[int]]:
    """By tier: of replicas, the host and the disk by rank, of the sharded tier by shard."""
    ranks = range(world_size)
    return {
        "replicated": [row_bytes * tiers.replicated] * world_size,
        "sharded": [row_bytes * len(range(r, tiers.sharded, world_size)) for r in ranks],
        "host": [row_bytes * tiers.host if rank == 0 else 0 for rank in ranks],
        "disk": [row_bytes * tiers.disk if rank == 0 else 0 for rank in ranks],
    }


def local_bytes(
    tiers: Tiers, row_bytes: int, group: Group, partitions: Partitions | None
) -> list[tuple[str, int, str | None]]:
    """Of each tier: its name, this rank's bytes, and where they lie (None: the group's device)."""
    placed = partitions or everyone_reaches_all(group.world_size)
    dealt = placed.held_bytes(group.rank, shard_bytes(tiers, row_bytes, group))
    return [
        ("replicated", tiers.replicated * row_bytes, None),
        ("sharded", dealt, None),
        ("host", tiers.host * row_bytes if group.rank == 0 else 0, "cpu"),
        ("disk", tiers.disk * row_bytes if group.rank == 0 else 0, "cpu"),
    ]

"""Computes the memory of placed items, to the byte, and checks that there is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.memory import Group
from peergraph.memory.device.machine_cache import identity
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory, granted_bytes
from peergraph.memory.table.partitions import Partitions
from peergraph.printing import format_bytes
from peergraph.store.placement.plan import Item, Plan


@dataclass(frozen=True)
class Allocation:
    """The allocations of one item, in bytes.

    Args:
        kind, name: the kind and the name of the item.
        replicated: the bytes of replicated rows of each rank.
        sharded: the bytes of sharded rows of each rank, with copies of other ranks' shards.
        host, disk: the bytes in host memory and on disk, for all ranks together.
        pieces: the number of equal allocations that make up each of these numbers.
    """

    kind: str
    name: str
    replicated: tuple[int, ...]
    sharded: tuple[int, ...]
    host: int
    pieces: int = 1
    disk: int = 0

    @classmethod
    def of_parts(
        cls,
        item: tuple[str, str],
        parts: Mapping[str, Sequence[int]],
        partitions: Partitions,
        pieces: int = 1,
    ) -> Allocation:
        """Makes the allocation from bytes by tier: by rank, on the sharded tier by shard."""
        world = range(partitions.num_gpus)
        sharded = tuple(partitions.held_bytes(rank, parts["sharded"]) for rank in world)
        host, disk = (sum(parts.get(tier, ())) for tier in ("host", "disk"))
        return cls(*item, tuple(parts["replicated"]), sharded, host, pieces, disk)

    def of_rank(self, rank: int) -> list[int]:
        """Returns the sizes of a rank's allocations on its device, without the host tier."""
        both = (self.replicated[rank], self.sharded[rank])
        return [size // self.pieces for size in both for _ in range(self.pieces)]


def planned_allocations(items: Sequence[Item], plan: Plan) -> list[Allocation]:
    """Returns the allocations of a plan's items."""
    placed = plan.partitions_in_use
    return [
        Allocation.of_parts(
            (item.kind, item.name),
            item.parts(plan.tiers(item.kind, item.name), plan.world_size),
            placed,
            2 if item.kind == "ids" else 1,
        )
        for item in items
    ]


def fullest_rank(allocations: Sequence[Allocation], granule: int) -> tuple[int, int]:
    """Returns the rank with the most bytes on its device, and these bytes. Each allocation is
    rounded up to a multiple of `granule`.
    """
    world = range(len(allocations[0].replicated)) if allocations else range(1)
    totals = [
        sum(-(-size // granule) * granule for e in allocations for size in e.of_rank(rank))
        for rank in world
    ]
    return max(enumerate(totals), key=lambda pair: pair[1])


def check_room(allocations: Sequence[Allocation], group: Group) -> None:
    """Checks that GPUs and host have enough memory for the allocations. Collective.

    Raises:
        MemoryError: a GPU or the host has too little memory. Every rank raises this.
    """
    on_gpu = group.device.type == "cuda"
    mine = (
        identity(group.device),
        str(group.device),
        free_gpu_memory(group.device) if on_gpu else 0,
        free_host_memory(),
    )
    everyone = group.all_gather(mine)
    on_host = host_bytes(allocations, group)
    by_gpu: dict[str, int] = {}
    for rank, (gpu, device, free, _) in enumerate(everyone):
        regions = [size for e in allocations for size in e.of_rank(rank)]
        if not on_gpu:
            continue
        # Ranks may share a GPU.
        by_gpu[gpu] = by_gpu.get(gpu, 0) + granted_bytes(regions, "cuda")
        if by_gpu[gpu] > free:
            raise MemoryError(
                f"rank {rank} needs {format_exact_bytes(by_gpu[gpu])} of {device}, "
                f"{format_exact_bytes(free)} are free"
            )
    left = min(host for *_, host in everyone)
    if on_host > left:
        raise MemoryError(
            f"the store needs {format_exact_bytes(on_host)} of the host's memory, "
            f"{format_exact_bytes(left)} are available (spill= names a folder for the coldest "
            "rows; where memory grows on demand, say how many bytes in PEERGRAPH_HOST_MEMORY)"
        )


def host_bytes(allocations: Sequence[Allocation], group: Group) -> int:
    """Returns the bytes in host memory. Without a GPU, these are all rows except those on disk."""
    num_bytes = granted_bytes((e.host for e in allocations), "cpu")
    if group.device.type == "cuda":
        return num_bytes
    ranks = range(group.world_size)
    return num_bytes + granted_bytes(
        (s for e in allocations for r in ranks for s in e.of_rank(r)), "cpu"
    )


def check_budget(allocations: Sequence[Allocation], budget: int, granule: int, what: str) -> None:
    """Raises ValueError if a rank needs more memory than the budget."""
    rank, num_bytes = fullest_rank(allocations, granule)
    if num_bytes > budget:
        raise ValueError(
            f"memory_budget: {what} needs {format_exact_bytes(num_bytes)} of rank {rank}, "
            f"the budget is {format_exact_bytes(budget)}"
        )


def format_exact_bytes(count: int) -> str:
    """Formats the exact number of bytes; large numbers also in a larger unit."""
    return f"{count} bytes" if count < 10240 else f"{count} bytes ({format_bytes(count)})"

"""The memory that a store has allocated, by table, tier and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from peergraph.memory.region.free_memory import granted_bytes
from peergraph.printing import format_bytes, table_lines
from peergraph.store.placement.allocation import Allocation


class Scratch(Protocol):
    """Memory that a sampler keeps in addition to the store."""

    @property
    def num_bytes(self) -> int:
        """The current number of bytes."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes by rank and tier; ``print(store.memory())`` shows them as a table.

    Args:
        allocations: the allocations of id maps, structures and tables.
        device_type: the device of replicated and sharded rows, "cuda" or "cpu".
        rank: the rank of this process.
        scratch: names and bytes of buffers that samplers keep on this rank's device, in torch's
            allocator.
    """

    allocations: tuple[Allocation, ...]
    device_type: str
    rank: int
    scratch: tuple[tuple[str, int], ...] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.allocations[0].replicated) if self.allocations else 1

    def tier(self, name: str, rank: int | None = None) -> int:
        """Returns the requested bytes of the host or the disk, or of another tier on a rank.

        Args:
            name: "replicated", "sharded", "host" or "disk".
            rank: None: this rank.

        Raises:
            ValueError: the name is another one.
        """
        if name not in ("replicated", "sharded", "host", "disk"):
            raise ValueError(
                f"tier must be 'replicated', 'sharded', 'host' or 'disk', got {name!r}"
            )
        if name in ("host", "disk"):
            return sum(getattr(e, name) for e in self.allocations)
        on = self.rank if rank is None else rank
        return sum(getattr(e, name)[on] for e in self.allocations)

    def device_bytes(self, rank: int | None = None) -> int:
        """Returns the bytes that a rank (None: this rank) takes on its device, without
        :attr:`scratch`. They are rounded up to blocks of 2 MiB on a GPU, to pages on the CPU.
        """
        on = self.rank if rank is None else rank
        regions = (size for e in self.allocations for size in e.of_rank(on))
        return granted_bytes(regions, self.device_type)

    def host_bytes(self) -> int:
        """Returns the bytes of the host tier of all ranks together, rounded up to pages."""
        return granted_bytes((e.host for e in self.allocations), "cpu")

    def scratch_bytes(self) -> int:
        """Returns the bytes that samplers keep on this rank's device."""
        return sum(count for _, count in self.scratch)

    def __str__(self) -> str:
        where = "on each GPU" if self.device_type == "cuda" else "in each rank's memory"
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        lines = [f"memory of a store over {ranks}:", *table_lines(list(self._items()), 2)]
        lines += [f"  {where}:", *table_lines(list(self._ranks()), 1)]
        lines.append(f"  on the host, once for all: {format_bytes(self.host_bytes())}")
        if on_disk := self.tier("disk"):
            lines.append(f"  on disk, once for all: {format_bytes(on_disk)}")
        for name, count in self.scratch:
            lines.append(f"  in addition on rank {self.rank}: {format_bytes(count)} for {name}")
        return "\n".join(lines)

    def _items(self) -> Iterator[tuple[str, ...]]:
        spills = self.tier("disk") > 0
        yield ("", "", "each replica", "all shards", "host", *(["disk"] if spills else []))
        for e in self.allocations:
            sizes = [max(e.replicated, default=0), sum(e.sharded), e.host]
            sizes += [e.disk] if spills else []
            yield (e.kind, e.name, *(format_bytes(size) if size else "-" for size in sizes))

    def _ranks(self) -> Iterator[tuple[str, ...]]:
        yield ("", "replicated", "sharded", "together", "as it is handed out")
        for rank in range(self.world_size):
            replicated, sharded = self.tier("replicated", rank), self.tier("sharded", rank)
            sizes = (replicated, sharded, replicated + sharded, self.device_bytes(rank))
            yield (f"rank {rank}", *map(format_bytes, sizes))

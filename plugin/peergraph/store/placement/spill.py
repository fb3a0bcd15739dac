"""Spills the coldest rows of the widest tables to disk if host memory is full."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from peergraph.memory import Group, Tiers
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.number_arguments import check_number
from peergraph.store.placement.allocation import (
    Allocation,
    format_exact_bytes,
    host_bytes,
    planned_allocations,
)
from peergraph.store.placement.plan import Item, Placement, Plan, largest

# GPUs cannot read from disk, so with GPUs structure and edge ids stay in memory.
_TABLES = ("node table", "edge table")
_WITHOUT_GPU = (*_TABLES, "edge ids", "structure")
_PAGE = 4096


@dataclass(frozen=True)
class Spill:
    """The user's options for rows that do not fit into host memory.

    Args:
        folder: the folder for the files; None: no rows are spilled.
        host_budget: the bytes of host memory that the store may take; None: all free bytes.
    """

    folder: str | PathLike[str] | None = None
    host_budget: int | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ValueError(f"spill must be a folder, got {str(self.folder)!r}")
        check_number("host_budget", self.host_budget, 0)

    def apply(
        self, plan: Plan, items: Sequence[Item], movable: bool, group: Group
    ) -> tuple[Plan, list[Allocation]]:
        """Moves rows that do not fit into host memory to disk. Collective.

        Args:
            plan: the plan.
            items: all items of the plan.
            movable: whether rows may be moved; otherwise the plan is only checked.
            group: the ranks.

        Returns:
            The plan with the moved rows, and its allocations.

        Raises:
            MemoryError: with a folder or a budget, the store still needs more host memory than it
                may take.
            OSError: the folder has too little free space.
        """
        room = self.room(group)
        if movable and self.folder is not None:
            for item in _widest_first(items, group.device.type == "cuda"):
                excess = host_bytes(planned_allocations(items, plan), group) - room
                if excess > 0:
                    plan = _moved(plan, item, excess)
        allocations = planned_allocations(items, plan)
        num_bytes = host_bytes(allocations, group)
        if num_bytes > room and (self.folder is not None or self.host_budget is not None):
            hint = "" if self.folder is not None else "; spill= names a folder for the coldest rows"
            raise MemoryError(
                f"the store needs {format_exact_bytes(num_bytes)} of the host's memory, and may "
                f"take {format_exact_bytes(room)}{hint}"
            )
        self._check_folder(sum(e.disk for e in allocations))
        return plan, allocations

    def room(self, group: Group) -> int:
        """Returns the bytes of host memory that the store may take. Collective."""
        budget = free_host_memory() if self.host_budget is None else self.host_budget
        return int(min(group.all_gather(budget)))

    def _check_folder(self, num_bytes: int) -> None:
        if self.folder is None or not num_bytes:
            return  # If rows are on disk and there is no folder, Table.create raises.
        free = shutil.disk_usage(self.folder).free
        if num_bytes > free:
            raise OSError(
                errno.ENOSPC,
                f"spill: the plan puts {format_exact_bytes(num_bytes)} on disk, "
                f"{format_exact_bytes(free)} are free in",
                str(self.folder),
            )


def _widest_first(items: Sequence[Item], on_gpu: bool) -> list[Item]:
    """Returns the items that may be spilled. A wide row saves more memory per read of the disk."""
    kinds = _TABLES if on_gpu else _WITHOUT_GPU
    spilled = [item for item in items if item.kind in kinds and item.rows]
    # Structure comes last, regardless of its width, because every sample reads it.
    turn = {**dict.fromkeys(_TABLES, 0), "edge ids": 1, "structure": 2}
    return sorted(spilled, key=lambda item: (turn[item.kind], -item.num_bytes / item.rows))


def _moved(plan: Plan, item: Item, excess: int) -> Plan:
    """Returns the plan with the item's last rows moved from host memory to disk: as many rows as
    have `excess` bytes, or all of them.
    """
    tiers = plan.tiers(item.kind, item.name)
    on_gpus = tiers.replicated + tiers.sharded
    least = excess + _PAGE  # Memory is counted in pages.

    def frees_enough(on_host: int) -> bool:
        return item.bytes_of(item.rows) - item.bytes_of(on_gpus + on_host) >= least

    on_host = largest(tiers.host, frees_enough)
    changed = replace(tiers, host=on_host, disk=tiers.disk + tiers.host - on_host)
    return _with_tiers(plan, item, changed)


def _with_tiers(plan: Plan, item: Item, tiers: Tiers) -> Plan:
    key = (item.kind, item.name)
    placements = tuple(
        Placement.of(item, tiers) if (p.kind, p.name) == key else p for p in plan.placements
    )
    # The speed of the disk is not known, so there is no prediction.
    predictions = tuple(p for p in plan.predictions if (p.kind, p.name) != key)
    return replace(plan, placements=placements, predictions=predictions)

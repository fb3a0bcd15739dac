"""The memory that a rank has for the rows of an offloaded graph, once its structure is made."""

from __future__ import annotations

import gc
from os import PathLike

import torch

from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.memory import Group

# Items of a plan that are made after the row stores.
_MADE_LATER = ("transposes", "row lists", "chunk")


def make_allocator(
    group: Group,
    plan: OffloadPlan,
    folder: str | PathLike[str] | None = None,
    hidden_dtype: torch.dtype | None = None,
) -> RowAllocator:
    """Returns the allocator of a rank's rows, within the plan's budget. Not collective.

    On a GPU, the room is the budget less what torch has allocated there, and less what the plan
    counts for what is made later: transposes, lists of rows, a chunk's rows. On CPU ranks it is the
    plan's. Rows that are read in order take what rows of sources leave.

    Args:
        group: the ranks.
        plan: of the graph, whose structure is on the device already.
        folder: for files with rows for which the host has no room; None: no files.
        hidden_dtype: in which rows that passes compute are stored; None: in their own.
    """
    room = plan.device_room
    if group.device.type == "cuda":
        gc.collect()  # rows of graphs that are not used any more
        taken = torch.cuda.memory_allocated(group.device)
        later = sum(i.num_bytes[group.rank] for i in plan.items if i.name in _MADE_LATER)
        room = max(0, plan.memory_budget - taken - later)
    return RowAllocator(
        group,
        room,
        plan.host_room,
        folder=folder,
        file_bytes=plan.file_room,
        sequential_device_bytes=max(0, room - plan.source_bytes),
        narrow_dtype=hidden_dtype,
    )

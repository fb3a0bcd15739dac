"""The memory that a rank has for the rows of an offloaded graph, once its structure is made."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from os import PathLike

import torch

from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.plan.offload_cost import ChunkSize
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.memory import Group
from peergraph.memory.device.expandable_segments import use_expandable_segments
from peergraph.printing import format_bytes

_logger = logging.getLogger(__name__)
# Items of a plan that are made before the row stores.
_MADE_BEFORE = ("structure", "numbering")


def make_allocator(
    group: Group,
    plan: OffloadPlan,
    largest_chunk: Callable[[bool], ChunkSize] | None = None,
    *,
    folder: str | PathLike[str] | None = None,
    hidden_dtype: torch.dtype | None = None,
) -> RowAllocator:
    """Returns the allocator of a rank's rows, within the plan's budget. Not collective.

    On a GPU, the room is the budget less what torch has allocated there, and less what the plan
    counts for what is made later: transposes, lists of rows, labelled rows, a chunk's rows. On CPU
    ranks it is the plan's. Where the largest chunk takes more than planned, as with a node of very
    many edges, the room is smaller. Rows that are read in order take what rows of sources leave.

    Args:
        group: the ranks.
        plan: of the graph, whose structure is on the device already.
        largest_chunk: counts the rows, edges and, if asked for, sources of the largest chunk;
            None: it is as planned.
        folder: for files with rows for which the host has no room; None: no files.
        hidden_dtype: in which rows that passes compute are stored; None: in their own.
    """
    room = plan.device_room
    if group.device.type == "cuda":
        gc.collect()  # rows of graphs that are not used any more
        torch.cuda.empty_cache()
        use_expandable_segments()  # the budget is for what torch reserves, too
        num_allocated = torch.cuda.memory_allocated(group.device)
        later = sum(i.num_bytes[group.rank] for i in plan.items if i.name not in _MADE_BEFORE)
        room = plan.memory_budget - num_allocated - later
    chunk = None if largest_chunk is None else largest_chunk(plan.needs_source_counts)
    if chunk is not None:
        room -= plan.missing_bytes(chunk, group.rank)
    if room < 0:
        _logger.warning(
            "rank %d may need %s more than its memory_budget of %s: its largest chunk has %d rows, "
            "%d in-edges and %d rows of sources",
            group.rank, format_bytes(-room), format_bytes(plan.memory_budget),
            *((chunk.rows, chunk.edges, chunk.sources) if chunk is not None else (0, 0, 0)),
        )  # fmt: skip
    room = max(0, room)
    return RowAllocator(
        group,
        room,
        plan.host_room,
        folder=folder,
        file_bytes=plan.file_room,
        sequential_device_bytes=max(0, room - plan.source_bytes),
        narrow_dtype=hidden_dtype,
    )

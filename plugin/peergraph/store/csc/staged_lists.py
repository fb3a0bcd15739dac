"""Writes the neighbour lists of a relation whose edges one rank has: every rank a range of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.device.machine_cache import identity
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.memory.region.staging import Column, Range
from peergraph.store.csc.neighbor_lists import write_lists
from peergraph.store.csc.sort.edge_buckets import EdgeBuckets
from peergraph.store.csc.sort.edge_places import EdgeRange
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap, id_dtype
from peergraph.store.input.staged_edges import (
    DESTINATION,
    EDGE_IDS,
    SOURCE,
    StagedEdges,
    raise_changed,
    uses_torch,
)

# The share of the free memory that the lists of a pass take; the most bytes of all ranks' lists in
# host memory.
_GPU_SHARE = 0.4
_MOST_HOST_BYTES = 1 << 30
_LEAST_BYTES = 64 << 20
# The edges that a GPU sorts at a time, and the bytes that it takes for each.
_LEAST_STEP, _MOST_STEP, _STEP_BYTES = 1 << 16, 1 << 22, 128
_NO_LIMIT = 1 << 62  # A pass fits the memory.


def write_staged_lists(
    structure: TieredCsc,
    edge_ids: Table | None,
    edges: StagedEdges,
    destinations: IdMap,
    sources: IdMap,
    moved: Callable[[int], object],
) -> None:
    """Sorts the edges by destination, those of a destination in the order in which they come, and
    writes the lists and the edges' ids. Collective; if a rank fails, every rank raises its error.

    A rank sorts a range of destinations. Edges whose lists do not fit the free memory are read once
    for each of several passes.

    Args:
        structure: the structure to write to.
        edge_ids: the table of the edges' ids by CSC position; None: they are equal.
        edges: the edges.
        destinations, sources: the numbering of the nodes.
        moved: called with the number of edges that this rank has written.

    Raises:
        RuntimeError: the edges are not those that were counted.
    """
    group = edges.staging.group
    zero = torch.zeros(1, dtype=torch.int64, device="cpu")
    indptr = torch.cat([zero, edges.in_degrees.cumsum(0)])
    ids_dtype = None if edge_ids is None else edge_ids.dtype
    edge_bytes = structure.index_dtype.itemsize + (0 if ids_dtype is None else ids_dtype.itemsize)
    room = _room(group)
    step_edges = max(_LEAST_STEP, min(_MOST_STEP, room // _STEP_BYTES))
    for ranges in _passes(indptr, edge_bytes, room, group.world_size):
        first, last = ranges[group.rank]

        def begin(first: int = first, last: int = last) -> EdgeRange | EdgeBuckets:
            own = indptr[first : last + 1] - indptr[first]
            if edges.is_sorted or uses_torch(group.device):
                return EdgeRange(
                    first,
                    own,
                    edges.num_sources,
                    structure.index_dtype,
                    ids_dtype,
                    group.device,
                    step_edges,
                )
            return EdgeBuckets(
                None,
                edges.num_sources,
                last - first,
                int(own[-1]),
                _NO_LIMIT,
                first_destination=first,
                threads=threads_of_rank(group.world_size),
            )

        own = collective_call(group, begin)
        _read(edges, own, [(int(indptr[b]), int(indptr[e])) for b, e in ranges])

        def write(first: int = first, last: int = last, own: EdgeRange | EdgeBuckets = own) -> None:
            pieces = own.sorted_edges(ids_dtype) if isinstance(own, EdgeBuckets) else own.all()
            for piece in pieces:
                stop = first + piece.degrees.numel()
                if not torch.equal(piece.degrees, edges.in_degrees[first:stop]):
                    raise_changed(edges.edge_type)
                at = int(indptr[first])
                lists = indptr[first : stop + 1] - at
                for count in write_lists(
                    structure, first, lists, piece.indices, at, destinations, sources
                ):
                    moved(count)
                if edge_ids is not None and piece.edge_ids is not None:
                    edge_ids.load(piece.edge_ids, at, progress=False)
                first = stop
            if first != last:
                raise_changed(edges.edge_type)

        collective_call(group, write)


def _read(edges: StagedEdges, own: EdgeRange | EdgeBuckets, positions: Sequence[Range]) -> None:
    """Reads the edges of a range of destinations on every rank. Collective.

    Args:
        own: takes this rank's edges.
        positions: by rank, the CSC positions of its edges.
    """
    staging = edges.staging
    if isinstance(own, EdgeRange) and edges.is_sorted:
        names = [SOURCE] if EDGE_IDS not in edges.dtypes else [SOURCE, EDGE_IDS]
        columns = edges.columns(*names)

        def copy(_: int, ranges: list[list[Tensor]]) -> None:
            source, *ids = ranges[staging.group.rank]
            own.copy(source, ids[0] if ids else None)

        steps = staging.steps_of_parts(positions, columns)
        staging.run(edges.chosen(*names), columns, steps, copy)
        return
    # Ids below 2^31 travel in half of the bytes; all have been checked.
    limit = max(edges.num_sources, edges.in_degrees.numel())
    columns = [
        Column(min(dtype, id_dtype(limit), key=lambda each: each.itemsize))
        for dtype in (edges.dtypes[SOURCE], edges.dtypes[DESTINATION])
    ]
    steps_of_all = staging.steps(edges.num_edges, columns)

    def select(number: int, ranges: list[list[Tensor]]) -> None:
        source, destination = ranges[0][0], ranges[0][1]
        if isinstance(own, EdgeRange):
            own.select(source, destination, steps_of_all[number][0])
        else:
            own.select(source.numpy(), destination.numpy(), steps_of_all[number][0])

    chosen = edges.chosen(SOURCE, DESTINATION)
    staging.run(chosen, columns, [[step] for step in steps_of_all], select)


def _room(group: Group) -> int:
    """Returns the bytes that the lists of a rank may take in a pass. Collective."""
    if group.device.type == "cuda":
        own = identity(group.device)
        sharers = group.all_gather(own).count(own)
        room = int(free_gpu_memory(group.device) * _GPU_SHARE) // sharers
    else:
        room = min(_MOST_HOST_BYTES, free_host_memory() // 4) // group.world_size
    rooms: list[int] = group.all_gather(room)
    return max(_LEAST_BYTES, min(rooms))


def _passes(indptr: Tensor, edge_bytes: int, room: int, world_size: int) -> list[list[Range]]:
    """Returns, for each pass, the range of destinations of each rank, with about the same number of
    edges.
    """
    num_edges = int(indptr[-1])
    passes = max(1, -(-num_edges * edge_bytes // (world_size * room)))
    parts = passes * world_size
    goals = [num_edges * part // parts for part in range(1, parts)]
    targets = torch.tensor(goals, dtype=torch.int64, device="cpu")
    bounds = [0, *torch.searchsorted(indptr, targets).tolist(), indptr.numel() - 1]
    ranges = list(pairwise(bounds))
    return [ranges[first : first + world_size] for first in range(0, parts, world_size)]

"""The edges of a relation that one rank has, counted by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import Group
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.staging import Column, Range, Staging
from peergraph.memory.table.id_list import check_distinct
from peergraph.store.input.schema import Schema
from peergraph.store.input.shared_vector import add_over_ranks, build_shared_vector
from peergraph.store.input.source import EdgeSource, EdgeType

SOURCE, DESTINATION, EDGE_IDS = "source", "destination", "edge_ids"


@dataclass
class StagedEdges:
    """A relation whose edges one rank has, in any order or as CSC. All ranks read them through
    :class:`Staging`. Made by :func:`count_edges`.

    Args:
        edge_type: the type of the relation.
        num_sources, num_edges: the numbers of its sources and edges.
        staging: the memory through which ranks read the edges.
        dtypes: the dtypes of the edges' ends and of their ids, by name; without `DESTINATION` the
            edges are a CSC.
        tensors: the tensors on the rank that has them, by name; elsewhere empty.
        in_degrees: [destinations] int64 on the CPU, on every rank.
        is_sorted: whether the edges come in the order of their destinations.
    """

    edge_type: EdgeType
    num_sources: int
    num_edges: int
    staging: Staging
    dtypes: dict[str, torch.dtype]
    tensors: dict[str, Tensor]
    in_degrees: Tensor
    is_sorted: bool
    _out_degrees: Tensor | None = None

    @property
    def has_edge_ids(self) -> bool:
        """Whether edge ids differ from CSC positions."""
        return EDGE_IDS in self.dtypes or not self.is_sorted

    @property
    def out_degrees(self) -> Tensor:
        """[sources] int64 on the CPU, on every rank. Collective where they are not counted yet."""
        if self._out_degrees is None:
            (self._out_degrees,), _ = _count(
                self, {SOURCE: self.num_sources}, [SOURCE], lambda _: None
            )
        return self._out_degrees

    def columns(self, *names: str) -> list[Column]:
        """Returns the columns of tensors as the ranks read them."""
        return [Column(self.dtypes[name]) for name in names]

    def chosen(self, *names: str) -> list[Tensor] | None:
        """Returns the tensors of columns; None on ranks that do not have them."""
        return [self.tensors[name] for name in names] if self.staging.is_holder else None


def count_edges(
    edge_type: EdgeType,
    edges: EdgeSource | None,
    schema: Schema,
    staging: Staging,
    count_sources: bool,
    moved: Callable[[int], object],
) -> StagedEdges:
    """Counts the edges of a relation that one rank has. Collective.

    Args:
        edges: the edges, on the rank that has them.
        count_sources: whether to count the edges out of each node in the same pass.
        moved: called with the number of edges that have been counted.

    Raises:
        IndexError: a node id is out of range. Every rank raises this.
        ValueError: an edge id occurs twice.
    """
    group, num_edges = staging.group, schema.num_edges[edge_type]
    num_sources, num_destinations = (schema.num_nodes[edge_type[end]] for end in (0, 2))
    tensors = collective_call(group, lambda: _tensors(edge_type, edges, num_edges, staging))
    dtypes = group.broadcast({name: t.dtype for name, t in tensors.items()}, staging.holder)
    empty = torch.zeros(0, dtype=torch.int64, device="cpu")
    counted = StagedEdges(
        edge_type, num_sources, num_edges, staging, dtypes, tensors, empty, is_sorted=True
    )
    limits, counts = {SOURCE: num_sources}, [SOURCE] if count_sources else []
    if DESTINATION in dtypes:
        limits[DESTINATION] = num_destinations
        degrees, counted.is_sorted = _count(counted, limits, [*counts, DESTINATION], moved)
        counted.in_degrees = degrees[-1]
    else:

        def write(of_all: Tensor) -> None:
            if edges is not None and staging.is_holder:
                assert edges.csc is not None
                of_all.copy_(edges.csc[0].diff())

        counted.in_degrees = build_shared_vector(group, num_destinations, write)
        degrees, _ = _count(counted, limits, counts, moved)
    counted._out_degrees = degrees[0] if count_sources else None
    return counted


def _tensors(
    edge_type: EdgeType, edges: EdgeSource | None, num_edges: int, staging: Staging
) -> dict[str, Tensor]:
    if edges is None or not staging.is_holder:
        return {}
    if edges.coo is not None:
        name = f"edges of {edge_type}: coo"
        return {SOURCE: plain(name, edges.coo[0]), DESTINATION: plain(name, edges.coo[1])}
    assert edges.csc is not None
    tensors = {SOURCE: edges.csc[1]}
    if edges.edge_ids is not None:
        check_distinct(f"edges of {edge_type}: edge_ids", edges.edge_ids, num_edges, "edges")
        tensors[EDGE_IDS] = edges.edge_ids
    return tensors


def uses_torch(device: torch.device) -> bool:
    """Whether edges are counted and sorted by torch's functions, on a GPU; else by the compiled
    module's on the CPU. The results are the same.
    """
    return device.type != "cpu"


def _count(
    edges: StagedEdges,
    limits: Mapping[str, int],
    names: Sequence[str],
    moved: Callable[[int], object],
) -> tuple[list[Tensor], bool]:
    """Checks the ids of columns, and counts those of some of them. Collective.

    Args:
        limits: by the name of a column, the limit of its ids.
        names: the columns whose ids are counted.
        moved: called with the number of edges that have been counted.

    Returns:
        The counts of each column, on the CPU of every rank; and whether the ids of the last column
        never fall.

    Raises:
        IndexError: an id is out of range; the error names the first one of the first such column.
    """
    staging, group = edges.staging, edges.staging.group
    world, columns = group.world_size, edges.columns(*limits)
    counter = _Counter(list(limits.values()), group)
    parts = [
        (edges.num_edges * rank // world, edges.num_edges * (rank + 1) // world)
        for rank in range(world)
    ]
    lengths = [limits[name] if name in names else 0 for name in limits]

    def count(counts: Tensor) -> None:
        of_columns = torch.split(counts, lengths)
        into = [of_columns[i] if name in names else None for i, name in enumerate(limits)]

        def add(number: int, ranges: list[list[Tensor]]) -> None:
            counter.add(ranges[group.rank], into)
            moved(sum(end - begin for begin, end in steps[number]))

        steps = staging.steps_of_parts(parts, columns)
        staging.run(edges.chosen(*limits), columns, steps, add)

    total = add_over_ranks(group, sum(lengths), count, atomically=not counter.uses_torch)
    everyone = group.all_gather(counter.result())
    if any(is_bad for is_bad, *_ in everyone):
        collective_call(group, lambda: _raise_first(edges, limits))
    ends = [(first, last) for _, _, first, last in everyone if first is not None]
    rises = all(a[1] <= b[0] for a, b in pairwise(ends))
    by_limit = zip(limits, torch.split(total, lengths), strict=True)
    chosen = [counts for name, counts in by_limit if name in names]
    return chosen, rises and all(rising for _, rising, *_ in everyone)


class _Counter:
    """Counts the ids of one rank's part of the edges, piece by piece."""

    def __init__(self, limits: Sequence[int], group: Group) -> None:
        self.uses_torch = uses_torch(group.device)
        self._limits, self._group, self._device = limits, group, group.device
        self._is_bad = False
        self._rises = torch.ones((), dtype=torch.bool, device=self._device)
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    def add(self, ids: Sequence[Tensor], counts: Sequence[Tensor | None]) -> None:
        """Checks the ids of each column, and adds to its counts. Ids out of range end it."""
        if self._is_bad or ids[0].numel() == 0:
            return
        near = [values.to(self._device, non_blocking=True) for values in ids]
        columns = list(zip(near, self._limits, counts, strict=True))
        rises = self._add_by_torch(columns) if self.uses_torch else self._add(columns)
        if self._is_bad:
            return
        self._rises &= rises
        if self._last is None:
            self._first = near[-1][0].clone()
        else:
            self._rises &= self._last <= near[-1][0]
        self._last = near[-1][-1].clone()

    def _add_by_torch(self, columns: Sequence[tuple[Tensor, int, Tensor | None]]) -> Tensor:
        """Returns whether the ids of the last column rise."""
        extrema = [torch.stack(torch.aminmax(values)).tolist() for values, *_ in columns]
        pairs = zip(extrema, self._limits, strict=True)
        self._is_bad = any(low < 0 or high >= limit for (low, high), limit in pairs)
        for values, _, counts in columns:
            if counts is not None and not self._is_bad:
                add_counts(counts, values, self._group)
        last = columns[-1][0]
        return (last[1:] >= last[:-1]).all()

    def _add(self, columns: Sequence[tuple[Tensor, int, Tensor | None]]) -> bool:
        rises = True
        for values, limit, counts in columns:
            in_range, rises = _check_and_count(values, limit, counts, self._group)
            self._is_bad |= not in_range
        return rises

    def result(self) -> tuple[bool, bool, int | None, int | None]:
        """Returns whether ids are out of range, whether those of the last column rise, and the
        first and the last of these.
        """
        ends = [None if end is None else int(end) for end in (self._first, self._last)]
        return self._is_bad, bool(self._rises), ends[0], ends[1]


def add_counts(counts: Tensor, ids: Tensor, group: Group) -> None:
    """Adds the number of times that each id occurs, on the group's device. On the CPU all ranks may
    add to one vector.
    """
    if uses_torch(group.device):
        one = torch.ones((), dtype=counts.dtype, device=counts.device)
        counts.index_add_(0, ids, one.expand(ids.numel()))
    else:
        _check_and_count(ids, counts.numel(), counts, group)


def _check_and_count(
    ids: Tensor, limit: int, counts: Tensor | None, group: Group
) -> tuple[bool, bool]:
    """Returns whether ids on the CPU are within the limit, and whether they rise."""
    return _C.count_ids(
        ids,
        limit=limit,
        counts=counts,
        is_shared=group.world_size > 1,
        num_threads=threads_of_rank(group.world_size),
    )


def _raise_first(edges: StagedEdges, limits: Mapping[str, int]) -> None:
    """Raises IndexError for the first id out of range, on the rank that has the edges."""
    if not edges.staging.is_holder:
        return
    is_coo = DESTINATION in edges.dtypes
    for name, limit in limits.items():
        ids = edges.tensors[name]
        for begin, end in _ranges(ids.numel()):
            piece = ids[begin:end]
            bad = ((piece < 0) | (piece >= limit)).nonzero()
            if not bad.numel():
                continue
            at = begin + int(bad[0])
            what = f"edges of {edges.edge_type}: "
            if is_coo:
                what += f"edge {at}: {name} id {int(ids[at])}"
            else:
                what += f"indices[{at}] = {int(ids[at])}"
            nodes = "nodes" if is_coo else "source nodes"
            raise IndexError(f"{what} is out of range for {limit} {nodes}")
    raise_changed(edges.edge_type)


def raise_changed(edge_type: EdgeType) -> NoReturn:
    """Raises RuntimeError: the edges were written to after they had been counted."""
    raise RuntimeError(f"edges of {edge_type} have changed while they were read")


def _ranges(count: int, step: int = 1 << 24) -> list[Range]:
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]

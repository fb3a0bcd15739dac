"""The edges of all relations of a typed layer as one matrix, so that one kernel runs over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.aggregate.sparse.index_tensors import (
    check_ids,
    check_range,
    group_by,
    indptr_from_sorted,
)

# A flag for each key takes less time than a sort if there are at most this many keys an edge.
_KEYS_PER_EDGE = 64
_FEW_KEYS = 1 << 20


@dataclass(frozen=True)
class Relation:
    """The edges of one relation.

    Args:
        edge_index: [2, edges] int32 or int64: sources, destinations.
        num_sources: bound of the sources.
        destinations: the position of the destinations' node type among all types.
        self_loops: None: edges are used as they are. Otherwise self loops are left out, and the
            first nodes, this many, get one self loop each.
    """

    edge_index: Tensor
    num_sources: int
    destinations: int
    self_loops: int | None = None

    def ends(self) -> tuple[Tensor, Tensor]:
        """Returns the sources and the destinations, int64."""
        source, destination = self.edge_index.long().unbind()
        if self.self_loops is None:
            return source, destination
        apart = source != destination
        loops = torch.arange(self.self_loops, device=source.device)
        return torch.cat([source[apart], loops]), torch.cat([destination[apart], loops])


class TypedEdges:
    """The edges of several relations, without the nodes that have no edges in a relation.

    A row of :attr:`matrix` is a pair of a destination and a relation, by destination; a column is a
    pair of a relation and a source, by relation. Only pairs that have edges are there.

    Args:
        relations: the relations, in the order of their columns.
        sizes: the number of nodes of each type of destinations.
        check: verify the ids. The shapes are always verified.

    Synchronises with a GPU, three times whatever the number of relations is.

    Raises:
        TypeError, ValueError: an edge index of another dtype, shape or device.
        IndexError: the first id out of range, if it is checked.
    """

    def __init__(
        self, relations: Sequence[Relation], sizes: Sequence[int], *, check: bool = True
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        device = relations[0].edge_index.device
        for i, relation in enumerate(relations):
            _check(f"relations[{i}]", relation, sizes[relation.destinations], device, check)
        count = len(relations)
        type_starts = [0, *accumulate(sizes)]
        source_starts = [0, *accumulate(relation.num_sources for relation in relations)]
        ends = [relation.ends() for relation in relations]
        edge_counts = torch.tensor([source.shape[0] for source, _ in ends])
        numbers = torch.arange(count).repeat_interleave(edge_counts).to(device)
        starts = torch.tensor(
            [
                source_starts[:-1],
                [type_starts[relation.destinations] for relation in relations],
            ]
        ).to(device)
        sources = torch.cat([source for source, _ in ends]) + starts[0][numbers]
        rows = torch.cat([destination for _, destination in ends]) + starts[1][numbers]
        rows = rows.mul_(count).add_(numbers)
        columns, column_of_edge = _distinct(sources, source_starts[-1])
        pairs, row_of_edge = _distinct(rows, type_starts[-1] * count)
        if row_of_edge.dtype != column_of_edge.dtype:
            row_of_edge, column_of_edge = row_of_edge.long(), column_of_edge.long()
        indptr, indices, _ = group_by(
            row_of_edge, column_of_edge, len(pairs), len(columns), row_of_edge.dtype
        )
        narrow = max(len(rows), len(columns), len(pairs)) < 2**31 - 1
        dtype = torch.int32 if narrow else torch.int64
        self.device = device
        """The device of all tensors."""
        self.matrix = CsrMatrix(indptr.to(dtype), indices.to(dtype), len(columns))
        """The edges: pairs of a destination and a relation by pairs of a relation and a source."""
        self.matrix.has_edge_operands = False
        destinations = pairs // count
        column_cuts, row_cuts = _cuts(columns, source_starts), _cuts(destinations, type_starts)
        last = destinations[(row_cuts[1:] - 1).clamp(min=0)] if len(pairs) else row_cuts[1:]
        bounds: list[int] = torch.cat([column_cuts, row_cuts, last]).tolist()
        self.column_cuts = bounds[: count + 1]
        """The first column of each relation, and the number of columns."""
        self.row_cuts = bounds[count + 1 : -len(sizes)]
        """The first row of each node type, and the number of rows."""
        self.sources = [
            columns[first:last] - source_starts[i]
            for i, (first, last) in enumerate(pairwise(self.column_cuts))
        ]
        """For each relation, the distinct sources that have edges, in ascending order."""
        self.sizes = [
            bounds[i - len(sizes)] - type_starts[i] + 1 if first < end else 0
            for i, (first, end) in enumerate(pairwise(self.row_cuts))
        ]
        """For each node type, the destinations up to the last one that has edges."""
        self.relations = pairs % count
        """[rows] the relation of each row."""
        self.destinations = [
            destinations[first:end] - type_starts[i]
            for i, (first, end) in enumerate(pairwise(self.row_cuts))
        ]
        """For each node type, the destination of each of its rows."""
        self._sums: tuple[CsrMatrix, Tensor] | None = None

    def sums(self) -> tuple[CsrMatrix, Tensor]:
        """Returns the matrix that adds up the rows of each destination, and the destination of each
        row. Its rows are the first :attr:`sizes` destinations of the types, one after the other.
        """
        if self._sums is None:
            starts = [0, *accumulate(self.sizes)]
            owners = torch.cat([each + starts[i] for i, each in enumerate(self.destinations)])
            dtype = self.matrix.indptr.dtype
            indptr = indptr_from_sorted(owners, starts[-1], dtype)
            columns = torch.arange(len(owners), dtype=dtype, device=indptr.device)
            self._sums = CsrMatrix(indptr, columns, len(columns)), owners
        return self._sums


def _check(name: str, relation: Relation, size: int, device: torch.device, values: bool) -> None:
    edges = relation.edge_index
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"{name}.edge_index must be [2, edges], got {list(edges.shape)}")
    check_ids(f"{name}.edge_index", edges[0], device)
    loops, most = relation.self_loops, min(relation.num_sources, size)
    if loops is not None and not 0 <= loops <= most:
        raise ValueError(f"{name}.self_loops must be in 0..{most}, got {loops}")
    if values:
        check_range(f"{name}.edge_index[0]", edges[0], relation.num_sources, "sources")
        check_range(f"{name}.edge_index[1]", edges[1], size, "destinations")


def _distinct(keys: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Returns the distinct keys, below `bound`, in ascending order, and each key's place in them.

    Synchronises with a GPU.
    """
    if bound > _FEW_KEYS + _KEYS_PER_EDGE * keys.shape[0]:
        distinct, places = torch.unique(keys, return_inverse=True)
        return distinct, places
    flags = torch.zeros(bound, dtype=torch.bool, device=keys.device)
    flags.index_fill_(0, keys, True)
    dtype = torch.int32 if bound < 2**31 else torch.int64
    places = torch.cumsum(flags, 0, dtype=dtype)
    return flags.nonzero().flatten(), places[keys].sub_(1)


def _cuts(ordered: Tensor, starts: list[int]) -> Tensor:
    """Returns how many of the ordered keys are below each start."""
    return torch.searchsorted(ordered, torch.tensor(starts, device=ordered.device))

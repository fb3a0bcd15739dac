"""The edges of all relations of a typed layer as one matrix, so that one kernel runs over all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.sparse.edge_matrix import tensors_of
from peergraph.aggregate.sparse.index_tensors import check_ids, check_range, is_edge_index
from peergraph.aggregate.sparse.joined_edges import KeyedEdges, join_edges
from peergraph.aggregate.sparse.joined_rows import group_rows, sizes_with_rows


class Relation(NamedTuple):  # a frozen dataclass takes several times as long to make
    """The edges of one relation.

    Args:
        edge_index: [2, edges] int32 or int64: sources, destinations.
        num_sources: bound of the sources.
        destinations: the position of the destinations' node type among all types.
        self_loops: None: edges are used as they are. Otherwise self loops are left out, and the
            first nodes, this many, get one self loop each.
        sources: the position of the sources' node type, for :class:`TypedPairs`.
    """

    edge_index: Tensor
    num_sources: int
    destinations: int
    self_loops: int | None = None
    sources: int | None = None

    def edges(self) -> Tensor:
        """Returns the edges, self loops added or left out as set, [2, edges]."""
        if self.self_loops is None:
            return self.edge_index
        edges = self.edge_index.long()
        loops = torch.arange(self.self_loops, device=edges.device)
        return torch.cat([edges[:, edges[0] != edges[1]], loops.expand(2, -1)], 1)


class TypedEdges:
    """The edges of several relations, without the nodes that have no edges in a relation.

    A row of :attr:`matrix` is a pair of a destination and a relation, in the order of destinations,
    type after type; a column is a pair of a relation and a source, in the order of relations. Only
    pairs that have edges are there.

    Args:
        relations: the relations, in the order of their columns.
        sizes: the number of nodes of each type.
        gradients: whether gradients will be needed: makes the transpose.
        fixed: whether all shapes depend on the sizes and the numbers of edges only, as a CUDA graph
            needs. Rows without edges then follow those of a type that have some. They belong to its
            last destination, which must be padding. Columns without edges belong to any source.

    Synchronises with the stream of a GPU, once if the numbers of nodes are not far beyond those of
    edges; not if `fixed`.

    Raises:
        TypeError, ValueError: an edge index of another dtype, shape or device, or too many edges.
        IndexError: the first id out of range.
        NotImplementedError: `fixed`, with self loops or with many more nodes than edges.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        sizes: Sequence[int],
        *,
        gradients: bool = False,
        fixed: bool = False,
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        self.device = device = relations[0].edge_index.device
        """The device of all tensors."""
        for i, relation in enumerate(relations):
            size = sizes[relation.destinations]
            check_relation(f"relations[{i}]", relation, size, device, values=False)
            if fixed and relation.self_loops is not None:
                raise NotImplementedError(f"relations[{i}].self_loops in arrays of fixed shape")
        count = len(relations)
        self.by_destination = [
            [i for i, relation in enumerate(relations) if relation.destinations == node_type]
            for node_type in range(len(sizes))
        ]
        """For each node type, the relations into it."""
        source_starts = [0, *accumulate(relation.num_sources for relation in relations)]
        places = [self.score_places(node_type) for node_type in range(len(sizes))]
        # Row keys are the places of scores, if all nodes of a type had some.
        row_starts = [0, *accumulate(n * each for n, each in zip(sizes, places, strict=True))]
        keyed: list[KeyedEdges] = []
        for i, relation in enumerate(relations):
            node_type = relation.destinations
            place = self.by_destination[node_type].index(i)
            keyed.append(
                KeyedEdges(
                    relation.edges(),
                    relation.num_sources,
                    sizes[node_type],
                    source_starts[i],
                    row_starts[node_type] + place,
                    places[node_type],
                )
            )
        joined = join_edges(keyed, row_starts, source_starts, gradients=gradients, fixed=fixed)
        self.matrix = joined.matrix
        """The edges."""
        self.column_cuts = joined.column_cuts
        """The first column of each relation, and the number of columns."""
        lengths = [end - first for first, end in pairwise(self.column_cuts)]
        self.sources = list(torch.split(joined.columns, lengths))
        """For each relation, the distinct sources that have edges, in ascending order, int32. If
        shapes are fixed, others follow."""
        # A segment of rows is a node type.
        segments = range(len(sizes)), [max(1, each) for each in places]
        self.sizes = sizes_with_rows(joined, segments[0], len(sizes), segments[1])
        """For each node type, the destinations up to the last one that has edges."""
        scores = [n * each for n, each in zip(self.sizes, places, strict=True)]
        self.num_scores = sum(scores)
        """The scores of destinations, unused places included: for each of the first :attr:`sizes`
        nodes of each type, :meth:`score_places`."""
        rows = group_rows(
            joined,
            *segments,
            self.sizes,
            place_starts=list(accumulate(scores[:-1], initial=0)),
            # A destination has a row for each relation at most; if fixed, one may have all rows
            # without edges.
            max_chunks=None if fixed or count > Schedule.long_row else 0,
        )
        self.owners = rows.owners
        """[rows] the destination of each row, counting the first :attr:`sizes` of each type, type
        after type."""
        assert rows.places is not None
        self.score_rows = rows.places
        """[rows] the place of each row's score among all scores of destinations."""
        self.sums = rows.sums
        """Adds up the rows of each destination."""

    def by_relation(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Returns the part of each relation of a tensor by column."""
        return torch.split(columns, [rows.shape[0] for rows in self.sources])

    def score_places(self, node_type: int) -> int:
        """Returns the scores of a destination: one for each relation into its type, side by side,
        and one more if that makes the number even.
        """
        count = len(self.by_destination[node_type])
        return count + count % 2

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        matrices = tensors_of([self.matrix, self.sums])
        return [*matrices, *self.sources, self.owners, self.score_rows]


def check_relation(
    name: str, relation: Relation, size: int, device: torch.device, values: bool
) -> Tensor:
    """Returns the edge index of a relation; raises what :class:`TypedEdges` raises.

    Args:
        values: verify ids, too.
    """
    edges = relation.edge_index
    if not is_edge_index(edges, device):
        if edges.dim() != 2 or edges.shape[0] != 2:
            raise ValueError(f"{name}.edge_index must be [2, edges], got {list(edges.shape)}")
        edges = check_ids(f"{name}.edge_index", edges, device, dimensions=2)
    loops, most = relation.self_loops, min(relation.num_sources, size)
    if loops is not None and not 0 <= loops <= most:
        raise ValueError(f"{name}.self_loops must be in 0..{most}, got {loops}")
    if values:
        check_range(f"{name}.edge_index[0]", edges[0], relation.num_sources, "sources")
        check_range(f"{name}.edge_index[1]", edges[1], size, "destinations")
    return edges

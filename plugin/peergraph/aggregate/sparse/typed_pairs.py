"""The edges of all relations of a typed layer whose relations share the rows of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import group_by, on_device, row_of_edges
from peergraph.aggregate.sparse.joined_edges import JoinedEdges, KeyedEdges, join_edges
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation


class TypedPairs(ABC):
    """The edges of several relations by pairs of a relation and a destination.

    A row of :attr:`matrix` is a pair that has edges, in the order of relations and then of
    destinations, so that the pairs of a relation are multiplied by its parameters at once. A column
    is a source that has edges, type after type, whatever relations read it.

    Args:
        relations: the relations; each names the node type of its sources.
        sizes: the number of nodes of each type.
        gradients: whether gradients will be needed: makes the transposes.

    Synchronises with the stream of a GPU, once if the numbers of nodes are not far beyond those of
    edges.

    Raises:
        TypeError, ValueError: an edge index of another dtype, shape or device, or too many edges.
        IndexError: the first id out of range.
    """

    def __init__(
        self, relations: Sequence[Relation], sizes: Sequence[int], *, gradients: bool = False
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        self.device = device = relations[0].edge_index.device
        """The device of all tensors."""
        column_starts = [0, *accumulate(sizes)]
        row_starts = [0, *accumulate(sizes[relation.destinations] for relation in relations)]
        keyed = []
        for i, (relation, first_row) in enumerate(zip(relations, row_starts, strict=False)):
            source, size = relation.sources, sizes[relation.destinations]
            if source is None or sizes[source] != relation.num_sources:
                raise ValueError(f"relations[{i}] must name the type of its sources")
            check_relation(f"relations[{i}]", relation, size, device, values=False)
            ids, destinations = relation.edges().unbind()
            first_column = column_starts[source]
            keyed.append(
                KeyedEdges(ids, destinations, sizes[source], size, first_column, first_row)
            )
        joined = join_edges(keyed, row_starts, column_starts, gradients=gradients)
        self.matrix = joined.matrix
        """The edges, relation after relation."""
        self.row_cuts = joined.row_cuts
        """The first row of each relation, and the number of rows."""
        self.column_cuts = joined.column_cuts
        """The first column of each node type, and the number of columns."""
        lengths = [end - first for first, end in pairwise(self.column_cuts)]
        self.chosen: list[Tensor | slice] = [
            slice(0, size) if len(ids) == size else ids
            for ids, size in zip(torch.split(joined.columns, lengths), sizes, strict=True)
        ]
        """For each node type, the nodes that are columns, in ascending order, int32, or the range
        of all of them."""
        self.sizes = [0] * len(sizes)
        """For each node type, the destinations up to the last one that has edges."""
        for relation, last in zip(relations, joined.row_lasts, strict=True):
            node_type = relation.destinations
            self.sizes[node_type] = max(self.sizes[node_type], last + 1)
        firsts = [0, *accumulate(self.sizes)]
        of_relation = on_device(
            [firsts[each.destinations] for each in relations], device, torch.int32
        )
        shifts = of_relation.index_select(0, joined.row_segments)
        self.owners = joined.rows + shifts
        """[rows] int32, the destination of each row, counting the first :attr:`sizes` of each type,
        type after type."""
        rows = self.owners.shape[0]
        ids = torch.arange(rows, dtype=torch.int32, device=device)
        indptr, ids, _ = group_by(self.owners, ids, firsts[-1], max(1, rows), torch.int32)
        # A destination has a row for each relation at most.
        most_chunks = None if len(relations) > Schedule.long_row else 0
        self.sums = EdgeMatrix(indptr, ids, rows, max_chunks=most_chunks)
        """Adds up the rows of each destination."""
        self._complete(relations, sizes, joined, gradients)

    @abstractmethod
    def _complete(
        self,
        relations: Sequence[Relation],
        sizes: Sequence[int],
        joined: JoinedEdges,
        gradients: bool,
    ) -> None:
        """Makes what an operation needs beside the matrix of all edges."""

    @abstractmethod
    def _matrices(self) -> list[EdgeMatrix]:
        """Returns all matrices but the transposes."""

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return self.column_cuts[-1]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        matrices = self._matrices()
        matrices += [each.transpose() for each in matrices if each.has_transpose]
        lists = [tensor for each in matrices for tensor in (each.indptr, each.indices)]
        ids = [each.edge_ids for each in matrices if each.edge_ids is not None]
        return [*lists, *ids, *(c for c in self.chosen if isinstance(c, Tensor)), self.owners]


class JointPairs(TypedPairs):
    """Edges whose scores have one softmax for each destination, over all relations."""

    by_destination: EdgeMatrix
    """The edges of each destination, over all relations; its columns are these edges."""

    def _complete(
        self,
        relations: Sequence[Relation],
        sizes: Sequence[int],
        joined: JoinedEdges,
        gradients: bool,
    ) -> None:
        rows, edges = self.sums.indices, self.matrix.num_edges
        degrees = self.matrix.in_degrees()[rows]
        lasts = torch.cumsum(degrees, 0, dtype=torch.int32)
        indptr = torch.cat([lasts.new_zeros(1), lasts])[self.sums.indptr]
        shift = self.matrix.indptr[rows] - (lasts - degrees)
        ids = shift.repeat_interleave(degrees, output_size=edges)
        ids += torch.arange(edges, dtype=torch.int32, device=self.device)
        self.by_destination = EdgeMatrix(indptr, ids, edges, edge_ids=ids)

    def _matrices(self) -> list[EdgeMatrix]:
        return [self.matrix, self.sums, self.by_destination]


class ApartPairs(TypedPairs):
    """Edges whose scores have a softmax for each pair, of a source and a relation's vectors."""

    scores: EdgeMatrix
    """The edges; a column is a pair of a relation and any source, in the order of relations."""
    places: Tensor
    """[rows] the place of each pair among all pairs of a relation and a destination, with edges or
    not, in the order of relations."""

    def _complete(
        self,
        relations: Sequence[Relation],
        sizes: Sequence[int],
        joined: JoinedEdges,
        gradients: bool,
    ) -> None:
        sources = [0, *accumulate(each.num_sources for each in relations)]
        destinations = accumulate((sizes[each.destinations] for each in relations), initial=0)
        firsts = on_device([sources, list(destinations)], self.device)
        of_row = firsts.index_select(1, joined.row_segments)
        self.places = joined.rows + of_row[1]
        rows = row_of_edges(self.matrix.indptr, self.matrix.num_edges)
        columns = joined.columns[self.matrix.indices] + of_row[0][rows]
        ids = columns.to(self.matrix.indices.dtype)
        chunks = self.matrix.max_chunks
        self.scores = EdgeMatrix(self.matrix.indptr, ids, sources[-1], max_chunks=chunks)
        if gradients:
            self.scores.transpose()
            self.sums.transpose()

    def _matrices(self) -> list[EdgeMatrix]:
        return [self.matrix, self.scores, self.sums]

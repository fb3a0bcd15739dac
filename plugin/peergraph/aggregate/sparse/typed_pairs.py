"""The edges of all relations of a typed layer whose relations share the rows of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import on_device, row_of_edges
from peergraph.aggregate.sparse.joined_edges import JoinedEdges, KeyedEdges, join_edges
from peergraph.aggregate.sparse.joined_rows import GroupedRows, group_rows, sizes_with_rows
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

    _is_joint: bool
    """Whether all edges of a destination are listed together; else its pairs have places."""

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
            first_column = column_starts[source]
            keyed.append(KeyedEdges(relation.edges(), sizes[source], size, first_column, first_row))
        joined = join_edges(keyed, row_starts, column_starts, gradients=gradients)
        self.matrix = joined.matrix
        """The edges, relation after relation."""
        self.row_cuts = joined.row_cuts
        """The first row of each relation, and the number of rows."""
        self.column_cuts = joined.column_cuts
        """The first column of each node type, and the number of columns."""
        lengths = [end - first for first, end in pairwise(self.column_cuts)]
        self.chosen: list[Tensor | slice] = [
            slice(0, size) if length == size else ids
            for ids, length, size in zip(
                joined.columns.split_with_sizes(lengths), lengths, sizes, strict=True
            )
        ]
        """For each node type, the nodes that are columns, in ascending order, int32, or the range
        of all of them."""
        # A segment of rows is a relation.
        segments = [each.destinations for each in relations], [1] * len(relations)
        self.sizes = sizes_with_rows(joined, segments[0], len(sizes), segments[1])
        """For each node type, the destinations up to the last one that has edges."""
        rows = group_rows(
            joined,
            *segments,
            self.sizes,
            place_starts=None if self._is_joint else row_starts[:-1],
            edges=self._is_joint,
            # A destination has a row for each relation at most.
            max_chunks=None if len(relations) > Schedule.long_row else 0,
        )
        self.owners = rows.owners
        """[rows] int32, the destination of each row, counting the first :attr:`sizes` of each type,
        type after type."""
        self.sums = rows.sums
        """Adds up the rows of each destination."""
        self._complete(relations, joined, rows, gradients)

    @abstractmethod
    def _complete(
        self,
        relations: Sequence[Relation],
        joined: JoinedEdges,
        rows: GroupedRows,
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

    _is_joint = True
    by_destination: EdgeMatrix
    """The edges of each destination, over all relations; its columns are these edges."""

    def _complete(
        self,
        relations: Sequence[Relation],
        joined: JoinedEdges,
        rows: GroupedRows,
        gradients: bool,
    ) -> None:
        assert rows.by_destination is not None
        self.by_destination = rows.by_destination

    def _matrices(self) -> list[EdgeMatrix]:
        return [self.matrix, self.sums, self.by_destination]


class ApartPairs(TypedPairs):
    """Edges whose scores have a softmax for each pair, of a source and a relation's vectors."""

    _is_joint = False
    scores: EdgeMatrix
    """The edges; a column is a pair of a relation and any source, in the order of relations."""
    places: Tensor
    """[rows] the place of each pair among all pairs of a relation and a destination, with edges or
    not, in the order of relations."""

    def _complete(
        self,
        relations: Sequence[Relation],
        joined: JoinedEdges,
        rows: GroupedRows,
        gradients: bool,
    ) -> None:
        assert rows.places is not None
        self.places = rows.places
        sources = [0, *accumulate(each.num_sources for each in relations)]
        firsts = on_device(sources, self.device).index_select(0, joined.row_segments)
        of_edges = row_of_edges(self.matrix.indptr, self.matrix.num_edges)
        columns = joined.columns[self.matrix.indices] + firsts[of_edges]
        ids = columns.to(self.matrix.indices.dtype)
        chunks = self.matrix.max_chunks
        self.scores = EdgeMatrix(self.matrix.indptr, ids, sources[-1], max_chunks=chunks)
        if gradients:
            self.scores.transpose()
            self.sums.transpose()

    def _matrices(self) -> list[EdgeMatrix]:
        return [self.matrix, self.scores, self.sums]

"""The edges of all relations of a typed layer by pairs of a relation and a destination."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix, tensors_of
from peergraph.aggregate.sparse.index_tensors import on_device, row_of_edges
from peergraph.aggregate.sparse.joined_edges import JoinedEdges, KeyedEdges, join_edges
from peergraph.aggregate.sparse.joined_rows import GroupedRows, group_rows, sizes_with_rows
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation


class TypedPairs(ABC):
    """The edges of several relations by pairs of a relation and a destination.

    A row of :attr:`matrix` is a pair that has edges, in the order of relations and then of
    destinations, so that the pairs of a relation are multiplied by its parameters at once. A column
    is a source that has edges, type after type, whatever relations read it; in :class:`BlockPairs`
    a pair of a relation and a source.

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

    _lists_edges = False
    """Whether the edges of each destination are listed, over all relations."""
    _has_own_columns = False
    """Whether a column is a pair of a relation and a source."""

    def __init__(
        self, relations: Sequence[Relation], sizes: Sequence[int], *, gradients: bool = False
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        self.device = device = relations[0].edge_index.device
        """The device of all tensors."""
        # A segment of columns is a node type, or a relation.
        lengths = [relation.num_sources for relation in relations]
        lengths = lengths if self._has_own_columns else list(sizes)
        column_starts = _starts(lengths)
        row_starts = _starts([sizes[each.destinations] for each in relations])
        keyed = []
        for i, (relation, first_row) in enumerate(zip(relations, row_starts, strict=False)):
            source, size = relation.sources, sizes[relation.destinations]
            if source is None or sizes[source] != relation.num_sources:
                raise ValueError(f"relations[{i}] must name the type of its sources")
            check_relation(f"relations[{i}]", relation, size, device, values=False)
            first_column = column_starts[i if self._has_own_columns else source]
            keyed.append(KeyedEdges(relation.edges(), sizes[source], size, first_column, first_row))
        self.num_edges = [each.num_edges for each in keyed]
        """Of each relation, self loops included."""
        joined = join_edges(keyed, row_starts, column_starts, gradients=gradients)
        self.matrix = joined.matrix
        """The edges, relation after relation."""
        self.row_cuts = joined.row_cuts
        """The first row of each relation, and the number of rows."""
        self.column_cuts = joined.column_cuts
        """The first column of each segment (a node type or a relation), and how many columns there
        are."""
        self.chosen = _chosen(joined.columns, self.column_cuts, lengths)
        """For each segment, the nodes that are columns, in ascending order, int32, or the range of
        all of them."""
        # A segment of rows is a relation.
        segments = [each.destinations for each in relations], [1] * len(relations)
        self.sizes = sizes_with_rows(joined, segments[0], len(sizes), segments[1])
        """For each node type, the destinations up to the last one that has edges."""
        bounds = self._place_bounds(sizes)
        places = None if bounds is None else [bounds[each.destinations] for each in relations]
        rows = group_rows(
            joined,
            *segments,
            self.sizes,
            place_starts=None if places is None else _starts(places)[:-1],
            edges=self._lists_edges,
            # A destination has a row for each relation at most.
            max_chunks=None if len(relations) > Schedule.long_row else 0,
        )
        self.owners = rows.owners
        """[rows] int32, the destination of each row, counting the first :attr:`sizes` of each type,
        type after type."""
        self.sums = rows.sums
        """Adds up the rows of each destination."""
        self._complete(relations, joined, rows, gradients)

    def _place_bounds(self, sizes: Sequence[int]) -> Sequence[int] | None:
        """Returns how many destinations of each type have a place in each relation into it; None:
        pairs have no places.
        """
        return None

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
        chosen = [tensor for tensor in self.chosen if isinstance(tensor, Tensor)]
        return [*tensors_of(self._matrices()), *chosen, self.owners]


class JointPairs(TypedPairs):
    """Edges whose scores have one softmax for each destination, over all relations."""

    _lists_edges = True
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

    scores: EdgeMatrix
    """The edges; a column is a pair of a relation and any source, in the order of relations."""
    places: Tensor
    """[rows] the place of each pair among all pairs of a relation and a destination, with edges or
    not, in the order of relations."""

    def _place_bounds(self, sizes: Sequence[int]) -> Sequence[int]:
        return sizes

    def _complete(
        self,
        relations: Sequence[Relation],
        joined: JoinedEdges,
        rows: GroupedRows,
        gradients: bool,
    ) -> None:
        assert rows.places is not None
        self.places = rows.places
        sources = _starts([each.num_sources for each in relations])
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


class BlockPairs(TypedPairs):
    """Edges whose columns belong to one relation each, too: the matrix has a block for each
    relation, of which rows and columns are multiplied by its parameters.
    """

    _has_own_columns = True
    row_places: Tensor
    """[rows] int64, the place of each row among the first :attr:`sizes` destinations of each
    relation, in the order of relations."""
    places: list[int]
    """The number of places of each relation."""
    rows: list[Tensor | slice]
    """For each relation, the destinations that are rows, as :attr:`chosen` has the sources."""
    cuts: tuple[Tensor, Tensor]
    """[relations + 1] each, int64 on the device: the first row and the first column of each
    relation, and the numbers of rows and columns."""

    def _place_bounds(self, sizes: Sequence[int]) -> Sequence[int]:
        return self.sizes

    def _complete(
        self,
        relations: Sequence[Relation],
        joined: JoinedEdges,
        rows: GroupedRows,
        gradients: bool,
    ) -> None:
        assert rows.places is not None
        self.row_places = rows.places
        self.places = [self.sizes[each.destinations] for each in relations]
        self.rows = _chosen(joined.rows, self.row_cuts, self.places)
        by_row, by_column = on_device([self.row_cuts, self.column_cuts], self.device)
        self.cuts = by_row, by_column

    def _matrices(self) -> list[EdgeMatrix]:
        return [self.matrix, self.sums]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        rows = [tensor for tensor in self.rows if isinstance(tensor, Tensor)]
        return [*super().tensors(), *rows, self.row_places, *self.cuts]


def _starts(lengths: Sequence[int]) -> list[int]:
    """Returns the start of each length, and the end of all."""
    return [0, *accumulate(lengths)]


def _chosen(ids: Tensor, cuts: Sequence[int], lengths: Sequence[int]) -> list[Tensor | slice]:
    """Returns the ids of each segment, or the range of all of them.

    Args:
        ids: those of all segments, int32, ascending in each.
        cuts: the first id of each segment, and the number of ids.
        lengths: the bound of the ids of each segment.
    """
    counts = [end - first for first, end in pairwise(cuts)]
    parts = zip(ids.split_with_sizes(counts), counts, lengths, strict=True)
    return [slice(0, length) if count == length else part for part, count, length in parts]

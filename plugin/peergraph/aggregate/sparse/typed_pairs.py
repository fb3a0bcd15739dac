"""The edges of all relations of a typed layer whose relations share the rows of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule, count_chunks
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.aggregate.sparse.index_tensors import group_by
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation, cuts_of, distinct

# Rows of a type are chosen one by one if at most this share of them has edges: to multiply the
# others takes less time than to copy those that are chosen.
_CHOSEN_SHARE = 0.75


@dataclass(frozen=True)
class _Ends:
    """The edges as they were joined.

    Args:
        relations, sizes: as for :class:`TypedPairs`.
        sources, numbers: [edges] the source and the relation of each edge, relation after relation.
        order: [edges] the positions there of the edges of the matrix.
        destinations, of_pair: [rows] the destination and the relation of each pair.
    """

    relations: Sequence[Relation]
    sizes: Sequence[int]
    sources: Tensor
    numbers: Tensor
    order: Tensor
    destinations: Tensor
    of_pair: Tensor


class TypedPairs(ABC):
    """The edges of several relations by pairs of a relation and a destination.

    A row of :attr:`matrix` is a pair that has edges, in the order of relations and then of
    destinations, so that the pairs of a relation are multiplied by its parameters at once. A column
    is a source, type after type, whatever relations read it.

    Args:
        relations: the relations; each names the node type of its sources.
        sizes: the number of nodes of each type.
        check: verify the ids. The shapes are always verified.
        gradients: whether gradients will be needed: makes the transposes.

    Synchronises with the stream of a GPU, a few times whatever the number of relations is.

    Raises:
        TypeError, ValueError: an edge index of another dtype, shape or device.
        IndexError: the first id out of range, if it is checked.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        sizes: Sequence[int],
        *,
        check: bool = True,
        gradients: bool = False,
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        self.device = device = relations[0].edge_index.device
        """The device of all tensors."""
        of_sources = []
        for i, relation in enumerate(relations):
            if relation.sources is None or sizes[relation.sources] != relation.num_sources:
                raise ValueError(f"relations[{i}] must name the type of its sources")
            of_sources.append(relation.sources)
            check_relation(f"relations[{i}]", relation, sizes[relation.destinations], device, check)
        count = len(relations)
        type_starts = [0, *accumulate(sizes)]
        nodes = type_starts[-1]
        into = [relation.destinations for relation in relations]
        parts = [relation.edges() for relation in relations]
        sources, rows = torch.cat(parts, 1).unbind()
        # By relation: first source, first destination, edges.
        table = torch.tensor(
            [
                [type_starts[node_type] for node_type in of_sources],
                [type_starts[node_type] for node_type in into],
                [part.shape[1] for part in parts],
            ]
        ).to(device)
        numbers = torch.arange(count, device=device).repeat_interleave(
            table[2], output_size=sources.shape[0]
        )
        column_of_edge = self._choose_sources(sources + table[0][numbers], sizes)
        keys = (rows + table[1][numbers]).add_(numbers * nodes)
        pairs, row_of_edge = distinct(keys, nodes * count)
        indptr, indices, order = group_by(
            row_of_edge, column_of_edge, pairs.shape[0], self.num_columns, row_of_edge.dtype
        )
        self.matrix = CsrMatrix(indptr, indices, self.num_columns, max_chunks=count_chunks(indptr))
        """The edges, relation after relation."""
        destinations, of_pair = pairs % nodes, pairs // nodes
        row_cuts = cuts_of(pairs, [i * nodes for i in range(count + 1)])
        last = destinations[(row_cuts[1:] - 1).clamp(min=0)] if pairs.shape[0] else row_cuts[1:]
        bounds: list[int] = torch.cat([row_cuts, last]).tolist()
        self.row_cuts = bounds[: count + 1]
        """The first row of each relation, and the number of rows."""
        self.sizes = [0] * len(sizes)
        """For each node type, the destinations up to the last one that has edges."""
        ends = zip(into, pairwise(self.row_cuts), bounds[count + 1 :], strict=True)
        for node_type, (first, end), highest in ends:
            if first < end:
                size = highest - type_starts[node_type] + 1
                self.sizes[node_type] = max(self.sizes[node_type], size)
        first_of_type = [0, *accumulate(self.sizes)]
        shift = torch.tensor([first_of_type[t] - type_starts[t] for t in into]).to(device)
        self.owners = (destinations + shift[of_pair]).to(indices.dtype)
        """[rows] the destination of each row, counting the first :attr:`sizes` of each type, type
        after type."""
        indptr, indices, _ = group_by(
            self.owners,
            torch.arange(pairs.shape[0], dtype=indices.dtype, device=device),
            first_of_type[-1],
            max(1, pairs.shape[0]),
            indices.dtype,
        )
        # A destination has a row for each relation at most.
        most_chunks = None if count > Schedule.long_row else 0
        self.sums = CsrMatrix(indptr, indices, pairs.shape[0], max_chunks=most_chunks)
        """Adds up the rows of each destination."""
        local = destinations - table[1][of_pair]
        self._complete(_Ends(relations, sizes, sources, numbers, order, local, of_pair))
        if gradients:
            for matrix in self._matrices_of_gradients():
                matrix.transpose()

    @abstractmethod
    def _complete(self, ends: _Ends) -> None:
        """Makes what an operation needs beside the matrix of all edges."""

    def _matrices_of_gradients(self) -> list[CsrMatrix]:
        """Returns the matrices whose transposes gradients are summed over."""
        return [self.matrix]

    def _choose_sources(self, keys: Tensor, sizes: Sequence[int]) -> Tensor:
        """Chooses the sources that are columns; returns the column of each edge."""
        starts = [0, *accumulate(sizes)]
        flags = torch.zeros(starts[-1], dtype=torch.bool, device=self.device)
        flags.index_fill_(0, keys, True)
        counts: list[int] = [0] * len(sizes)
        if starts[-1]:
            totals = torch.cat([flags.new_zeros(1, dtype=torch.int64), torch.cumsum(flags, 0)])
            cuts: list[int] = totals[torch.tensor(starts).to(self.device)].tolist()
            counts = [end - first for first, end in pairwise(cuts)]
        self.chosen: list[Tensor | slice] = []
        """For each node type, the nodes that are columns, in ascending order, or the range of all
        of them."""
        for size, first, used in zip(sizes, starts, counts, strict=False):
            if used > _CHOSEN_SHARE * size:
                flags[first : first + size] = True
                self.chosen.append(slice(0, size))
            else:
                self.chosen.append(flags[first : first + size].nonzero().flatten())
        lengths = [len(c) if isinstance(c, Tensor) else c.stop for c in self.chosen]
        self.column_cuts = [0, *accumulate(lengths)]
        """The first column of each node type, and the number of columns."""
        dtype = torch.int32 if max(self.num_columns, keys.shape[0]) < 2**31 - 1 else torch.int64
        return torch.cumsum(flags, 0, dtype=dtype)[keys].sub_(1)

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return self.column_cuts[-1]

    @abstractmethod
    def _matrices(self) -> list[CsrMatrix]:
        """Returns all matrices but the transposes."""

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        matrices = self._matrices()
        matrices += [each.transpose() for each in matrices if each.has_transpose]
        lists = [tensor for each in matrices for tensor in (each.indptr, each.indices)]
        ids = [each.edge_ids for each in matrices if each.edge_ids is not None]
        return [*lists, *ids, *(c for c in self.chosen if isinstance(c, Tensor)), self.owners]


class JointPairs(TypedPairs):
    """Edges whose scores have one softmax for each destination, over all relations."""

    by_destination: CsrMatrix
    """The edges of each destination, over all relations; its columns are these edges."""

    def _complete(self, ends: _Ends) -> None:
        rows, edges = self.sums.indices, self.matrix.num_edges
        dtype = rows.dtype
        degrees = self.matrix.degrees()[rows]
        lasts = torch.cumsum(degrees, 0, dtype=dtype)
        indptr = torch.cat([lasts.new_zeros(1), lasts])[self.sums.indptr]
        shift = self.matrix.indptr[rows] - (lasts - degrees)
        ids = shift.repeat_interleave(degrees, output_size=edges)
        ids += torch.arange(edges, dtype=dtype, device=self.device)
        self.by_destination = CsrMatrix(
            indptr, ids, edges, edge_ids=ids, max_chunks=count_chunks(indptr)
        )

    def _matrices(self) -> list[CsrMatrix]:
        return [self.matrix, self.sums, self.by_destination]


class ApartPairs(TypedPairs):
    """Edges whose scores have a softmax for each pair, of a source and a relation's vectors."""

    scores: CsrMatrix
    """The edges; a column is a pair of a relation and any source, in the order of relations."""
    places: Tensor
    """[rows] the place of each pair among all pairs of a relation and a destination, with edges or
    not, in the order of relations."""

    def _complete(self, ends: _Ends) -> None:
        sources = [0, *accumulate(each.num_sources for each in ends.relations)]
        destinations = accumulate((ends.sizes[r.destinations] for r in ends.relations), initial=0)
        firsts = torch.tensor([sources, list(destinations)]).to(self.device)
        columns = (ends.sources + firsts[0][ends.numbers])[ends.order]
        self.scores = CsrMatrix(
            self.matrix.indptr,
            columns.to(self.matrix.indices.dtype),
            sources[-1],
            max_chunks=self.matrix.max_chunks,
        )
        self.places = ends.destinations + firsts[1][ends.of_pair]

    def _matrices_of_gradients(self) -> list[CsrMatrix]:
        return [self.matrix, self.scores, self.sums]

    def _matrices(self) -> list[CsrMatrix]:
        return [self.matrix, self.scores, self.sums]

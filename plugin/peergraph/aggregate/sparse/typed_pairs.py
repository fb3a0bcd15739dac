"""The edges of all relations of a typed layer whose relations share the rows of their sources."""

from __future__ import annotations

from collections.abc import Sequence
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


class TypedPairs:
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
        indptr, indices, _ = group_by(
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
        self.by_destination = self._edges_of_destinations()
        """The edges of each destination, over all relations; its columns are these edges."""
        if gradients:
            self.matrix.transpose()

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

    def _edges_of_destinations(self) -> CsrMatrix:
        rows, edges = self.sums.indices, self.matrix.num_edges
        dtype = rows.dtype
        degrees = self.matrix.degrees()[rows]
        ends = torch.cumsum(degrees, 0, dtype=dtype)
        indptr = torch.cat([ends.new_zeros(1), ends])[self.sums.indptr]
        shift = self.matrix.indptr[rows] - (ends - degrees)
        ids = shift.repeat_interleave(degrees, output_size=edges)
        ids += torch.arange(edges, dtype=dtype, device=self.device)
        return CsrMatrix(indptr, ids, edges, edge_ids=ids, max_chunks=count_chunks(indptr))

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        matrices = [self.matrix, self.sums, self.by_destination]
        if self.matrix.has_transpose:
            matrices.append(self.matrix.transpose())
        lists = [tensor for each in matrices for tensor in (each.indptr, each.indices)]
        ids = [each.edge_ids for each in matrices if each.edge_ids is not None]
        return [*lists, *ids, *(c for c in self.chosen if isinstance(c, Tensor)), self.owners]

"""The edges of all relations of a typed layer as one matrix, so that one kernel runs over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule, count_chunks
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
        sources: the position of the sources' node type, for :class:`TypedPairs`.
    """

    edge_index: Tensor
    num_sources: int
    destinations: int
    self_loops: int | None = None
    sources: int | None = None

    def edges(self) -> Tensor:
        """Returns the edges, self loops added or left out as set, [2, edges] int64."""
        edges = self.edge_index.long()
        if self.self_loops is None:
            return edges
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
        check: verify the ids. The shapes are always verified.
        gradients: whether gradients will be needed: makes the transpose.

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
        for i, relation in enumerate(relations):
            check_relation(f"relations[{i}]", relation, sizes[relation.destinations], device, check)
        count = len(relations)
        self.by_destination = [
            [i for i, relation in enumerate(relations) if relation.destinations == node_type]
            for node_type in range(len(sizes))
        ]
        """For each node type, the relations into it."""
        type_starts = [0, *accumulate(sizes)]
        source_starts = [0, *accumulate(relation.num_sources for relation in relations)]
        of_relation = [relation.destinations for relation in relations]
        parts = [relation.edges() for relation in relations]
        sources, rows = torch.cat(parts, 1).unbind()
        # By relation: first source, first destination, edges.
        table = torch.tensor(
            [
                source_starts[:-1],
                [type_starts[node_type] for node_type in of_relation],
                [part.shape[1] for part in parts],
            ]
        ).to(device)
        numbers = torch.arange(count, device=device).repeat_interleave(
            table[2], output_size=sources.shape[0]
        )
        columns, column_of_edge = distinct(sources + table[0][numbers], source_starts[-1])
        rows = (rows + table[1][numbers]).mul_(count).add_(numbers)
        pairs, row_of_edge = distinct(rows, type_starts[-1] * count)
        indptr, indices, _ = group_by(
            row_of_edge, column_of_edge, pairs.shape[0], columns.shape[0], row_of_edge.dtype
        )
        self.matrix = CsrMatrix(indptr, indices, columns.shape[0], max_chunks=count_chunks(indptr))
        """The edges."""
        destinations, numbers = pairs // count, pairs % count
        column_cuts, row_cuts = cuts_of(columns, source_starts), cuts_of(destinations, type_starts)
        last = destinations[(row_cuts[1:] - 1).clamp(min=0)] if pairs.shape[0] else row_cuts[1:]
        bounds: list[int] = torch.cat([column_cuts, row_cuts, last]).tolist()
        self.column_cuts = bounds[: count + 1]
        """The first column of each relation, and the number of columns."""
        firsts = bounds[count + 1 : -len(sizes)]
        self.sizes = [
            bounds[i - len(sizes)] - type_starts[i] + 1 if first < end else 0
            for i, (first, end) in enumerate(pairwise(firsts))
        ]
        """For each node type, the destinations up to the last one that has edges."""
        lengths = [end - first for first, end in pairwise(self.column_cuts)]
        starts = table[0].repeat_interleave(
            torch.tensor(lengths).to(device), output_size=columns.shape[0]
        )
        self.sources = list(torch.split(columns - starts, lengths))
        """For each relation, the distinct sources that have edges, in ascending order."""
        first_of_type = [0, *accumulate(self.sizes)]
        scores, first_score = [[0] * count, [0] * count], 0
        for node_type, chosen in enumerate(self.by_destination):
            places = self.score_places(node_type)
            for place, i in enumerate(chosen):
                scores[0][i], scores[1][i] = first_score + place, places
            first_score += self.sizes[node_type] * places
        self.num_scores = first_score
        """The scores of destinations, unused places included: for each of the first :attr:`sizes`
        nodes of each type, :meth:`score_places`."""
        by_relation = torch.tensor([[first_of_type[each] for each in of_relation], *scores])
        shift, score, step = by_relation.to(device)[:, numbers]
        local = destinations - table[1][numbers]
        self.owners = local + shift
        """[rows] the destination of each row, counting the first :attr:`sizes` of each type, type
        after type."""
        self.score_rows = score + local * step
        """[rows] the place of each row's score among all scores of destinations."""
        indptr = indptr_from_sorted(self.owners, first_of_type[-1], indices.dtype)
        columns = torch.arange(self.owners.shape[0], dtype=indices.dtype, device=device)
        # A destination has a row for each relation at most.
        most_chunks = None if count > Schedule.long_row else 0
        self.sums = CsrMatrix(indptr, columns, columns.shape[0], max_chunks=most_chunks)
        """Adds up the rows of each destination."""
        if gradients:
            self.matrix.transpose()

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
        matrices = [self.matrix, self.sums]
        if self.matrix.has_transpose:
            matrices.append(self.matrix.transpose())
        lists = [tensor for each in matrices for tensor in (each.indptr, each.indices)]
        ids = [each.edge_ids for each in matrices if each.edge_ids is not None]
        return [*lists, *ids, *self.sources, self.owners, self.score_rows]


def check_relation(
    name: str, relation: Relation, size: int, device: torch.device, values: bool
) -> None:
    """Raises what :class:`TypedEdges` raises for a relation; `values`: verify ids, too."""
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


def distinct(keys: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Returns the distinct keys, below `bound`, in ascending order, and each key's place in them,
    int32 if that is enough.

    Synchronises with a GPU.
    """
    dtype = torch.int32 if keys.shape[0] < 2**31 - 1 else torch.int64
    if bound > _FEW_KEYS + _KEYS_PER_EDGE * keys.shape[0]:
        distinct, places = torch.unique(keys, return_inverse=True)
        return distinct, places.to(dtype)
    flags = torch.zeros(bound, dtype=torch.bool, device=keys.device)
    flags.index_fill_(0, keys, True)
    distinct = flags.nonzero().flatten()
    places = torch.cumsum(flags, 0, dtype=dtype)
    return distinct, places[keys].sub_(1)


def cuts_of(ordered: Tensor, starts: list[int]) -> Tensor:
    """Returns how many of the ordered keys are below each start."""
    return torch.searchsorted(ordered, torch.tensor(starts).to(ordered.device))

"""The edges of several relations as one matrix whose columns are pairs of a source and a relation.

The rows of the columns have been multiplied: they are rows of products of features, or of the
weights themselves where nodes have no features. A row of the matrix is a destination, so that one
kernel adds up all relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix, tensors_of
from peergraph.aggregate.sparse.index_tensors import (
    check_ids,
    check_range,
    distinct,
    group_by,
    on_device,
)
from peergraph.aggregate.sparse.relation_blocks import destinations_with_edges, source_position
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation


class RelationColumns:
    """The edges of several relations; edge tensors are in the order of relations and edges.

    Args:
        columns, destinations, numbers: [edges] int64: of each edge its column, its row and its
            relation.
        num_columns: bound of `columns`.
        rows: the number of rows of each result, one after the other.
        num_relations: bound of `numbers`.
        num_edges: of each relation, if edges are in the order of relations.

    Synchronises with the stream of a GPU.
    """

    def __init__(
        self,
        columns: Tensor,
        destinations: Tensor,
        numbers: Tensor,
        num_columns: int,
        rows: list[int],
        num_relations: int,
        num_edges: list[int] | None = None,
    ) -> None:
        self.rows = rows
        """For each result, the destinations that it has."""
        self.num_edges = [len(columns)] if num_edges is None else num_edges
        """The edges of each relation, one after the other."""
        num_rows = sum(rows)
        small = max(num_columns, num_rows, len(columns)) < 2**31 - 1
        dtype = torch.int32 if small else torch.int64
        indptr, indices, order = group_by(
            destinations.to(dtype), columns.to(dtype), num_rows, num_columns, dtype
        )
        self.matrix = EdgeMatrix(
            indptr, indices, num_columns, edge_ids=order, max_chunks=count_chunks(indptr)
        )
        """The edges."""
        pairs, places = distinct(numbers * num_rows + destinations, num_relations * num_rows)
        counts = torch.bincount(places, minlength=len(pairs))
        self._counts = counts[places.long()]
        self._weights: dict[torch.dtype, Tensor] = {}

    @classmethod
    def of_ids(
        cls,
        edge_index: Tensor,
        edge_type: Tensor,
        ids: Tensor | None,
        num_relations: int,
        num_ids: int,
        num_sources: int,
        num_destinations: int,
    ) -> RelationColumns:
        """Makes the matrix of edges that have types; column ``relation * num_ids + id``.

        Args:
            edge_index: [2, edges] int32 or int64.
            edge_type: [edges] int32 or int64: the relation of each edge.
            ids: [sources] int32 or int64: the id of each source; None: its number.
            num_relations, num_ids: bounds of types and ids.
            num_sources, num_destinations: bounds of the two rows of `edge_index`.

        Raises:
            TypeError, ValueError: a tensor of another dtype, shape or device.
            IndexError: the first type, id or edge out of range.
        """
        device = edge_index.device
        check_relation("relation", Relation(edge_index, num_sources, 0), num_destinations, device,
                       values=True)  # fmt: skip
        check_ids("edge_type", edge_type, device, edge_index.shape[1])
        check_range("edge_type", edge_type, num_relations, "relations")
        sources, destinations = edge_index.long()
        types = edge_type.long()
        if ids is not None:
            check_ids("ids", ids, device, num_sources)
            check_range("ids", ids, num_ids, "ids")
            sources = ids.long()[sources]
        elif num_sources > num_ids:
            raise ValueError(f"there are {num_sources} sources, but {num_ids} ids")
        num_columns = num_relations * num_ids
        columns = types * num_ids + sources
        return cls(columns, destinations, types, num_columns, [num_destinations], num_relations)

    @classmethod
    def of_relations(
        cls,
        relations: Sequence[Relation],
        num_rows: Sequence[int],
        sizes: Sequence[int],
        *,
        check: bool = True,
        gradients: bool = False,
    ) -> RelationColumns:
        """Makes the matrix of relations; the relations of each of the features are side by side.

        Column ``first + source * relations of the features + place of the relation``, where all
        columns of one of the features follow those of the one before.

        Args:
            relations, num_rows, sizes, check, gradients: as for :class:`RelationBlocks`.

        Raises:
            TypeError, ValueError, IndexError: as :class:`RelationBlocks`.
        """
        device = relations[0].edge_index.device
        for i, each in enumerate(relations):
            check_relation(f"relations[{i}]", each, sizes[each.destinations], device, values=check)
        rows = destinations_with_edges(relations, sizes)
        places, counts = [], [0] * len(num_rows)
        for each in relations:
            places.append(counts[source_position(each)])
            counts[source_position(each)] += 1
        firsts = [0, *accumulate(n * k for n, k in zip(num_rows, counts, strict=True))]
        first_rows = [0, *accumulate(rows)]
        lengths = [each.edge_index.shape[1] for each in relations]
        of_relations = [
            [
                firsts[source_position(each)] + place
                for each, place in zip(relations, places, strict=True)
            ],
            [counts[source_position(each)] for each in relations],
            [first_rows[each.destinations] for each in relations],
            lengths,
        ]
        table = on_device(of_relations, device)
        numbers = torch.arange(len(relations), device=device).repeat_interleave(
            table[3], output_size=sum(lengths)
        )
        ends = torch.cat([each.edge_index.long() for each in relations], 1)
        columns = torch.addcmul(table[0][numbers], ends[0], table[1][numbers])
        destinations = ends[1] + table[2][numbers]
        edges = cls(columns, destinations, numbers, firsts[-1], rows, len(relations), lengths)
        if gradients:
            edges.matrix.transpose()
        return edges

    def mean_weights(self, dtype: torch.dtype) -> Tensor:
        """Returns [edges] of `dtype`: one by the edges of the same destination and relation."""
        if dtype not in self._weights:
            self._weights[dtype] = self._counts.to(torch.float64).reciprocal_().to(dtype)
        return self._weights[dtype]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        return [*tensors_of([self.matrix]), self._counts]

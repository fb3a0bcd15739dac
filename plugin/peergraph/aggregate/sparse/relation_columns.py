"""The edges of several relations as one matrix whose columns are a row for each relation.

Where nodes have no features, a weight has a row for each node: the message of an edge is the row of
its source in the weight of its relation, and nothing is multiplied.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.aggregate.sparse.index_tensors import check_ids, check_range, group_by
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation, distinct


class RelationColumns:
    """The edges of several relations. Column ``relation * num_ids + id`` is an id of a relation.

    Args:
        edge_index: [2, edges] int32 or int64.
        edge_type: [edges] int32 or int64: the relation of each edge.
        ids: [sources] int32 or int64: the id of each source; None: its number.
        num_relations, num_ids: bounds of types and ids.
        num_sources, num_destinations: bounds of the two rows of `edge_index`.

    Synchronises with the stream of a GPU.

    Raises:
        TypeError, ValueError: a tensor of another dtype, shape or device.
        IndexError: the first type, id or edge out of range.
    """

    def __init__(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        ids: Tensor | None,
        num_relations: int,
        num_ids: int,
        num_sources: int,
        num_destinations: int,
    ) -> None:
        device = edge_index.device
        relation = Relation(edge_index, num_sources, 0)
        check_relation("relation", relation, num_destinations, device, True)
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
        small = max(num_columns, num_destinations, len(types)) < 2**31 - 1
        dtype = torch.int32 if small else torch.int64
        indptr, indices, order = group_by(
            destinations.to(dtype),
            (types * num_ids + sources).to(dtype),
            num_destinations,
            num_columns,
            dtype,
        )
        self.matrix = CsrMatrix(
            indptr, indices, num_columns, edge_ids=order, max_chunks=count_chunks(indptr)
        )
        """The edges; edge tensors are in the order of the edge index."""
        pairs, places = distinct(
            types * num_destinations + destinations, num_relations * num_destinations
        )
        counts = torch.bincount(places, minlength=len(pairs))
        self._counts = counts[places.long()]
        self._weights: dict[torch.dtype, Tensor] = {}

    def mean_weights(self, dtype: torch.dtype) -> Tensor:
        """Returns [edges] of `dtype`: one by the edges of the same destination and relation."""
        if dtype not in self._weights:
            self._weights[dtype] = self._counts.to(torch.float64).reciprocal_().to(dtype)
        return self._weights[dtype]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        matrix = self.matrix
        assert matrix.edge_ids is not None
        return [matrix.indptr, matrix.indices, matrix.edge_ids, self._counts]

"""The edges of a partitioned structure by the rank of their source."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.fullgraph.exchange.side_by_side import run_alone
from peergraph.fullgraph.layout.edge_share import PIECE_EDGES
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_delivery import EdgeDelivery
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc


class ReversedEdges:
    """Sends each edge to the rank of its source. Collective; synchronises.

    It takes 4 bytes for each edge and 8 for each source, and while it is made 8 more for each
    source and the memory of one piece of edges.

    Args:
        structure: edges by destination, whose edge tensors are sorted by destination.
    """

    def __init__(self, structure: PartitionedCsc) -> None:
        sources, destinations = structure.source_layout, structure.destination_layout
        group, local, halo = sources.group, structure.local, structure.plan.halo_rows
        num_local, rank = structure.plan.num_local, group.rank

        def source_of_piece(number: int) -> Tensor:
            rows = local.indices[_piece(number)]
            if group.world_size == 1:
                return rows
            own = torch.where(rows < num_local, rows + sources.offsets[rank], 0)
            is_halo = (rows >= num_local).nonzero().squeeze(1)
            own = own.long()
            own[is_halo] = halo[rows[is_halo].long() - num_local]
            return own

        def destination_of_piece(number: int) -> Tensor:
            return _rows_of_piece(local, number) + destinations.offsets[rank]

        num_pieces = -(-local.num_edges // PIECE_EDGES)
        self._group = group
        self._delivery = run_alone(group, EdgeDelivery.steps(sources, num_pieces, source_of_piece))
        plan, csc = run_alone(
            group, self._delivery.deliver_sources(destinations, destination_of_piece)
        )
        counts = group.all_gather(csc.num_edges)
        edge_layout = RowLayout(
            group, counts, lambda: self.exchange_rows(structure.edge_layout.positions)
        )
        self.structure = PartitionedCsc(
            destinations, sources, edge_layout, plan, csc, structure.mode_choice
        )
        """Edges to the sources of the given structure from its destinations."""

    def exchange_rows(self, rows: Tensor) -> Tensor:
        """Returns rows [local edges, ...] of the given structure in the reversed one's order.

        Collective.
        """
        result = rows.new_empty((self._delivery.num_edges, *rows.shape[1:]))
        run_alone(
            self._group, self._delivery.deliver([lambda number: rows[_piece(number)]], [result])
        )
        return result


def _piece(number: int) -> slice:
    return slice(number * PIECE_EDGES, (number + 1) * PIECE_EDGES)


def _rows_of_piece(matrix: EdgeMatrix, number: int) -> Tensor:
    """Returns the row of each edge of a piece."""
    begin = number * PIECE_EDGES
    positions = torch.arange(
        begin, min(begin + PIECE_EDGES, matrix.num_edges), device=matrix.device
    )
    ends = matrix.indptr[1:]
    return torch.searchsorted(ends, positions.to(ends.dtype), right=True)

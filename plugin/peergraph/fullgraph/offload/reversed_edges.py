"""The edges of a partitioned structure by the rank of their source."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate import row_of_edges
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc


class ReversedEdges:
    """Sends each edge to the rank of its source. Collective; synchronises.

    Args:
        structure: edges by destination, whose edge tensors are sorted by destination.
    """

    def __init__(self, structure: PartitionedCsc) -> None:
        sources, destinations = structure.source_layout, structure.destination_layout
        group, plan, local = sources.group, structure.plan, structure.local
        self._transport = plan.transport
        rank = group.rank
        rows = row_of_edges(local.indptr, local.num_edges) + destinations.offsets[rank]
        own = torch.arange(plan.num_local, device=rows.device) + sources.offsets[rank]
        internal = torch.cat([own, plan.halo_rows])[local.indices]
        starts = torch.tensor(sources.offsets, device=rows.device)
        # Ranks without rows start where the next one does: the last of these has the row.
        owner = torch.searchsorted(starts, internal, right=True) - 1
        self._order = torch.sort(owner, stable=True).indices
        self._sent = torch.bincount(owner, minlength=group.world_size).tolist()
        self._received = [sent[rank] for sent in group.all_gather(self._sent)]
        edges = torch.stack([internal - starts[owner], rows], 1)
        edges = self._exchange(edges[self._order])
        self._place = torch.sort(edges[:, 0], stable=True).indices
        source, destination = (column.contiguous() for column in edges[self._place].unbind(1))
        counts = group.all_gather(len(source))
        edge_layout = RowLayout(
            group, counts, lambda: self.exchange_rows(structure.edge_layout.positions)
        )
        self.structure = PartitionedCsc.from_local_edges(
            destinations, sources, edge_layout, destination, source, mode=structure.mode
        )
        """Edges to the sources of the given structure from its destinations."""

    def exchange_rows(self, rows: Tensor) -> Tensor:
        """Returns rows [local edges, ...] of the given structure in the reversed one's order.

        Collective.
        """
        return self._exchange(rows[self._order])[self._place]

    def _exchange(self, rows: Tensor) -> Tensor:
        received = rows.new_empty((sum(self._received), *rows.shape[1:]))
        self._transport.all_to_all(
            list(torch.split(received, self._received)), list(torch.split(rows, self._sent))
        )
        return received

"""DGL's graph index over relations that are partitioned over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dgl.backend as F
import torch
from dgl.graph_index import from_coo
from torch import Tensor

from peergraph.fullgraph import RowLayout, from_local

from ..backend.graph_index import GraphIndex, unit_metagraph
from .partitioned_edges import PartitionedEdges


class PartitionedIndex(GraphIndex[PartitionedEdges]):
    """A graph's structure, partitioned over the ranks, with methods of DGL's HeteroGraphIndex.

    DGL's graph classes use it unchanged. Methods that would need all edges on one rank raise
    NotImplementedError.

    Args:
        metagraph: DGL's graph of node types (nodes) and relations (edges).
        layouts: the rows of each node type.
        edge_lists: the edges of each relation.
        device: of this rank's rows.
        idtype: dtype of node ids and degrees: int32 or int64.
    """

    def __init__(
        self,
        metagraph: Any,
        layouts: Sequence[RowLayout],
        edge_lists: Sequence[PartitionedEdges],
        device: torch.device,
        idtype: torch.dtype,
    ) -> None:
        super().__init__(metagraph, [layout.size for layout in layouts], edge_lists)
        self.layouts = list(layouts)
        self._device = device
        self.idtype = idtype

    def __reduce__(self) -> Any:
        raise NotImplementedError(
            "a partitioned graph is not pickled: save the DGLGraph that peergraph_dgl.full_graph() "
            "was called with"
        )

    def _describe(self) -> str:
        return (
            "a partitioned graph, of which each rank holds a part: do it on the DGLGraph before "
            "peergraph_dgl.full_graph()"
        )

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> str:
        return "int32" if self.idtype == torch.int32 else "int64"

    def edges(self, etype: int, order: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The user's ids of sources, destinations and edges, partitioned as features of edges.

        Rows of partitioned tensors have no other order than that of the edge ids. They are copies:
        writes to them do not change the graph.
        """
        if order not in (None, "eid"):
            raise NotImplementedError(f"edges in the order {order!r} of {self._describe()}")
        edges = self.edge_lists[etype]
        layout = edges.structure.edge_layout
        ids = from_local(layout.positions.to(self.idtype, copy=True), layout)
        source, destination = edges.ends()
        return source.clone(), destination.clone(), ids

    def get_relation_graph(self, etype: int) -> PartitionedIndex:
        source, destination = self.metagraph.find_edge(etype)
        ends = [source] if source == destination else [source, destination]
        return PartitionedIndex(
            unit_metagraph(len(ends)),
            [self.layouts[end] for end in ends],
            [self.edge_lists[etype]],
            self._device,
            self.idtype,
        )

    def reverse(self) -> PartitionedIndex:
        sources, destinations = self._ends()
        return PartitionedIndex(
            from_coo(len(self.layouts), destinations, sources, True),
            self.layouts,
            [edges.reverse() for edges in self.edge_lists],
            self._device,
            self.idtype,
        )

    def asbits(self, bits: int) -> PartitionedIndex:
        idtype = {32: torch.int32, 64: torch.int64}[bits]
        if idtype == self.idtype:
            return self
        edge_lists = [PartitionedEdges(edges.structure, idtype) for edges in self.edge_lists]
        return PartitionedIndex(self.metagraph, self.layouts, edge_lists, self._device, idtype)

    def copy_to(self, ctx: Any) -> PartitionedIndex:
        self.check_device(F.to_backend_ctx(ctx))
        return self

    def check_device(self, device: torch.device) -> None:
        """Raises NotImplementedError unless the graph is on `device`."""
        if device.type != self._device.type or device.index not in (None, self._device.index):
            raise NotImplementedError(
                f"a partitioned graph stays on {self._device}, the device of this rank's group: "
                f"pass a group of another device to peergraph_dgl.full_graph(), got {device}"
            )

    def record_stream(self, stream: torch.cuda.Stream) -> PartitionedIndex:
        """Has no effect: the structure lives as long as the graph."""
        return self

"""Builds DGL graphs from edges of a store."""

from __future__ import annotations

from collections.abc import Mapping

import dgl
import torch
from dgl import DGLGraph
from torch import Tensor

from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store

from .frames import FrameCache, select_rows


class SubgraphBuilder:
    """Builds DGL graphs of some of a store's edges, with their data.

    Args:
        store: the store.
        frames: the data of all nodes and edges.
        idtype: id type of the graphs.
    """

    def __init__(self, store: Store, frames: FrameCache, idtype: torch.dtype) -> None:
        self._store = store
        self._frames = frames
        self._idtype = idtype

    def build(
        self,
        edges: Mapping[EdgeType, tuple[Tensor, Tensor, Tensor]],
        nodes: Mapping[NodeType, Tensor] | None = None,
        store_ids: bool = True,
    ) -> DGLGraph:
        """Builds a graph of the given edges and nodes.

        Args:
            edges: sources, destinations and edge ids by relation; sources and destinations are
                positions in `nodes`.
            nodes: node ids by type; None: all nodes.
            store_ids: whether the graph gets the ids as ``dgl.NID`` and ``dgl.EID``.
        """
        counts = {
            t: self._store.num_nodes(t) if nodes is None else nodes[t].numel()
            for t in self._store.node_types
        }
        graph = _graph(edges, counts, self._idtype)
        for i, edge_type in enumerate(graph.canonical_etypes):
            frame = self._frames.frame(edge_type, self._store.num_edges(edge_type))
            ids = edges[edge_type][2].to("cpu", self._idtype)
            graph._edge_frames[i] = select_rows(frame, ids, dgl.EID if store_ids else None)
        for i, node_type in enumerate(graph.ntypes):
            frame = self._frames.frame(node_type, self._store.num_nodes(node_type))
            if nodes is None:
                graph._node_frames[i] = frame.clone()
            else:
                ids = nodes[node_type].to(self._idtype)
                graph._node_frames[i] = select_rows(frame, ids, dgl.NID if store_ids else None)
        return graph


def _graph(
    edges: Mapping[EdgeType, tuple[Tensor, Tensor, Tensor]],
    counts: Mapping[NodeType, int],
    idtype: torch.dtype,
) -> DGLGraph:
    if list(edges) == [EDGE] and list(counts) == [NODE]:
        source, destination, _ = edges[EDGE]
        ends = source.cpu(), destination.cpu()
        return dgl.graph(ends, num_nodes=counts[NODE], idtype=idtype)
    pairs = {t: (source.cpu(), destination.cpu()) for t, (source, destination, _) in edges.items()}
    return dgl.heterograph(pairs, num_nodes_dict=dict(counts), idtype=idtype)

"""DGL graphs of parts of a store, in the id type that the user wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dgl
import torch
from dgl import DGLGraph
from torch import Tensor

from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store

from ..loader.blocks import rows_of
from .views import Frames


class IdTypes:
    """The methods of ``DGLGraph`` that convert ids, for a graph over a store."""

    store: Store

    def int(self) -> Any:
        """The same graph with ids of int32; ``ValueError`` if they do not fit."""
        return type(self)(self.store, checked_idtype(self.store, torch.int32))  # type: ignore[call-arg]

    def long(self) -> Any:
        """The same graph with ids of int64."""
        return type(self)(self.store, torch.int64)  # type: ignore[call-arg]


def checked_idtype(store: Store, idtype: Any) -> torch.dtype:
    if idtype not in (torch.int32, torch.int64):
        raise ValueError(f"idtype: expected torch.int32 or torch.int64, got {idtype!r}")
    largest = max(
        *(store.num_nodes(t) for t in store.node_types),
        *(store.num_edges(t) for t in store.edge_types),
        0,
    )
    if largest > torch.iinfo(idtype).max:
        raise ValueError(f"idtype: {idtype} cannot count {largest} nodes or edges of one type")
    checked: torch.dtype = idtype
    return checked


class Parts:
    """Makes graphs of some of the edges, with their data.

    Args:
        store: what they are parts of.
        frames: its data.
        idtype: of the graphs.
    """

    def __init__(self, store: Store, frames: Frames, idtype: torch.dtype) -> None:
        self._store = store
        self._frames = frames
        self._idtype = idtype

    def graph(
        self,
        edges: Mapping[EdgeType, tuple[Tensor, Tensor, Tensor]],
        nodes: Mapping[NodeType, Tensor] | None = None,
        store_ids: bool = True,
    ) -> DGLGraph:
        """A DGL graph of (sources, destinations, edge ids) by relation, with their data.

        Args:
            edges: sources and destinations are positions in `nodes`.
            nodes: ids; None: all nodes.
            store_ids: whether ids are data, too.
        """
        counts = {
            t: self._store.num_nodes(t) if nodes is None else nodes[t].numel()
            for t in self._store.node_types
        }
        graph = _graph(edges, counts, self._idtype)
        for i, edge_type in enumerate(graph.canonical_etypes):
            whole = self._frames.of(edge_type, self._store.num_edges(edge_type))
            ids = edges[edge_type][2].to("cpu", self._idtype)
            graph._edge_frames[i] = rows_of(whole, ids, dgl.EID if store_ids else None)
        for i, node_type in enumerate(graph.ntypes):
            whole = self._frames.of(node_type, self._store.num_nodes(node_type))
            graph._node_frames[i] = (
                whole.clone()
                if nodes is None
                else rows_of(
                    whole, nodes[node_type].to(self._idtype), dgl.NID if store_ids else None
                )
            )
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

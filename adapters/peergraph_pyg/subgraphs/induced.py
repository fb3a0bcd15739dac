"""Induced subgraphs of shared data: only their own edges are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import select

from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, NODE, EdgeType, NodeType

from ..compat import data_storage, storage_data, storage_values
from ..data.sparse_adjacency import ADJACENCY_KEYS, ADJACENCY_TYPES
from ..data.store_of import has_shared_structure, store_of
from ..node_masks import to_ids

Arrange = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Returns the order of edges, of their sources and targets (as positions) and their ids."""


def by_edge_id(row: Tensor, col: Tensor, edge_ids: Tensor) -> Tensor:
    """Orders edges by their ids, as PyG's ``data.subgraph``."""
    return edge_ids.argsort()


class InducedSubgraphs:
    """Makes subgraphs of shared data, equal to those of PyG's ``data.subgraph``.

    Args:
        data: ``Data`` or ``HeteroData`` returned by :func:`peergraph_pyg.share`.
    """

    def __init__(self, data: Data | HeteroData) -> None:
        self.data = data
        self.core = NeighborSampler(store_of(data), [], subgraph="induced")

    def __call__(self, nodes: Mapping[NodeType, Tensor]) -> Data | HeteroData:
        """Returns the data of some nodes, with all edges among them in the order of edge ids.

        Args:
            nodes: distinct ids of nodes, by node type.
        """
        return self.with_edge_ids(nodes)[0]

    def with_edge_ids(
        self,
        nodes: Mapping[NodeType, Tensor],
        arrange: Arrange | None = by_edge_id,
    ) -> tuple[Data | HeteroData, dict[EdgeType, Tensor]]:
        """Does the same as a call; also returns the edge ids by edge type.

        Args:
            nodes: distinct ids of nodes, by node type.
            arrange: orders edges; None: by target, and of a target by their ids.
        """
        sample = self.core.sample(nodes, 0)
        assert sample.edge_ids is not None
        edges = {}
        for edge_type, _ in _edge_storages(self.data):
            row, col = sample.row[edge_type], sample.col[edge_type]
            edge_ids = sample.edge_ids[edge_type]
            if arrange is not None:
                order = arrange(row, col, edge_ids)
                row, col, edge_ids = row[order], col[order], edge_ids[order]
            edges[edge_type] = row, col, edge_ids
        sizes = {t: (sample.nodes[t[0]].numel(), sample.nodes[t[2]].numel()) for t in edges}
        ids_of_type = {edge_type: edge_ids for edge_type, (_, _, edge_ids) in edges.items()}
        return self.data_of(sample.nodes, edges, sizes), ids_of_type

    def data_of(
        self,
        nodes: Mapping[NodeType, Tensor],
        edges: Mapping[EdgeType, tuple[Tensor, Tensor, Tensor]],
        sizes: Mapping[EdgeType, tuple[int, int]],
    ) -> Data | HeteroData:
        """Returns the data of some nodes and some edges.

        Args:
            nodes: ids of nodes, by node type.
            edges: rows and columns of the result's ``edge_index``, and ids, by edge type.
            sizes: the numbers of rows and columns that there may be, by edge type.
        """
        result = copy.copy(self.data)
        for node_type, storage in _node_storages(self.data):
            ids = nodes[node_type]
            _select_rows(storage, _part(result, node_type), "num_nodes", storage.is_node_attr, ids)
        for edge_type, storage in _edge_storages(self.data):
            row, col, edge_ids = edges[edge_type]
            part = _part(result, edge_type)
            _select_rows(storage, part, "num_edges", storage.is_edge_attr, edge_ids)
            if "edge_index" in storage:
                part["edge_index"] = torch.stack([row, col])
            for key in ADJACENCY_KEYS:
                matrix = storage_values(storage).get(key)
                if isinstance(matrix, ADJACENCY_TYPES):
                    layout = matrix.sparse_layout
                    part[key] = layout.of_batch(matrix.store, row, col, edge_ids, sizes[edge_type])
        return result


def subgraph(original: Any, data: Data | HeteroData, subset: Any) -> Any:
    """PyG's ``data.subgraph(subset)``; of shared data, without reading the other edges."""
    if not has_shared_structure(data):
        return original(data, subset)
    nodes = subset if isinstance(data, HeteroData) else {NODE: subset}
    if nodes.keys() != {t for t, _ in _node_storages(data)}:
        return original(data, subset)
    store = store_of(data)
    ids = {t: to_ids("subset", some, store.num_nodes(t), t) for t, some in nodes.items()}
    if not all(_are_distinct(of_type) for of_type in ids.values()):
        return original(data, subset)
    return InducedSubgraphs(data)(ids)


def _are_distinct(ids: Tensor) -> bool:
    return bool(torch.unique(ids).numel() == ids.numel())


def _select_rows(
    storage: Any, part: Any, count: str, has_rows: Callable[[str], bool], ids: Tensor
) -> None:
    """Writes the rows `ids` of a storage's attributes to its part of the result."""
    for key, value in storage.items():
        if key == count:
            part[key] = ids.numel()
        elif key != "edge_index" and key not in ADJACENCY_KEYS and has_rows(key):
            dim = storage_data(storage).__cat_dim__(key, value, storage)
            index = ids.to(value.device) if isinstance(value, Tensor) else ids.cpu()
            part[key] = select(value, index, dim=dim)


def _part(data: Any, kind: Any) -> Any:
    return data_storage(data) if isinstance(data, Data) else data[kind]


def _node_storages(data: Any) -> list[tuple[Any, Any]]:
    return [(NODE, data_storage(data))] if isinstance(data, Data) else list(data.node_items())


def _edge_storages(data: Any) -> list[tuple[Any, Any]]:
    return [(EDGE, data_storage(data))] if isinstance(data, Data) else list(data.edge_items())

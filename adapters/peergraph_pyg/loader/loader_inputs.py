"""The nodes or links that a loader starts from, as PyG takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from peergraph.store import Store

from ..compat import canonical_edge_type, data_storage
from ..data.sparse_adjacency import ADJACENCY_KEYS
from ..node_masks import check_mask, is_mask, without_bools_as_ids
from .filter_batch import adjacencies


def complete_inputs(options: dict[str, Any], store: Store) -> None:
    """Completes the nodes or links among a loader's options, which PyG takes in fewer forms.

    Args:
        options: of a loader over shared data.
        store: of the data.

    Raises:
        TypeError: a mask of links; bools among ids.
        ValueError: no type where the graph has types; a mask of other nodes; links without pairs.
    """
    data = options["data"]
    if "node_sampler" in options:
        nodes = _without_bools("input_nodes", options.get("input_nodes"))
        options["input_nodes"] = _complete_nodes(data, nodes, options.get("input_id"), store)
    else:
        links = _without_bools("edge_label_index", options.get("edge_label_index"))
        options["edge_label_index"] = _complete_links(data, links, store)


def _without_bools(name: str, value: Any) -> Any:
    """Makes tensors of masks in an argument, which may be a pair of a type and ids or a mask."""
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], str):
        return value[0], _without_bools(name, value[1])
    value = without_bools_as_ids(name, value)
    if name == "edge_label_index" and is_mask(value):
        raise TypeError(
            "edge_label_index must be [2, links] ids of nodes, got a mask: pass edge_index[:, mask]"
        )
    is_array = isinstance(value, (Tensor, np.ndarray))
    if name == "edge_label_index" and is_array and (value.ndim != 2 or len(value) != 2):
        raise ValueError(f"edge_label_index must be [2, links], has shape {tuple(value.shape)}")
    return value


def _complete_nodes(data: Any, input_nodes: Any, input_id: Any, store: Store) -> Any:
    """Completes ``input_nodes`` that PyG would reject, or with which it would ignore ``input_id``.

    Raises:
        ValueError: the graph has types, and no node type of it is given.
    """
    if not isinstance(data, HeteroData) and (isinstance(data, Data) or store.is_homogeneous):
        check_mask("input_nodes", input_nodes, store.num_nodes())
        if isinstance(data, Data) and (input_nodes is not None or input_id is None):
            return input_nodes
        if input_nodes is None:
            return torch.arange(store.num_nodes(), device="cpu")
        return torch.as_tensor(input_nodes)
    pair = isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2
    node_type, nodes = input_nodes if pair else (input_nodes, None)
    types = data.node_types if isinstance(data, HeteroData) else store.node_types
    if not isinstance(node_type, str) or node_type not in types:
        raise ValueError(
            f"input_nodes must be one of the node types {list(types)}, or a pair of a type and "
            f"its nodes, got {_brief(node_type)}"
        )
    if nodes is None and input_id is not None:
        return node_type, torch.arange(store.num_nodes(node_type), device="cpu")
    check_mask("input_nodes", nodes, store.num_nodes(node_type), node_type)
    return node_type if nodes is None else input_nodes


def _complete_links(data: Any, edge_label_index: Any, store: Store) -> Any:
    """Completes an ``edge_label_index`` that means all edges, if PyG would not find them.

    Raises:
        ValueError: the graph has types and no edge type is given, or the type has no edges.
    """
    if isinstance(data, Data):
        storage = data_storage(data)
        if edge_label_index is None and not _has_edges(storage):
            raise ValueError("edge_label_index is needed: data has no edges")
        return (
            store.edge_index()
            if edge_label_index is None and any(adjacencies(storage))
            else edge_label_index
        )
    if not isinstance(data, HeteroData) and store.is_homogeneous:
        if isinstance(edge_label_index, (tuple, list)) and edge_label_index[0] is None:
            edge_label_index = edge_label_index[1]
        return None, store.edge_index() if edge_label_index is None else torch.as_tensor(
            edge_label_index
        )
    named, edges = None, None
    if isinstance(edge_label_index, (tuple, list)) and len(edge_label_index) > 1:
        # A type alone, a type and its edges, or nothing.
        named, edges = (
            (edge_label_index, None) if isinstance(edge_label_index[0], str) else edge_label_index
        )
    key = canonical_edge_type(data, named) if named and isinstance(data, HeteroData) else named
    types = data.edge_types if isinstance(data, HeteroData) else store.edge_types
    if key is None or (edges is None and tuple(key) not in types):
        raise ValueError(
            f"edge_label_index must be one of the edge types {list(types)}, or a pair of a type "
            f"and its edges, got {_brief(edge_label_index if named is None else named)}"
        )
    if edges is None and isinstance(data, HeteroData):
        if not _has_edges(data[key]):
            raise ValueError(f"edge_label_index is needed: {key} has no edges")
        if any(adjacencies(data[key])):
            return key, store.edge_index(key)
    return edge_label_index


def _has_edges(storage: Any) -> bool:
    return any(key in storage for key in ("edge_index", *ADJACENCY_KEYS))


def _brief(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (str, tuple)) else type(value).__name__

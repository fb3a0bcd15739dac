"""What users give loaders as inputs and fanouts, completed, or refused by the argument's name."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors

from peergraph.store import Store

from ..compat import canonical_edge_type, data_storage
from ..data.sparse_adjacency import KEYS, adjacencies


def complete_nodes(data: Any, given: Any, input_id: Any, store: Store) -> Any:
    """Gives ``input_nodes`` where PyG would reject them, or would pass over an ``input_id``.

    Raises:
        ValueError: no known node type of a graph with types.
    """
    if not isinstance(data, HeteroData) and (isinstance(data, Data) or store.is_homogeneous):
        if isinstance(data, Data) and (given is not None or input_id is None):
            return given
        return (
            torch.arange(store.num_nodes(), device="cpu")
            if given is None
            else torch.as_tensor(given)
        )
    pair = isinstance(given, (tuple, list)) and len(given) == 2
    node_type, nodes = given if pair else (given, None)
    types = data.node_types if isinstance(data, HeteroData) else store.node_types
    if not isinstance(node_type, str) or node_type not in types:
        raise ValueError(
            f"input_nodes must be one of the node types {list(types)}, or a pair of a type and "
            f"its nodes, got {_brief(node_type)}"
        )
    if nodes is None and input_id is not None:
        count = data[node_type].num_nodes if isinstance(data, HeteroData) else None
        return node_type, torch.arange(
            store.num_nodes(node_type) if count is None else count, device="cpu"
        )
    return node_type if nodes is None else given


def complete_links(data: Any, given: Any, store: Store) -> Any:
    """Gives "all edges" as ``edge_label_index`` where PyG would reject it, or look for an
    edge_index.

    Raises:
        ValueError: no edge type for a graph with types, or a type without edges.
    """
    if isinstance(data, Data):
        storage = data_storage(data)
        if given is None and not _has_edges(storage):
            raise ValueError("edge_label_index is needed: data has no edges")
        return store.edge_index() if given is None and any(adjacencies(storage)) else given
    if not isinstance(data, HeteroData) and store.is_homogeneous:
        if isinstance(given, (tuple, list)) and given[0] is None:
            given = given[1]
        return None, store.edge_index() if given is None else torch.as_tensor(given)
    named, edges = None, None
    if isinstance(given, (tuple, list)) and len(given) > 1:
        # A type alone, or a type and its edges, or nothing.
        named, edges = (given, None) if isinstance(given[0], str) else given
    key = canonical_edge_type(data, named) if named and isinstance(data, HeteroData) else named
    types = data.edge_types if isinstance(data, HeteroData) else store.edge_types
    if key is None or (edges is None and tuple(key) not in types):
        raise ValueError(
            f"edge_label_index must be one of the edge types {list(types)}, or a pair of a type "
            f"and its edges, got {_brief(given if named is None else named)}"
        )
    if edges is None and isinstance(data, HeteroData):
        if not _has_edges(data[key]):
            raise ValueError(f"edge_label_index is needed: {key} has no edges")
        if any(adjacencies(data[key])):
            return key, store.edge_index(key)
    return given


def _has_edges(storage: Any) -> bool:
    return any(key in storage for key in ("edge_index", *KEYS))


def check_num_neighbors(given: Any) -> NumNeighbors:
    """The fanouts as PyG keeps them.

    Raises:
        TypeError: no list of ints, nor a dict of such lists.
        ValueError: a number below -1.
    """
    of_pyg = isinstance(given, NumNeighbors)
    for values in [given.values, given.default or []] if of_pyg else [given]:
        for of_type in values.values() if isinstance(values, Mapping) else [values]:
            _check_fanouts(of_type, given)
    if of_pyg:
        return given
    if isinstance(given, Mapping):
        return NumNeighbors(dict(given))
    return NumNeighbors([operator.index(fanout) for fanout in given])


def _check_fanouts(of_type: Any, given: Any) -> None:
    try:
        fanouts = [operator.index(fanout) for fanout in of_type]
    except TypeError:
        raise TypeError(
            f"num_neighbors must be a list of ints, or a dict of such lists, got {given!r}"
        ) from None
    if any(fanout < -1 for fanout in fanouts):
        raise ValueError(
            f"num_neighbors must be -1 (all), 0 or more in each hop, got {list(of_type)}"
        )


def _brief(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (str, tuple)) else type(value).__name__

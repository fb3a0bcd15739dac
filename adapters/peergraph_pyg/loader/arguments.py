"""Checks and completes arguments of loaders: inputs, fanouts, and names of weights and times."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors

from peergraph.store import NODE, EdgeType, NodeType, Store, TableTensor

from ..compat import canonical_edge_type, data_storage
from ..data.feature_store import FeatureStore
from ..data.sparse_adjacency import KEYS, adjacencies

Times = Tensor | dict[NodeType, Tensor]


def complete_nodes(data: Any, given: Any, input_id: Any, store: Store) -> Any:
    """Completes ``input_nodes`` that PyG would reject, or with which it would ignore ``input_id``.

    Raises:
        ValueError: a graph with types, and no node type of it.
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
    """Completes an ``edge_label_index`` that stands for all edges where PyG would not find them.

    Raises:
        ValueError: a graph with types and no edge type, or a type without edges.
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
        # A type alone, a type and its edges, or nothing.
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
    """The fanouts as a ``NumNeighbors`` of PyG.

    Raises:
        TypeError: neither a list of ints nor a dict of such lists.
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


def weight_tables(data: Any, name: str) -> dict[EdgeType, str]:
    """The name of the table of weights by edge type, for types that have the attribute.

    Raises:
        ValueError: no edge type has the attribute, or it was not shared.
    """
    found = list(_shared_tensors(data, name))
    tables = {t.owner: t.table_name for t in found if isinstance(t.owner, tuple)}
    if not tables:
        if found and isinstance(data, Data) and data.num_nodes == data.num_edges:
            # PyG decides so, for batches too.
            raise ValueError(
                f"weight_attr: {name!r} is taken for an attribute of nodes, of which there are as "
                "many as edges; a name with 'edge' in it says what it is"
            )
        raise ValueError(f"weight_attr: no edge type has an attribute {name!r}")
    return tables


def time_tables(data: Any, name: str) -> tuple[dict[NodeType, str], dict[EdgeType, str]]:
    """The names of the tables of times, by node type or else by edge type.

    Raises:
        ValueError: neither nodes nor edges have the attribute, or both, or it was not shared.
    """
    found = list(_shared_tensors(data, name))
    of_nodes = {t.owner: t.table_name for t in found if isinstance(t.owner, str)}
    of_edges = {t.owner: t.table_name for t in found if isinstance(t.owner, tuple)}
    if of_nodes and of_edges:
        raise ValueError(f"time_attr: {name!r} is an attribute of nodes and of edges")
    if not found:
        raise ValueError(f"time_attr: neither nodes nor edges have an attribute {name!r}")
    return of_nodes, of_edges


def _shared_tensors(data: Any, name: str) -> Iterator[TableTensor]:
    if not isinstance(data, (Data, HeteroData)):
        features: FeatureStore = data[0]
        yield from features.named(name)
        return
    for storage in data.stores:
        if name not in storage:
            continue
        value = storage[name]
        if not isinstance(value, TableTensor):
            kind = type(value).__name__
            raise ValueError(f"{name!r} must be an attribute that was shared, got {kind}")
        yield value


def times_for_negatives(times: dict[NodeType, Any], homogeneous: bool) -> Times:
    """Times of nodes on the CPU, where PyG's negative sampling looks them up."""
    on_cpu = {t: v if v.device.type == "cpu" else v.whole().cpu() for t, v in times.items()}
    vectors = {t: v.reshape(-1) if v.dim() > 1 else v for t, v in on_cpu.items()}
    return vectors[NODE] if homogeneous else vectors


def _brief(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (str, tuple)) else type(value).__name__

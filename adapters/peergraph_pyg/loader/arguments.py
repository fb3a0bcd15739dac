"""Checks arguments of the sampler: fanouts, and names of weights and times."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors

from peergraph.store import NODE, EdgeType, NodeType, Store, TableTensor

from ..data.feature_store import FeatureStore

Times = Tensor | dict[NodeType, Tensor]


def check_num_neighbors(num_neighbors: Any) -> NumNeighbors:
    """Returns the fanouts as a ``NumNeighbors`` of PyG.

    Raises:
        TypeError: neither a list of ints nor a dict of such lists.
        ValueError: a number below -1.
    """
    is_pyg = isinstance(num_neighbors, NumNeighbors)
    for values in (
        [num_neighbors.values, num_neighbors.default or []] if is_pyg else [num_neighbors]
    ):
        for of_type in values.values() if isinstance(values, Mapping) else [values]:
            _check_fanouts(of_type, num_neighbors)
    if is_pyg:
        return num_neighbors
    if isinstance(num_neighbors, Mapping):
        return NumNeighbors(dict(num_neighbors))
    return NumNeighbors([operator.index(fanout) for fanout in num_neighbors])


def _check_fanouts(of_type: Any, num_neighbors: Any) -> None:
    try:
        fanouts = [operator.index(fanout) for fanout in of_type]
        if any(isinstance(fanout, bool) for fanout in of_type):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"num_neighbors must be a list of ints, or a dict of such lists, got {num_neighbors!r}"
        ) from None
    if any(not -1 <= fanout < 2**31 for fanout in fanouts):
        raise ValueError(
            f"num_neighbors must be -1 (all), 0 or more in each hop, got {list(of_type)}"
        )


def weight_tables(data: Any, name: str) -> dict[EdgeType, str]:
    """Finds the tables that hold the edge weights of the attribute `name`.

    Returns:
        The name of the table for each edge type that has the attribute.

    Raises:
        ValueError: no edge type has the attribute, or it was not shared.
    """
    tensors = list(_shared_tensors(data, name))
    tables = {t.owner: t.table_name for t in tensors if isinstance(t.owner, tuple)}
    if not tables:
        if tensors and isinstance(data, Data) and data.num_nodes == data.num_edges:
            # PyG takes it for a node attribute, in batches too.
            raise ValueError(
                f"weight_attr: {name!r} is taken for an attribute of nodes, because there are as "
                "many nodes as edges; give the attribute a name that contains 'edge'"
            )
        raise ValueError(f"weight_attr: no edge type has an attribute {name!r}")
    return tables


def time_tables(data: Any, name: str) -> tuple[dict[NodeType, str], dict[EdgeType, str]]:
    """Finds the tables that hold the times of the attribute `name`.

    Returns:
        The name of the table for each node type, and for each edge type, that has the attribute;
        one of the two dicts is empty.

    Raises:
        ValueError: neither nodes nor edges have the attribute, or both, or it was not shared.
    """
    tensors = list(_shared_tensors(data, name))
    node_tables = {t.owner: t.table_name for t in tensors if isinstance(t.owner, str)}
    edge_tables = {t.owner: t.table_name for t in tensors if isinstance(t.owner, tuple)}
    if node_tables and edge_tables:
        raise ValueError(f"time_attr: {name!r} is an attribute of nodes and of edges")
    if not tensors:
        raise ValueError(f"time_attr: neither nodes nor edges have an attribute {name!r}")
    return node_tables, edge_tables


def _shared_tensors(data: Any, name: str) -> Iterator[TableTensor]:
    if not isinstance(data, (Data, HeteroData)):
        features: FeatureStore = data[0]
        yield from features.tensors_named(name)
        return
    for storage in data.stores:
        if name not in storage:
            continue
        value = storage[name]
        if not isinstance(value, TableTensor):
            kind = type(value).__name__
            raise ValueError(f"{name!r} must be an attribute that was shared, got {kind}")
        yield value


def times_for_negatives(store: Store, names: dict[NodeType, str], homogeneous: bool) -> Times:
    """Times of nodes on the CPU, where PyG's negative sampling looks rows up."""
    cpu = torch.device("cpu")
    times = {t: TableTensor(store, t, name, cpu) for t, name in names.items()}
    vectors = {t: v.reshape(-1) if v.dim() > 1 else v for t, v in times.items()}
    return vectors[NODE] if homogeneous else vectors

"""Small data like the user's, on which a model shows what an epoch does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from peergraph.fullgraph import (
    ModelRecorder,
    Partition,
    PartitionedEdgeIndex,
    SmallGraph,
    sample_rows,
)
from peergraph.memory import Group
from peergraph.store import EDGE, NODE, EdgeType, NodeType, TableTensor

from ..compat import data_storage, storage_values
from ..data.read_adjacency import matrix_key, read_matrix
from ..data.split import row_attributes

_MATRIX_VALUES = "edge_values_of_matrix"


def small_parts(
    data: Data | HeteroData,
    num_nodes: dict[NodeType, int],
    num_edges: dict[EdgeType, int],
    partition: Callable[..., Data | HeteroData],
) -> tuple[SmallGraph, Partition]:
    """Returns the sizes of small data, and a function that makes and partitions it.

    Args:
        data: all of it.
        num_nodes, num_edges: of the data.
        partition: partitions data: :func:`full_graph`.
    """
    small = SmallGraph.like(num_nodes, num_edges)

    def make(alone: Group, recorder: ModelRecorder) -> Data | HeteroData:
        smaller = small_data(data, small, num_nodes, num_edges)
        part = partition(smaller, group=alone, model=recorder, order="original")
        for edge_type, storage in _edge_storages(data):
            key = matrix_key(storage)
            if edge_type in num_edges and key is not None:
                edges = dict(_edge_storages(part))[edge_type]
                structure, weights = edges.edge_index.structure, edges.pop(_MATRIX_VALUES, None)
                edges[key] = PartitionedEdgeIndex(structure, weights)
        return part

    return small, make


def small_data(
    data: Data | HeteroData,
    small: SmallGraph,
    num_nodes: dict[NodeType, int],
    num_edges: dict[EdgeType, int],
) -> Data | HeteroData:
    """Returns data with fewer nodes and random edges.

    Rows of nodes and edges are some of those of the data, masks select the same share. Lists of
    ids are shorter, and modulo the nodes. A matrix of edges becomes an ``edge_index`` and values.
    """
    result = copy.copy(data)
    is_typed = isinstance(result, HeteroData)
    nodes = list(result.node_items()) if is_typed else [(NODE, data_storage(result))]
    lists: list[tuple[Any, str]] = []
    for node_type, storage in nodes:
        rows = list(row_attributes(storage, storage.is_node_attr))
        names = {key for key, _ in rows}
        lists += [(storage, key) for key in storage_values(storage) if key not in names]
        for key, value in rows:
            storage[key] = _sample(value, small.num_nodes[node_type])
    for edge_type, storage in _edge_storages(result):
        if edge_type not in num_edges:
            continue
        rows = list(row_attributes(storage, storage.is_edge_attr))
        matrix = matrix_key(storage)
        if matrix is not None:
            tables = read_matrix(storage, matrix, edge_type, num_nodes).tables
            rows += [(_MATRIX_VALUES, values) for values in tables.values()]
            del storage[matrix]
        storage["edge_index"] = small.edges(edge_type)
        for key, value in rows:
            storage[key] = _sample(value, small.num_edges[edge_type])
    for node_type, storage in nodes:
        storage.num_nodes = small.num_nodes[node_type]
    least = max(1, min(small.num_nodes.values()))
    part, whole = sum(small.num_nodes.values()), max(1, sum(num_nodes.values()))
    for storage, key in lists:
        value = storage_values(storage).get(key)
        if isinstance(value, Tensor) and value.dim() == 1 and value.dtype == torch.int64:
            storage[key] = value[: -(-len(value) * part // whole)] % least
    return result


def _edge_storages(data: Data | HeteroData) -> list[tuple[EdgeType, Any]]:
    if isinstance(data, HeteroData):
        return list(data.edge_items())
    return [(EDGE, data_storage(data))]


def _sample(value: Any, count: int) -> Tensor:
    """Returns some rows of an attribute."""
    if isinstance(value, TableTensor):
        return sample_rows(value.table, count)
    return sample_rows(value if isinstance(value, Tensor) else torch.from_numpy(value), count)

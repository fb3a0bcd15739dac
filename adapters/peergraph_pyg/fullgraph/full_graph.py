"""`full_graph`: PyG data whose rows are partitioned over all ranks, for full-graph training."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.index import ptr2index
from torch_geometric.typing import TensorFrame
from typing_extensions import Unpack

from peergraph.fullgraph import (
    FullGraph,
    FullGraphOptions,
    ModelLoss,
    Partition,
    PartitionedEdgeIndex,
    PartitionedTensor,
    SmallGraph,
    record_model,
    refuse_partitioned,
)
from peergraph.memory import Group, WorldGroup, collective_call
from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store, StoreTensor, TableTensor

from ..compat import data_storage, graph_storage, storage_type, storage_values
from ..data.edge_index_tensor import EdgeIndexTensor
from ..data.read_adjacency import check_same_edges, matrix_key, read_matrix
from ..data.share import share
from ..data.sparse_adjacency import ADJACENCY_KEYS, ADJACENCY_TYPES
from ..data.split import row_attributes
from ..data.store_of import find_store, has_shared_structure, pair_store
from . import utilities
from .small_data import small_parts

_MARK = "_peergraph_partition"


def full_graph(
    data: Any,
    memory_budget: int | None = None,
    *,
    loss: ModelLoss | None = None,
    device: Any = None,
    group: Group | None = None,
    **options: Unpack[FullGraphOptions],
) -> Any:
    """Partitions a graph over all ranks, for training and inference on all of it. Collective.

    Every rank runs the script that one process would run: models, losses and masks see global
    tensors of which each rank holds some rows (:class:`peergraph.fullgraph.PartitionedTensor`), and
    results and gradients are those of one process (MG-GCN 4.1). Pass models through
    :func:`peergraph_pyg.accelerate` for Peergraph's kernels.

    Args:
        data: ``Data`` or ``HeteroData``, equal on all ranks, or that :func:`share` returned, whose
            rows each rank reads for itself; or the stores of :func:`stores`, or a ``Store``. Where
            some ranks pass None, the others' data is shared first, and sent to machines that have
            none.
        memory_budget: bytes for each rank's device; None: what is free.
        loss: called with the option ``model`` and data that this function returned, computes what
            ``backward`` is called of. So that the plan is made for the model, both run on a small
            graph with the types and degrees of `data` and some of its rows; the model stays as it
            is.
        device: of this rank, as ``peergraph.memory.Group.current`` takes it; for data without a
            store.
        group: the ranks, for data without a store; None: ``Group.current(device)``.
        options: ``order``, ``offload``, ``num_chunks``, ``model``, ``host_memory``, ``folder``,
            ``hidden_dtype`` and others: see :class:`peergraph.fullgraph.FullGraphOptions`.

    Returns:
        A copy of the data. Tensors with a row for each node or edge are partitioned tensors, on the
        device of the group; ``edge_index`` (or ``adj_t``, ``adj``) is a
        :class:`peergraph.fullgraph.PartitionedEdgeIndex`, which layers of PyG take; values of a
        matrix are weights of its edges. Lists of ids, such as ``train_idx``, and all else stay as
        they are.

    Raises:
        TypeError: `data` is none of these, or partitioned already.
        Exception: `loss` raised it on the small graph; on all ranks.
        ValueError: a number of nodes is unknown, or ranks have other data, compared by digests of
            all attributes: on all ranks, with the name of the attribute and the ranks.
        ValueError, MemoryError: the budget, or the host, is too small; says what is needed.
    """
    utilities.install()
    group_of_data = _group_of(data, device, group)
    shared = _share_where_lacking(data, group_of_data)
    data, contents = collective_call(WorldGroup.of(group_of_data), lambda: _contents(shared))
    model = options.get("model")
    if isinstance(model, nn.Module):
        ranks = WorldGroup.of(group_of_data)
        options["model"] = record_model(model, loss, ranks, functools.partial(_small_parts, data))
    store = find_store(data)
    if store is not None and has_shared_structure(data):
        if group is not None and group is not store.group:
            raise ValueError("group: the graph is in a store, whose ranks hold it; pass None")
        graph = FullGraph.from_store(
            store, memory_budget=memory_budget, contents=contents, **options
        )
    else:
        group = Group.current(device) if group is None else group
        graph = _build(group, data, memory_budget, contents, options)
    result = copy.copy(data)
    for node_type, storage in _node_storages(result):
        for key, value in list(row_attributes(storage, storage.is_node_attr)):
            storage[key] = _rows(value, functools.partial(graph.node_rows, node_type=node_type))
        # PyG would infer it from the edges.
        storage.num_nodes = graph.node_layouts[node_type].size
    for edge_type, storage in _edge_storages(result):
        structure = graph.structures[edge_type]
        for key, value in list(row_attributes(storage, storage.is_edge_attr)):
            storage[key] = _rows(value, functools.partial(graph.edge_rows, edge_type=edge_type))
        weight = _matrix_values(edge_type, storage, graph)
        if "edge_index" in storage:
            storage.edge_index = PartitionedEdgeIndex(structure)
        for name in ADJACENCY_KEYS:
            if name in storage:
                storage[name] = PartitionedEdgeIndex(structure, weight)
    graph_storage(result).__dict__[_MARK] = graph
    return result


def partition_of(data: Data | HeteroData) -> FullGraph:
    """The partition behind data that :func:`full_graph` returned: layouts, structures, plan.

    Raises:
        ValueError: the data is not partitioned.
    """
    partition = graph_storage(data).__dict__.get(_MARK)
    if not isinstance(partition, FullGraph):
        raise ValueError("expected data returned by peergraph_pyg.full_graph()")
    return partition


def _small_parts(data: Data | HeteroData) -> tuple[SmallGraph, Partition]:
    num_nodes = _num_nodes(data)
    num_edges = {t: _num_edges(t, s, num_nodes) for t, s in _edge_storages(data)}
    return small_parts(data, num_nodes, num_edges, full_graph)


def _num_edges(edge_type: EdgeType, storage: Any, num_nodes: dict[NodeType, int]) -> int:
    if "edge_index" in storage:
        return int(storage["edge_index"].shape[1])
    return _edges(edge_type, storage, num_nodes).shape[1]


def _build(
    group: Group,
    data: Data | HeteroData,
    memory_budget: int | None,
    contents: dict[str, Any],
    options: FullGraphOptions,
) -> FullGraph:
    def read() -> tuple[dict[NodeType, int], dict[EdgeType, Tensor]]:
        counts = _num_nodes(data)
        return counts, {key: _edges(key, s, counts) for key, s in _edge_storages(data)}

    counts, edges = collective_call(WorldGroup.of(group), read)
    return FullGraph.build(
        group,
        counts,
        edges,
        row_bytes={key: _row_bytes(s, s.is_node_attr) for key, s in _node_storages(data)},
        edge_row_bytes={key: _row_bytes(s, s.is_edge_attr) for key, s in _edge_storages(data)},
        memory_budget=memory_budget,
        contents=contents,
        **options,
    )


def _contents(data: Any) -> tuple[Data | HeteroData, dict[str, Any]]:
    """Returns the data, and what must be equal on all ranks besides edges and options, by name.

    What is in a store is not read: it is the same on all ranks.
    """
    data = _as_data(data)
    contents: dict[str, Any] = {"type of data": type(data).__name__}
    values: dict[str, Any] = {}
    for storage in data.stores:
        owner = storage_type(storage)
        prefix = "data." if owner is None else f"data[{owner!r}]."
        for key, value in storage_values(storage).items():
            values[prefix + key] = value
            if isinstance(value, (StoreTensor, *ADJACENCY_TYPES)):
                contents[prefix + key] = f"{type(value).__name__} of a store"
            elif key in ADJACENCY_KEYS and isinstance(owner or EDGE, tuple):
                parts = read_matrix(storage, key, owner or EDGE, _num_nodes(data))
                contents[prefix + key] = dict(parts.tables)
            elif isinstance(value, TensorFrame):
                raise NotImplementedError(
                    f"{prefix}{key}: frames are not split for a full graph; encode their columns "
                    "to a tensor of rows first, or train on batches of a loader"
                )
            elif key != "edge_index":  # edges are compared by their readers
                contents[prefix + key] = value
    refuse_partitioned(values)
    return data, contents


def _row_bytes(storage: Any, is_of: Callable[[str], bool]) -> int:
    """Bytes of all attributes of one node or edge."""
    return sum(
        math.prod(value.shape[1:]) * value.dtype.itemsize
        for _, value in row_attributes(storage, is_of)
    )


def _group_of(data: Any, device: Any, group: Group | None) -> Group:
    """The ranks that call :func:`full_graph`. Collective if there is no group yet."""
    if group is not None:
        return group
    store = data if isinstance(data, Store) else find_store(data)
    return Group.current(device) if store is None or store.group is None else store.group


def _share_where_lacking(data: Any, group: Group) -> Any:
    """Returns shared data where some ranks have none, else the data. Collective."""
    if not any(WorldGroup.of(group).all_gather(data is None)):
        return data
    return share(data, device=group.device, plan="host")


def _as_data(data: Any) -> Data | HeteroData:
    """Data as given, or made of the tables of a store."""
    if isinstance(data, (Data, HeteroData)):
        return data
    store = data if isinstance(data, Store) else pair_store(data)
    if store is None:
        raise TypeError(
            "data must be Data, HeteroData, a Store or the stores of peergraph_pyg.stores(), got "
            f"{type(data).__name__}"
        )
    result = Data() if store.is_homogeneous else HeteroData()
    for node_type in store.node_types:
        storage = result if isinstance(result, Data) else result[node_type]
        storage.num_nodes = store.num_nodes(node_type)
        for name in store.node_table_names(node_type):
            storage[name] = TableTensor(store, node_type, name)
    for edge_type in store.edge_types:
        storage = result if isinstance(result, Data) else result[edge_type]
        storage.edge_index = EdgeIndexTensor(store, edge_type)
        for name in store.edge_table_names(edge_type):
            storage[name] = TableTensor(store, edge_type, name)
    return result


def _node_storages(data: Data | HeteroData) -> list[tuple[NodeType, Any]]:
    if isinstance(data, Data):
        return [(NODE, data_storage(data))]
    return list(data.node_items())


def _edge_storages(data: Data | HeteroData) -> list[tuple[EdgeType, Any]]:
    """The parts of the data that have edges."""
    items = [(EDGE, data_storage(data))] if isinstance(data, Data) else list(data.edge_items())
    return [(key, s) for key, s in items if "edge_index" in s or matrix_key(s) is not None]


def _num_nodes(data: Data | HeteroData) -> dict[NodeType, int]:
    counts = {}
    for node_type, storage in _node_storages(data):
        if storage.num_nodes is None:
            raise ValueError(f"num_nodes of {node_type!r} is not set and cannot be inferred")
        counts[node_type] = int(storage.num_nodes)
    return counts


def _edges(edge_type: EdgeType, storage: Any, num_nodes: dict[NodeType, int]) -> Tensor:
    """[2, edges] on any device, in the order of edge attributes."""
    if "edge_index" in storage:
        edge_index = storage["edge_index"]
        if isinstance(edge_index, StoreTensor):
            return edge_index.materialize(torch.device("cpu"))
        plain: Tensor = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
        return plain
    key = matrix_key(storage)
    assert key is not None
    parts = read_matrix(storage, key, edge_type, num_nodes)
    if parts.edges.coo is not None:
        return parts.edges.coo
    assert parts.edges.csc is not None
    indptr, indices = parts.edges.csc
    return torch.stack([indices.long(), ptr2index(indptr)])


def _matrix_values(edge_type: EdgeType, storage: Any, graph: FullGraph) -> PartitionedTensor | None:
    """The values of the edges' matrix; None for all ones, and where there is no matrix."""
    key = matrix_key(storage)
    if key is None:
        return None
    counts = {name: nodes.size for name, nodes in graph.node_layouts.items()}
    parts = read_matrix(storage, key, edge_type, counts)
    if not parts.tables:
        return None
    if "edge_index" in storage:
        plain = {"edge_index": storage["edge_index"]}
        check_same_edges(key, parts.edges, _edges(edge_type, plain, counts))
    [values] = parts.tables.values()
    return graph.edge_rows(values, edge_type)


def _rows(value: Any, read: Callable[[Any], PartitionedTensor]) -> PartitionedTensor:
    """This rank's rows of an attribute; of a store, nothing else is read."""
    if isinstance(value, np.ndarray):
        with warnings.catch_warnings():
            # Of mapped files that must not be written: nobody writes these rows.
            warnings.filterwarnings("ignore", "The given NumPy array is not writ")
            value = torch.from_numpy(value)
    rows = read(value.table if isinstance(value, TableTensor) else value.detach())
    rows.requires_grad_(value.requires_grad)
    return rows

"""Splits PyG data into the tables and edges of a store and an outline, and joins the two again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import N_KEYS
from torch_geometric.typing import TensorFrame

from peergraph.fullgraph import refuse_partitioned
from peergraph.store import (
    EDGE,
    NODE,
    VALUES,
    EdgeSource,
    EdgeType,
    FrameSpec,
    GraphSource,
    NodeType,
    RowSource,
    Store,
    StoreTensor,
    TableTensor,
    list_type,
)

from ..compat import data_storage, storage_data, storage_type, storage_values
from .edge_index_tensor import EdgeIndexTensor
from .frame_source import FrameSource, split_frame
from .frames import StoredFrame
from .read_adjacency import check_edge_attr, check_same_edges, matrix_key, read_matrix
from .sparse_adjacency import ADJACENCY_KEYS, SparseLayout
from .store_of import find_store, has_shared_structure, mark

# Lists and arrays of texts with this many rows are copied to each rank; longer ones are refused.
_MOST_COPIED_ROWS = 10_000


@dataclass(frozen=True)
class _Placeholder:
    """Replaces a table of the store in an outline, or the store's edges if it has no name."""

    owner: NodeType | EdgeType
    name: str | None = None

    def tensor(self, store: Store) -> Any:
        if self.name in store.frames(self.owner):
            return StoredFrame(store, self.owner, self.name)
        if self.name is not None:
            return TableTensor(store, self.owner, self.name)
        assert isinstance(self.owner, tuple)
        return EdgeIndexTensor(store, self.owner)


@dataclass
class _Contents:
    num_nodes: dict[NodeType, int] = field(default_factory=dict)
    edges: dict[EdgeType, EdgeSource] = field(default_factory=dict)
    node_tables: dict[NodeType, dict[str, Tensor | RowSource]] = field(default_factory=dict)
    edge_tables: dict[EdgeType, dict[str, Tensor | RowSource]] = field(default_factory=dict)
    frames: dict[NodeType | EdgeType, dict[str, FrameSpec]] = field(default_factory=dict)

    def add(
        self,
        owner: NodeType | EdgeType,
        tables: dict[str, Tensor | RowSource],
        key: str,
        value: Any,
    ) -> None:
        """Adds an attribute with a row for each node or edge to the tables of its type."""
        if not isinstance(value, TensorFrame):
            tables[key] = _row_source(key, value)
            return
        source = _frame_source(key, value)
        for name in source.tables.keys() & tables.keys():
            raise ValueError(f"data[{owner!r}]: {name!r} is a field of the frame {key!r}, too")
        tables.update(source.tables)
        self.frames.setdefault(owner, {})[key] = source.spec
        for name, elements in source.elements.items():
            self.num_nodes[list_type(owner, name)] = elements.shape[0]
            self.node_tables[list_type(owner, name)] = {VALUES: elements}


def split(data: Any) -> tuple[Data | HeteroData, GraphSource]:
    """Returns an outline of the data, which is small enough to send, and the source of its
    store.
    """
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(f"data must be Data or HeteroData on rank 0, got {type(data).__name__}")
    for storage in data.stores:
        refuse_partitioned(storage_values(storage))
    contents = _Contents()
    outline = copy.copy(data)
    if isinstance(data, Data):
        if data.num_nodes is None:
            raise ValueError("data.num_nodes is not set and cannot be inferred")
        _split_nodes(data_storage(data), data_storage(outline), NODE, contents)
        _split_edges(data_storage(data), data_storage(outline), EDGE, contents)
        # A graph without edge_index has no edges.
        contents.edges.setdefault(
            EDGE, EdgeSource(coo=torch.empty(2, 0, dtype=torch.int64, device="cpu"))
        )
    else:
        for node_type, storage in data.node_items():
            _split_nodes(storage, outline[node_type], node_type, contents)
        for edge_type, storage in data.edge_items():
            _split_edges(storage, outline[edge_type], edge_type, contents)
    _read_other_tensors(outline)
    return outline, GraphSource(
        num_nodes=contents.num_nodes,
        edges=contents.edges,
        node_tables=contents.node_tables,
        edge_tables=contents.edge_tables,
        frames=contents.frames,
    )


def plain_values(outline: Any) -> dict[str, Any]:
    """Returns what is in the outline and not in the store, by the name that errors show."""
    values: dict[str, Any] = {"type of data": type(outline).__name__}
    for storage in outline.stores:
        owner = storage_type(storage)
        prefix = "data." if owner is None else f"data[{owner!r}]."
        for key, value in storage_values(storage).items():
            is_of_store = isinstance(value, (_Placeholder, SparseLayout))
            values[prefix + key] = repr(value) if is_of_store else value
    return values


def join(outline: Any, store: Store) -> Any:
    """Replaces the placeholders of an outline by store tensors."""
    for storage in outline.stores:
        for key, value in list(storage.items()):
            if isinstance(value, (_Placeholder, SparseLayout)):
                storage[key] = value.tensor(store)
    mark(outline, store, keep=find_store(outline) is None)
    return outline


def is_shared(data: Data | HeteroData) -> bool:
    """Returns whether a store has the structure and all node and edge attributes of the data."""
    if not has_shared_structure(data):
        return False
    values = [value for s in data.node_stores for _, value in row_attributes(s, s.is_node_attr)]
    values += [value for s in data.edge_stores for _, value in row_attributes(s, s.is_edge_attr)]
    return all(isinstance(value, (StoreTensor, StoredFrame)) for value in values)


def _read_other_tensors(outline: Any) -> None:
    """Reads the remaining tensors of other stores, which have a row for neither nodes nor edges."""
    for storage in outline.stores:
        for key, value in list(storage.items()):
            if isinstance(value, StoreTensor):
                storage[key] = value.materialize(torch.device("cpu"))


def row_attributes(storage: Any, is_of: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Yields the attributes with a row for each node or each edge, without the edges themselves."""
    for key, value in storage.items():
        # PyG 2.6 cannot ask this of a matrix.
        if key in ADJACENCY_KEYS or key == "edge_index" or not is_of(key):
            continue
        if _has_rows(storage, key, value):
            yield key, value


def _split_nodes(storage: Any, outline: Any, node_type: NodeType, contents: _Contents) -> None:
    num_nodes = storage.num_nodes
    if num_nodes is None:
        raise ValueError(f"data[{node_type!r}].num_nodes is not set and cannot be inferred")
    contents.num_nodes[node_type] = int(num_nodes)
    is_implied = any(_implies_num_nodes(*item) for item in storage.items())
    if "num_nodes" not in storage and not is_implied:
        # PyG would infer it from the whole edge_index every time it is asked for.
        outline.num_nodes = int(num_nodes)
    _refuse_other_rows(storage, storage.is_node_attr, f"data[{node_type!r}]")
    tables = contents.node_tables.setdefault(node_type, {})
    for key, value in row_attributes(storage, storage.is_node_attr):
        contents.add(node_type, tables, key, value)
        storage_values(outline)[key] = _Placeholder(node_type, key)


def _split_edges(storage: Any, outline: Any, edge_type: EdgeType, contents: _Contents) -> None:
    tables: dict[str, Tensor | RowSource] = {}
    key = matrix_key(storage)
    if key is not None:
        matrix = read_matrix(storage, key, edge_type, contents.num_nodes)
        contents.edges[edge_type] = matrix.edges
        tables.update(matrix.tables)
        storage_values(outline)[key] = matrix.sparse_layout
    if "edge_index" in storage:
        edge_index = _to_tensor("edge_index", storage["edge_index"])
        if key is None:
            contents.edges[edge_type] = EdgeSource(coo=edge_index)
        else:
            check_same_edges(key, contents.edges[edge_type], edge_index)
        storage_values(outline)["edge_index"] = _Placeholder(edge_type)
    _refuse_other_rows(storage, storage.is_edge_attr, f"data[{edge_type!r}]")
    edge_attributes = list(row_attributes(storage, storage.is_edge_attr))
    if edge_type not in contents.edges:
        if edge_attributes and edge_type != EDGE:
            raise ValueError(f"{edge_type} has {edge_attributes[0][0]!r}, but no edge_index")
        return
    contents.edge_tables[edge_type] = tables
    for name, value in edge_attributes:
        if key is not None:
            check_edge_attr(key, contents.edges[edge_type], tables, name, value)
        contents.add(edge_type, tables, name, value)
        storage_values(outline)[name] = _Placeholder(edge_type, name)


def _refuse_other_rows(storage: Any, is_of: Callable[[str], bool], where: str) -> None:
    """Raises an error for rows that no table holds and every rank would copy, or warns of them."""
    for key, value in storage.items():
        if isinstance(value, TensorFrame):
            is_of_either = storage_type(storage) is None and (
                storage.is_node_attr(key) or storage.is_edge_attr(key)
            )
            # A frame of one row may be the graph's own; batches have it whole, as in PyG.
            if len(value) > 1 and not is_of(key) and not is_of_either:
                raise ValueError(
                    f"{where}.{key} has {len(value)} rows, which is not the number of its nodes or "
                    "edges"
                )
        elif isinstance(value, Tensor) and value.layout is not torch.strided:
            if key not in ADJACENCY_KEYS and is_of(key) and len(value) > _MOST_COPIED_ROWS:
                layout = str(value.layout).removeprefix("torch.")
                warnings.warn(
                    f"{where}.{key} is a {layout} tensor, which each rank copies whole; dense "
                    "rows are in the store once",
                    stacklevel=2,
                )
        elif _is_sequence(value) and len(value) > _MOST_COPIED_ROWS and is_of(key):
            raise NotImplementedError(
                f"{where}.{key} is {_kind_of(value)} with a row for each of {len(value)} nodes or "
                f"edges; more than {_MOST_COPIED_ROWS} are not copied to each rank: make numbers a "
                "tensor, and texts a column of a torch_frame.TensorFrame; or delete it from the "
                "data, and read it by the ids of a batch (n_id, e_id) where it is needed"
            )


def _is_sequence(value: Any) -> bool:
    """Returns whether a value is of a type whose rows are not in a table."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind not in "biuf"
    return isinstance(value, (list, tuple))


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype}"
    return f"a {type(value).__name__}"


def _implies_num_nodes(key: str, value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, TensorFrame)) and (key in N_KEYS or "node" in key)


def _has_rows(storage: Any, key: str, value: Any) -> bool:
    """Returns whether a node-level or edge-level value is a dense array or a frame."""
    if isinstance(value, TensorFrame):
        return True
    if isinstance(value, np.ndarray):
        is_dense = value.dtype.kind in "biuf"
    else:
        is_dense = isinstance(value, Tensor) and value.layout is torch.strided
    return is_dense and storage_data(storage).__cat_dim__(key, value, storage) in (0, -value.ndim)


def _row_source(key: str, value: Any) -> Tensor | RowSource:
    """Returns the source of the table of an attribute."""
    if isinstance(value, TableTensor):
        # A table of another store is read piece by piece: memory may not hold a copy of it and two
        # stores.
        return RowSource(tuple(value.shape), value.dtype, value.table.read)
    return _to_tensor(key, value)


def _frame_source(key: str, frame: Any) -> FrameSource:
    """Returns the source of the tables of a frame."""
    if isinstance(frame, StoredFrame):
        return frame.source(key)
    return split_frame(key, frame, _to_tensor)


def _to_tensor(key: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        with warnings.catch_warnings():
            # Read-only memory maps are fine, because the tensor is only read.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(value)
    if value.requires_grad:
        raise NotImplementedError(f"'{key}' requires gradients; a shared tensor cannot be trained")
    if isinstance(value, StoreTensor):
        return value.materialize(torch.device("cpu"))
    if isinstance(value, EdgeIndex):
        value = value.as_tensor()
    tensor: Tensor = value.detach().cpu()
    return tensor

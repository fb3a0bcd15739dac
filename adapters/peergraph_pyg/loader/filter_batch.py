"""Fills batches as PyG's loaders do, but gathers the rows of all shared tensors at once.

PyG selects the rows of each attribute alone. A thread that makes batches would wait for Python's
lock after each of these calls, and the training loop for the thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import utils as loader_utils
from torch_geometric.sampler import HeteroSamplerOutput

from peergraph.memory import DistributedTable, ListRows, ListTable, Table, gather_tables
from peergraph.store import EdgeType, NodeType, StoreTensor, TableTensor

from ..compat import (
    copy_data,
    data_storage,
    edge_storages,
    node_storages,
    storage_data,
    storage_values,
)
from ..data.frames import FrameReads, StoredFrame
from ..data.lazy_features import LazyTable, StoredTable
from ..data.sparse_adjacency import ADJACENCY_KEYS, ADJACENCY_TYPES
from ..data.store_of import find_store
from . import batch_csc

Function = Callable[..., Any]

_NO_IDS = torch.empty(0, dtype=torch.long, device="cpu")


def filter_data(
    original: Function, data: Data, node: Any, row: Any, col: Any, edge: Any, perm: Any = None
) -> Any:
    """Returns the batch of a sample, as PyG's ``filter_data``."""
    storage = data_storage(data)
    kinds = _kinds_of([storage])
    if not kinds.shared and find_store(data) is None:
        return original(data, node, row, col, edge, perm)
    out = copy.copy(data)
    batch = data_storage(out)
    rows = _SharedRows()
    with kinds.without_modes():
        _filter_nodes(storage, batch, node, rows)
        rows.add_edges(storage, batch, edge, perm)
        rows.gather()
    edge_index = _filter_edges(storage, batch, row, col, edge, perm, rows)
    batch_csc.attach([(edge_index, batch_csc.structure_of(row))])
    return out


_of_output: ContextVar[Any] = ContextVar("peergraph_pyg_output", default=None)


def filter_output(original: Function, loader: Any, out: Any) -> Any:
    """Returns the batch of a sample, as the loader's ``filter_fn``.

    PyG looks each type up several times more for what belongs to its nodes and edges: of hundreds
    of relations that takes longer than to sample. :func:`filter_hetero_data` sets it.
    """
    data = loader.data
    is_own = isinstance(out, HeteroSamplerOutput) and isinstance(data, HeteroData)
    if not is_own or batch_csc.unused_edges(out.row, out.col) is None:
        return original(loader, out)
    by_type = [(each, edge_storages(data)) for each in (out.edge, out.num_sampled_edges)]
    by_type += [(each, node_storages(data)) for each in (out.node, out.num_sampled_nodes)]
    has_all = all(each is not None and each.keys() <= of.keys() for each, of in by_type)
    if not has_all or loader.transform_sampler_output is not None:
        return original(loader, out)
    rest = copy.copy(out)
    rest.node, rest.batch, rest.num_sampled_nodes = {}, None, None
    rest.edge = rest.num_sampled_edges = None
    token = _of_output.set(out)
    try:
        return original(loader, rest)
    finally:
        _of_output.reset(token)


def filter_hetero_data(
    original: Function,
    data: HeteroData,
    node_dict: dict[Any, Any],
    row_dict: dict[Any, Any],
    col_dict: dict[Any, Any],
    edge_dict: dict[Any, Any] | None,
    perm_dict: dict[Any, Any] | None = None,
) -> Any:
    """Returns the batch of a sample, as PyG's ``filter_hetero_data``.

    Adds empty tensors to the dicts for types that they lack, as PyG does. Without ids of edges, in
    :func:`filter_output`, adds what the loader does.
    """
    output: Any = _of_output.get() if edge_dict is None else None
    ids_of: Any = edge_dict
    if output is not None:
        node_dict, ids_of = output.node, output.edge
    perms = perm_dict or {}
    kinds = _kinds_of([*data.node_stores, *data.edge_stores])
    if kinds.shared or find_store(data) is not None:
        out = _filter_typed(data, kinds, node_dict, row_dict, col_dict, ids_of, perms)
    else:
        out = original(data, node_dict, row_dict, col_dict, ids_of, perm_dict)
    if output is not None:
        _add_ids_and_counts(out, output, perms)
    return out


def _filter_typed(
    data: HeteroData,
    kinds: _Kinds,
    node_dict: dict[Any, Any],
    row_dict: dict[Any, Any],
    col_dict: dict[Any, Any],
    edge_dict: dict[Any, Any],
    perms: dict[Any, Any],
) -> HeteroData:
    out = copy_data(data)
    rows = _SharedRows()
    edges, batches = edge_storages(data), edge_storages(out)
    for edge_type in edges.keys() - edge_dict.keys():
        edge_dict[edge_type] = _NO_IDS
    unused = batch_csc.unused_edges(row_dict, col_dict)
    joined: dict[EdgeType, Tensor] = {}
    with kinds.without_modes():
        for (node_type, storage), batch in zip(data.node_items(), out.node_stores, strict=True):
            _filter_nodes(storage, batch, node_dict.setdefault(node_type, _NO_IDS), rows)
        values_of = dict(zip(edges, map(storage_values, edges.values()), strict=True))
        for edge_type, values in values_of.items():
            if len(values) > 1:  # of hundreds, few have more than an edge index
                ids, perm = edge_dict[edge_type], perms.get(edge_type)
                rows.add_edges(edges[edge_type], batches[edge_type], ids, perm)
        rows.gather()
        if unused is not None:
            edge_indices = unused.edge_indices()
            for (edge_type, values), batch in zip(
                values_of.items(), map(storage_values, batches.values()), strict=True
            ):
                if edge_type not in edge_indices or "edge_index" not in values:
                    continue
                edge_index = edge_indices[edge_type]
                if values["edge_index"].device == edge_index.device and (
                    len(values) == 1 or rows.have_all_but_edges(values, batches[edge_type])
                ):
                    batch["edge_index"] = joined[edge_type] = edge_index
            unused.attach(joined)
    pairs = []
    for edge_type in [edge_type for edge_type in edges if edge_type not in joined]:
        row, col = (ends.setdefault(edge_type, _NO_IDS) for ends in (row_dict, col_dict))
        ids, perm = edge_dict[edge_type], perms.get(edge_type)
        storage, batch = edges[edge_type], batches[edge_type]
        edge_index = _filter_edges(storage, batch, row, col, ids, perm, rows)
        pairs.append((edge_index, batch_csc.structure_of(row)))
    batch_csc.attach(pairs)
    return out


def _add_ids_and_counts(batch: HeteroData, output: Any, perms: dict[Any, Any]) -> None:
    """Adds the ids and the numbers of sampled nodes and edges to a batch, as PyG's loaders do."""
    values_of = {t: storage_values(storage) for t, storage in node_storages(batch).items()}
    for node_type, ids in output.node.items():
        values_of[node_type].setdefault("n_id", ids)
    of_nodes = {"batch": output.batch, "num_sampled_nodes": output.num_sampled_nodes}
    for key, by_type in of_nodes.items():
        for node_type, value in (by_type or {}).items():
            values_of[node_type][key] = value
    storages = edge_storages(batch)
    values_of = dict(zip(storages, map(storage_values, storages.values()), strict=True))
    for edge_type, ids in output.edge.items():
        values = values_of[edge_type]
        if ids is not None and "e_id" not in values:
            ids = ids if ids.dtype == torch.int64 else ids.long()
            perm = perms.get(edge_type) if perms else None
            values["e_id"] = ids if perm is None else perm[ids]
    for edge_type, counts in output.num_sampled_edges.items():
        values_of[edge_type]["num_sampled_edges"] = counts


class _SharedRows:
    """The rows of shared tensors that a batch gets."""

    def __init__(self) -> None:
        self._targets: list[tuple[Any, str, TableTensor, Tensor]] = []
        self._frames: list[tuple[Any, str, StoredFrame, Tensor]] = []
        self._keys: dict[int, set[str]] = {}  # the attributes of each storage
        # Workers write the rows to memory that they share with the loop, which PyG does.
        self._in_worker = get_worker_info() is not None

    def add(self, batch: Any, key: str, value: Any, ids: Any) -> bool:
        """Returns whether :meth:`gather` will set the attribute `key` to the rows of `value`."""
        if isinstance(value, StoredFrame) and type(ids) is Tensor and not self._in_worker:
            ids = ids.to(value.device, torch.int64)
            self._frames.append((batch, key, value, ids))
            self._keys.setdefault(id(batch), set()).add(key)
            return True
        # Other subclasses select rows in other ways.
        is_gathered = type(value) in (TableTensor, StoredTable)
        if not is_gathered or type(ids) is not Tensor or self._in_worker:
            return False
        table = value.table
        if value.device != table.device or value.requires_grad or ids.ndim != 1:
            return False
        if type(value) is StoredTable and isinstance(table, DistributedTable):
            return False
        if ids.device != value.device or ids.dtype != torch.int64:
            ids = ids.to(value.device, torch.int64)
        self._targets.append((batch, key, value, ids))
        self._keys.setdefault(id(batch), set()).add(key)
        return True

    def add_edges(self, storage: Any, batch: Any, edge: Any, perm: Any) -> None:
        """Adds the shared attributes of edges."""
        if edge is None or perm is not None:
            return
        for key, value in _shared_rows(storage, storage.is_edge_attr):
            self.add(batch, key, value, edge)

    def gather(self) -> None:
        """Gathers all rows that no thread has gathered, and sets the attributes."""
        ready = _ready_rows.get()
        of_frames = FrameReads([(frame, ids) for _, _, frame, ids in self._frames])
        reads: list[tuple[Table | ListTable, Tensor]] = [
            (table, ids) for _, _, value, ids in self._targets for table in _tables_of_value(value)
        ]
        reads += of_frames.reads
        ahead = [None] * len(reads) if ready is None else ready.take(reads)
        others = [read for read, of_read in zip(reads, ahead, strict=True) if of_read is None]
        are_lazy = any(isinstance(value, StoredTable) for _, _, value, _ in self._targets)
        # Lazy rows may be decoded in another mode than that of the loader.
        with torch.inference_mode(False) if are_lazy else nullcontext():
            gathered = iter(gather_tables(others))
        rows = iter([next(gathered) if of_read is None else of_read for of_read in ahead])
        for batch, key, value, ids in self._targets:
            of_value: list[Any] = [next(rows) for _ in _tables_of_value(value)]
            if isinstance(value, StoredTable):
                of_value = [value.selected(ids, of_value)]
            [storage_values(batch)[key]] = of_value
        frames = of_frames.frames(rows)
        for (batch, key, _, _), frame in zip(self._frames, frames, strict=True):
            storage_values(batch)[key] = frame

    def keys(self, batch: Any) -> Collection[str]:
        """Returns the attributes that were set in the storage of a batch."""
        return self._keys.get(id(batch), ())

    def have_all_but_edges(self, values: Collection[str], batch: Any) -> bool:
        """Returns whether all attributes of edges but the edge index were set in a batch."""
        keys = self.keys(batch)
        return all(key == "edge_index" or key in keys for key in values)


class ReadyRows:
    """Rows of a batch that are gathered already.

    Args:
        reads: tables, and the ids of their rows: tensors of the batch's sample.
        rows: what was gathered.
    """

    def __init__(
        self, reads: Iterable[tuple[Table | ListTable, Tensor]], rows: Iterable[Tensor | ListRows]
    ) -> None:
        # The tables and ids are kept alive, so that no other objects get their addresses.
        self._rows = {
            (id(read[0]), id(read[1])): (read, of_read)
            for read, of_read in zip(reads, rows, strict=True)
        }

    def take(
        self, reads: Iterable[tuple[Table | ListTable, Tensor]]
    ) -> list[Tensor | ListRows | None]:
        """Returns the rows of these ids of each table, once; None where they are not there."""
        nothing = None, None
        return [self._rows.pop((id(table), id(ids)), nothing)[1] for table, ids in reads]


_ready_rows: ContextVar[ReadyRows | None] = ContextVar("peergraph_pyg_ready_rows", default=None)


@contextmanager
def with_rows(rows: ReadyRows) -> Iterator[None]:
    """In this context, batches of shared data get these rows."""
    token = _ready_rows.set(rows)
    try:
        yield
    finally:
        _ready_rows.reset(token)


def tables_of(
    data: Data | HeteroData,
) -> list[tuple[NodeType | EdgeType | None, bool, Table | ListTable]] | None:
    """Returns the tables whose rows batches get.

    Returns:
        A node type or an edge type, None where there are no types; whether the rows are those of
        edges; and a table. None: the batches get other values, too, for which the host may wait.
    """
    parts: list[tuple[NodeType | EdgeType | None, Any, bool]]
    if isinstance(data, Data):
        parts = [(None, data_storage(data), of_edges) for of_edges in (False, True)]
    else:
        parts = [(t, storage, False) for t, storage in data.node_items()]
        parts += [(t, storage, True) for t, storage in data.edge_items()]
    tables: list[tuple[NodeType | EdgeType | None, bool, Table | ListTable]] = []
    for owner, storage, of_edges in parts:
        is_row = storage.is_edge_attr if of_edges else storage.is_node_attr
        rows = _SharedRows()
        if any(is_row(key) and _is_selected_by_pyg(value) for key, value in storage.items()):
            return None
        for key, value in _shared_rows(storage, is_row):
            if type(value) is LazyTable:
                continue
            ids = torch.empty(0, dtype=torch.int64, device=value.device)
            if not rows.add({}, key, value, ids):
                return None
            tables += [(owner, of_edges, table) for table in _tables_of_value(value)]
    return tables


def _tables_of_value(value: TableTensor | StoredFrame) -> Sequence[Table | ListTable]:
    """Returns the tables that are gathered for an attribute."""
    return value.tables if isinstance(value, (StoredTable, StoredFrame)) else [value.table]


def _is_selected_by_pyg(value: Any) -> bool:
    """Returns whether an attribute is a matrix of edges, or has rows that are not a store's."""
    is_array = isinstance(value, (Tensor, np.ndarray)) and not isinstance(value, StoreTensor)
    return is_array or isinstance(value, ADJACENCY_TYPES)


def _shared_rows(storage: Any, is_row: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Yields the shared attributes with a row for each node, or for each edge."""
    for key, value in storage_values(storage).items():
        is_shared = isinstance(value, (TableTensor, StoredFrame))
        if is_shared and is_row(key) and _is_along_rows(storage, key, value):
            yield key, value


def _is_along_rows(storage: Any, key: str, value: Any) -> bool:
    """Returns whether PyG selects from the first dimension of an attribute."""
    if isinstance(value, StoredFrame):
        return True
    return storage_data(storage).__cat_dim__(key, value, storage) in (0, -value.ndim)


def _filter_nodes(storage: Any, batch: Any, index: Any, rows: _SharedRows) -> None:
    """Does the same as PyG's ``filter_node_store_``; `rows` gets the shared attributes."""
    for key, value in storage_values(storage).items():
        if key == "num_nodes":
            batch.num_nodes = index.numel()
            continue
        # PyG 2.6 cannot tell whether a matrix is an attribute of nodes.
        if isinstance(value, ADJACENCY_TYPES) or not storage.is_node_attr(key):
            continue
        if _is_along_rows(storage, key, value) and rows.add(batch, key, value, index):
            continue
        if isinstance(value, np.ndarray):
            index = index.cpu()
        elif hasattr(value, "device"):
            index = index.to(value.device)
        dim = storage_data(storage).__cat_dim__(key, value, storage)
        batch[key] = loader_utils.index_select(value, index, dim=dim)


def _filter_edges(
    storage: Any, batch: Any, row: Any, col: Any, edge: Any, perm: Any, rows: _SharedRows
) -> Any:
    """Does the same as PyG's ``filter_edge_store_``, without the attributes that `rows` has set.

    Returns the edge index of the batch, if there is one.
    """
    shared = dict(adjacencies(storage))
    values = storage_values(storage)
    edge_index = None
    if "edge_index" in values:
        edge_index = batch_csc.edge_index_of(row, col, values["edge_index"].device)
    replaced = [*shared, *([] if edge_index is None else ["edge_index"])]
    if not set(values).issubset(
        [*replaced, *rows.keys(batch)]
    ):  # of many edge types few have others
        with _kinds_of([storage]).without_modes():
            # PyG finds the number of nodes by the attributes of nodes, which stay.
            of_edges = [key for key in rows.keys(batch) if storage.is_edge_attr(key)]
            rest = _drop_keys(storage, [*replaced, *of_edges])
            loader_utils.filter_edge_store_(rest, batch, row, col, edge, perm)
    if edge_index is not None:
        batch["edge_index"] = edge_index
    for key, matrix in shared.items():
        batch[key] = matrix.sparse_layout.of_batch(matrix.store, row, col, edge, batch.size())
    return batch.get("edge_index")


class _Kinds(NamedTuple):
    """Of which kinds the attributes of data are."""

    shared: bool  # some are tensors of a store
    plain: bool  # all are those of a store, dense tensors, texts and numbers

    def without_modes(self) -> AbstractContextManager[Any]:
        """Hides torch's functions from its modes, if no attribute is of a type that needs them.

        A loader's thread runs in a mode for random numbers, of which filtering draws none. The mode
        would take a tenth of its time for a small batch.
        """
        return torch._C.DisableTorchFunction() if self.plain else nullcontext()


def _kinds_of(storages: Iterable[Any]) -> _Kinds:
    kinds = {type(value) for each in storages for value in storage_values(each).values()}
    of_store = {kind for kind in kinds if issubclass(kind, (StoreTensor, StoredFrame))}
    plain = all(kind is Tensor or issubclass(kind, (str, int, float)) for kind in kinds - of_store)
    return _Kinds(bool(of_store), plain)


def adjacencies(storage: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each adjacency matrix of an edge storage that reads a store."""
    values = storage_values(storage)
    for key in ADJACENCY_KEYS:
        if isinstance(values.get(key), ADJACENCY_TYPES):
            yield key, values[key]


def _drop_keys(storage: Any, names: Collection[str]) -> Any:
    """Copies a storage without some of its attributes; keeps its number of edges."""
    if not names:
        return storage
    rest = copy.copy(storage)
    for name in names:
        del rest[name]
    rest.num_edges = storage.num_edges
    return rest

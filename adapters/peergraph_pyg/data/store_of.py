"""Finds the store of PyG's data, or of a pair of feature store and graph store.

It is the store of the data's tensors. Data also has a mark, which copies and results of transforms
keep, so that data that has lost its shared structure is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch_geometric.data import Data, HeteroData

from peergraph.store import EDGE, NODE, EdgeType, Store, StoreTensor

from ..compat import data_storage, graph_storage, storage_type, storage_values
from .edge_index_tensor import EdgeIndexTensor
from .feature_store import FeatureStore
from .frames import StoredFrame
from .graph_store import GraphStore
from .sparse_adjacency import ADJACENCY_KEYS, ADJACENCY_TYPES

_EDGE_KINDS = (EdgeIndexTensor, *ADJACENCY_TYPES)
_MARK = "_peergraph"


class _Keeper:
    """Keeps a store alive for data without shared tensors.

    Pickled for a child process that is being started, it contains the store. Pickled to a file,
    where a store has no meaning, it becomes ``True``.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return bool, (True,)
        return _Keeper, (self.store,)


def mark(data: Data | HeteroData, store: Store, *, keep: bool) -> None:
    """Marks data that :func:`share` returns.

    Args:
        data: the data.
        store: its store.
        keep: whether the mark keeps the store alive, for data without shared tensors.
    """
    setattr(graph_storage(data), _MARK, _Keeper(store) if keep else True)


def is_marked(data: Data | HeteroData) -> bool:
    """Returns whether the data came from :func:`share`, or is a copy of such data."""
    return _MARK in graph_storage(data).__dict__


def kept_store(data: Data | HeteroData) -> Store | None:
    """Returns the store that the mark keeps alive, if any."""
    keeper = graph_storage(data).__dict__.get(_MARK)
    return keeper.store if isinstance(keeper, _Keeper) else None


def store_of(data: Any) -> Store:
    """Returns the store behind ``data``.

    Args:
        data: ``Data`` or ``HeteroData`` that :func:`share` returned (or a copy of it), or the pair
            that :func:`stores` returned.

    Raises:
        ValueError: if there is none.
    """
    store = find_store(data)
    if store is None:
        raise ValueError(
            f"expected data returned by peergraph_pyg.share() or the stores of "
            f"peergraph_pyg.stores(), got {type(data).__name__} without a store"
        )
    return store


def find_store(data: Any) -> Store | None:
    """Returns the store behind ``data``; ``None`` without one."""
    if not isinstance(data, (Data, HeteroData)):
        return pair_store(data)
    # Edges that were shared again are in a newer store than features are.
    edges = (edge for _, edge in _edge_attributes(data) if isinstance(edge, _EDGE_KINDS))
    store = next((tensor.store for tensor in (*edges, *_store_tensors(data))), None)
    return kept_store(data) if store is None else store


def pair_store(data: Any) -> Store | None:
    """Returns the store of a pair of Peergraph's feature store and graph store."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return None
    features, graph = data
    if isinstance(features, FeatureStore) and isinstance(graph, GraphStore):
        if features.store is not graph.store:
            raise ValueError("the feature store and the graph store are of different stores")
        return features.store
    return None


def has_shared_structure(data: Any) -> bool:
    """Returns whether ``data`` has the nodes and edges of its store, so that the store can sample
    it.

    Edge types may be missing. False for data without a store, and for data whose structure was
    changed after it was shared.
    """
    if not isinstance(data, (Data, HeteroData)):
        return pair_store(data) is not None
    return find_store(data) is not None and not _changed_attributes(data)


def check_unchanged(data: Any) -> None:
    """Raises ``ValueError`` for data that was shared and has another structure now."""
    if not isinstance(data, (Data, HeteroData)):
        return
    changed = _changed_attributes(data)
    if changed and (is_marked(data) or find_store(data) is not None):
        names, verb = " and ".join(changed), "is" if len(changed) == 1 else "are"
        raise ValueError(
            f"this data was changed after share(): {names} {verb} no longer the store's; "
            "call peergraph_pyg.share(data) again, on all ranks"
        )


def _changed_attributes(data: Data | HeteroData) -> list[str]:
    """Returns the names of attributes whose nodes or edges are not those of the data's store."""
    store = find_store(data)
    changed = [] if store is None else _changed_num_nodes(data, store)
    if isinstance(data, Data) and next(_edge_attributes(data), None) is None:
        # Without edge_index there are no edges; the store of a graph that had some has them.
        empty = store is not None and store.is_homogeneous and store.num_edges() == 0
        return changed if empty else [*changed, "edge_index"]
    edges = dict(_edge_attributes(data))
    if store is not None and isinstance(data, HeteroData):
        # The type is there, so that its edges would be sampled, and be in no batch.
        emptied = [key for key in data.edge_types if key in store.edge_types and key not in edges]
        changed += [f"edge_index of {key}" for key in emptied]
    for key, value in edges.items():
        of_store = isinstance(value, _EDGE_KINDS) and value.store is store
        if not of_store or _edge_type_of(value) != (key or EDGE):
            changed.append("edge_index" if key is None else f"edge_index of {key}")
    return changed


def _changed_num_nodes(data: Data | HeteroData, store: Store) -> list[str]:
    """Returns the names of the ``num_nodes`` that differ from the store's."""
    if isinstance(data, Data):
        named: dict[str, Any] = {NODE: ("num_nodes", data_storage(data))}
    else:
        named = {key: (f"num_nodes of {key!r}", storage) for key, storage in data.node_items()}
    return [
        name
        for key, (name, storage) in named.items()
        if key in store.node_types
        and storage_values(storage).get("num_nodes") not in (None, store.num_nodes(key))
    ]


def _edge_attributes(data: Data | HeteroData) -> Iterator[tuple[EdgeType | None, Any]]:
    """By edge type with edges, the attribute that PyG's loaders read the edges from."""
    for storage in data.edge_stores:
        value = next(
            (storage[key] for key in (*ADJACENCY_KEYS, "edge_index") if key in storage), None
        )
        if value is not None:
            yield storage_type(storage), value


def _edge_type_of(edges: Any) -> EdgeType:
    owner = edges if isinstance(edges, EdgeIndexTensor) else edges.sparse_layout
    edge_type: EdgeType = owner.edge_type
    return edge_type


def _store_tensors(data: Any) -> Iterator[Any]:
    for storage in data.stores:
        for value in storage.values():
            if isinstance(value, (StoreTensor, StoredFrame, *ADJACENCY_TYPES)):
                yield value

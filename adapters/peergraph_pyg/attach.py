"""Which PyG inputs are Peergraph's: data with store tensors, or our pair of stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_geometric.data import Data, HeteroData

from peergraph.store import Store, StoreTensor

from .adjacency import KEYS, Adjacency
from .feature_store import PeergraphFeatureStore
from .graph_store import PeergraphGraphStore
from .store_tensor import EdgeIndexTensor


def store_of(data: Any) -> Store:
    """The store behind ``data``.

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
    """Like :func:`store_of`, ``None`` where there is no store."""
    if isinstance(data, (Data, HeteroData)):
        return next((tensor.store for tensor in _store_tensors(data)), None)
    return pair_store(data)


def pair_store(data: Any) -> Store | None:
    """The store of a (feature store, graph store) pair of ours."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return None
    features, graph = data
    if isinstance(features, PeergraphFeatureStore) and isinstance(graph, PeergraphGraphStore):
        if features.store is not graph.store:
            raise ValueError("the feature store and the graph store are of different stores")
        return features.store
    return None


def has_shared_structure(data: Any) -> bool:
    """Whether the edges of ``data`` are those of its store, so that the store can sample it.

    False for foreign data, and for shared features with an ``edge_index`` of the user's own.

    Raises:
        NotImplementedError: if some edge types are shared and others are not.
    """
    if not isinstance(data, (Data, HeteroData)):
        return pair_store(data) is not None
    if find_store(data) is None:
        return False
    edges = {str(s._key): value for s in data.edge_stores if (value := _edges(s)) is not None}
    own = [name for name, v in edges.items() if not isinstance(v, (EdgeIndexTensor, *Adjacency))]
    if own and len(own) < len(edges):
        raise NotImplementedError(
            f"edge types {own} were added after share(); build the whole graph, then share it"
        )
    return not own


def _edges(storage: Any) -> Any:
    """What PyG's loaders read the edges of a type from."""
    return next((storage[key] for key in (*KEYS, "edge_index") if key in storage), None)


def _store_tensors(data: Any) -> Iterator[Any]:
    for storage in data.stores:
        for value in storage.values():
            if isinstance(value, (StoreTensor, *Adjacency)):
                yield value

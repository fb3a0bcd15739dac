"""Which PyG inputs are Peergraph's: data with store tensors, or our pair of stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_geometric.data import Data, HeteroData

from peergraph.store import EDGE, NODE, EdgeType, Store, StoreTensor

from .. import compat
from .edge_index_tensor import EdgeIndexTensor
from .feature_store import PeergraphFeatureStore
from .graph_store import PeergraphGraphStore
from .origin import is_marked, kept_store
from .sparse_adjacency import KEYS, CsrMatrix

_EDGE_KINDS = (EdgeIndexTensor, *CsrMatrix)


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
    if not isinstance(data, (Data, HeteroData)):
        return pair_store(data)
    # Features may be of a store from which edges were taken that were shared again.
    edges = (edge for _, edge in _edges(data) if isinstance(edge, _EDGE_KINDS))
    found = next((tensor.store for tensor in (*edges, *_store_tensors(data))), None)
    return kept_store(data) if found is None else found


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
    """Whether nodes and edges of ``data`` are those of its store, so that the store can sample it.

    Edge types may have been deleted since. False for foreign data, and for data whose structure was
    changed after it was shared.
    """
    if not isinstance(data, (Data, HeteroData)):
        return pair_store(data) is not None
    return find_store(data) is not None and not _changes(data)


def refuse_changed(data: Any) -> None:
    """Raises ``ValueError`` for data that was shared and has another structure now."""
    if not isinstance(data, (Data, HeteroData)):
        return
    changed = _changes(data)
    if changed and (is_marked(data) or find_store(data) is not None):
        names, verb = " and ".join(changed), "is" if len(changed) == 1 else "are"
        raise ValueError(
            f"this data was changed after share(): {names} {verb} no longer the store's; "
            "call peergraph_pyg.share(data) again, on all ranks"
        )


def _changes(data: Data | HeteroData) -> list[str]:
    """The names of what says other things about nodes and edges than the data's store."""
    store = find_store(data)
    changed = [] if store is None else _other_num_nodes(data, store)
    if isinstance(data, Data) and next(_edges(data), None) is None:
        # Without edge_index there are no edges; the store of a graph that had some has them.
        empty = store is not None and store.is_homogeneous and store.num_edges() == 0
        return changed if empty else [*changed, "edge_index"]
    for key, value in _edges(data):
        of_store = isinstance(value, _EDGE_KINDS) and value.store is store
        if not of_store or _type_of(value) != (key or EDGE):
            changed.append("edge_index" if key is None else f"edge_index of {key}")
    return changed


def _other_num_nodes(data: Data | HeteroData, store: Store) -> list[str]:
    """Where ``num_nodes`` was set to another number."""
    if isinstance(data, Data):
        named: dict[str, Any] = {NODE: ("num_nodes", compat.data_storage(data))}
    else:
        named = {key: (f"num_nodes of {key!r}", storage) for key, storage in data.node_items()}
    return [
        name
        for key, (name, storage) in named.items()
        if key in store.node_types
        and compat.storage_values(storage).get("num_nodes") not in (None, store.num_nodes(key))
    ]


def _edges(data: Data | HeteroData) -> Iterator[tuple[EdgeType | None, Any]]:
    """What PyG's loaders read the edges of each type from; types without edges are left out."""
    for storage in data.edge_stores:
        value = next((storage[key] for key in (*KEYS, "edge_index") if key in storage), None)
        if value is not None:
            yield compat.storage_type(storage), value


def _type_of(edges: Any) -> EdgeType:
    owner = edges if isinstance(edges, EdgeIndexTensor) else edges.form
    edge_type: EdgeType = owner.edge_type
    return edge_type


def _store_tensors(data: Any) -> Iterator[Any]:
    for storage in data.stores:
        for value in storage.values():
            if isinstance(value, (StoreTensor, *CsrMatrix)):
                yield value

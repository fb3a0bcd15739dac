"""PyG adapter of Peergraph: one graph for all ranks, read by PyG's own loaders.

Importing it teaches ``torch_geometric.loader.NeighborLoader`` and ``LinkNeighborLoader`` to sample
shared graphs; they treat everything else as before.
"""

from __future__ import annotations

from peergraph import explaining
from peergraph.store import Store, StoreTensor, TableTensor

from . import hooks, nn
from .adjacency import AdjacencyTensor
from .attach import store_of
from .feature_store import PeergraphFeatureStore
from .graph_store import PeergraphGraphStore
from .lazy import lazy
from .lazy_rows import LazyRows
from .nn.swap import accelerate, explain, revert
from .prefetch import prefetch
from .sampler import StoreNeighborSampler
from .share import share
from .store_tensor import EdgeIndexTensor
from .targets import ExcludeTargets

__all__ = [
    "AdjacencyTensor",
    "EdgeIndexTensor",
    "ExcludeTargets",
    "LazyRows",
    "PeergraphFeatureStore",
    "PeergraphGraphStore",
    "StoreNeighborSampler",
    "StoreTensor",
    "TableTensor",
    "accelerate",
    "explain",
    "lazy",
    "nn",
    "prefetch",
    "revert",
    "share",
    "store_of",
    "stores",
]

hooks.install()
explaining.serve(explain)


def stores(store: Store) -> tuple[PeergraphFeatureStore, PeergraphGraphStore]:
    """The store as the pair that PyG's loaders take in place of data: ``NeighborLoader((fs, gs))``.

    Args:
        store: built with :class:`peergraph.store.Store`, or ``store_of(data)``.
    """
    return PeergraphFeatureStore(store), PeergraphGraphStore(store)

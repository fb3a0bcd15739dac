"""PyG adapter of Peergraph: one graph for all ranks, read by PyG's own loaders.

Importing it teaches the loaders and samplers of ``torch_geometric`` to sample shared graphs; they
treat everything else as before.
"""

from __future__ import annotations

from peergraph.integration import CapturedTraining
from peergraph.store import Store, StoreTensor, TableTensor

from . import nn
from .captured.capture import capture
from .data.edge_index_tensor import EdgeIndexTensor
from .data.feature_store import FeatureStore
from .data.frames import StoredFrame
from .data.graph_store import GraphStore
from .data.lazy_features import LazyRows
from .data.share import share
from .data.sparse_adjacency import AdjacencyTensor
from .data.store_of import store_of
from .fullgraph.full_graph import full_graph, partition_of
from .loader import patches
from .loader.batch_negatives import HardNegatives, InBatchNegatives
from .loader.exclude_targets import ExcludeTargets
from .loader.explain_loader import explain
from .loader.lazy import lazy
from .loader.ppr import PPRLoader, PPRSampler
from .loader.resume import stateful
from .loader.sampler import NeighborSampler
from .nn.accelerate import accelerate, revert
from .prefetching.prefetcher import prefetch

__all__ = [
    "AdjacencyTensor",
    "CapturedTraining",
    "EdgeIndexTensor",
    "ExcludeTargets",
    "FeatureStore",
    "GraphStore",
    "HardNegatives",
    "InBatchNegatives",
    "LazyRows",
    "NeighborSampler",
    "PPRLoader",
    "PPRSampler",
    "StoreTensor",
    "StoredFrame",
    "TableTensor",
    "accelerate",
    "capture",
    "explain",
    "full_graph",
    "lazy",
    "nn",
    "partition_of",
    "prefetch",
    "revert",
    "share",
    "stateful",
    "store_of",
    "stores",
]

patches.install()


def stores(store: Store) -> tuple[FeatureStore, GraphStore]:
    """The feature store and graph store that PyG's loaders take in the place of data.

    Args:
        store: built with :class:`peergraph.store.Store`, or ``store_of(data)``.
    """
    return FeatureStore(store), GraphStore(store)

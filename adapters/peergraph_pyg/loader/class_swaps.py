"""The classes that take the places of classes of PyG for shared data."""

from __future__ import annotations

from typing import Any

import torch_geometric.loader as pyg_loader
import torch_geometric.nn as pyg_nn
import torch_geometric.sampler as pyg_sampler
from torch_geometric import typing

from ..compat import patches
from ..data.edge_index_tensor import EdgeIndexTensor
from ..data.store_of import check_unchanged, find_store, has_shared_structure
from ..subgraphs import graph_saint
from ..subgraphs.cluster import ClusterData
from ..subgraphs.random_nodes import RandomNodeLoader
from ..subgraphs.shadow import ShaDowKHopSampler
from .hgt_sampler import HGTSampler
from .hop_loader import HopLoader
from .sampler import NeighborSampler
from .walk_models import MetaPath2Vec, Node2Vec

_OVER_A_STORE: dict[type, type] = {
    pyg_sampler.HGTSampler: HGTSampler,
    pyg_sampler.NeighborSampler: NeighborSampler,
    pyg_nn.MetaPath2Vec: MetaPath2Vec,
    pyg_nn.Node2Vec: Node2Vec,
    pyg_loader.ClusterData: ClusterData,
    pyg_loader.GraphSAINTEdgeSampler: graph_saint.GraphSAINTEdgeSampler,
    pyg_loader.GraphSAINTNodeSampler: graph_saint.GraphSAINTNodeSampler,
    pyg_loader.GraphSAINTRandomWalkSampler: graph_saint.GraphSAINTRandomWalkSampler,
    pyg_loader.NeighborSampler: HopLoader,
    pyg_loader.RandomNodeLoader: RandomNodeLoader,
    pyg_loader.ShaDowKHopSampler: ShaDowKHopSampler,
}
# PyG's own ones work without pyg-lib and torch-sparse.
_NEED_NO_LIBRARY = (pyg_loader.RandomNodeLoader, pyg_nn.MetaPath2Vec)
_NAMES = ("data", "edge_index", "edge_index_dict")  # of the first argument


def install() -> None:
    """Makes PyG's constructors make an object of the other class for shared data."""
    for kind in (pyg_loader.GraphSAINTSampler, *_OVER_A_STORE):
        patches.replace(kind, "__init__", _init)


# Not `__new__`, which hides the parameters: PyG's Lightning modules look at them.
def _init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    graph = args[0] if args else next((kwargs[name] for name in _NAMES if name in kwargs), None)
    kind = _OVER_A_STORE.get(type(self))
    if kind is not None and _is_shared(graph):
        self.__class__ = kind
        self.__init__(*args, **kwargs)
        return
    if not _pyg_can_sample() and not isinstance(self, _NEED_NO_LIBRARY):
        check_unchanged(graph)
    try:
        original(self, *args, **kwargs)
    except ImportError as error:
        if find_store(graph) is None:
            raise
        raise ImportError(
            f"{error}. Without it, shared data is served to PyG's own classes, not to subclasses "
            f"such as {type(self).__name__}"
        ) from error


def _is_shared(graph: Any) -> bool:
    """Returns whether a store has the edges of data, of an edge index, or of a dict of these."""
    if isinstance(graph, dict):
        return bool(graph) and all(isinstance(v, EdgeIndexTensor) for v in graph.values())
    return isinstance(graph, EdgeIndexTensor) or has_shared_structure(graph)


def _pyg_can_sample() -> bool:
    """Returns whether PyG's own samplers have one of the libraries that they need."""
    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)

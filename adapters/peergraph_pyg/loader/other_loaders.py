"""PyG's loaders that need torch-sparse or pyg-lib: what serves shared data instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_geometric.loader import ClusterData, GraphSAINTSampler, ShaDowKHopSampler
from torch_geometric.sampler import HGTSampler

from ..data.store_of import find_store

_INSTEAD = {
    HGTSampler: "NeighborLoader with num_neighbors by edge type",
    ShaDowKHopSampler: "NeighborLoader with disjoint=True and subgraph_type='induced'",
    GraphSAINTSampler: "NeighborLoader, or peergraph.sampling.RandomWalker for walks",
    ClusterData: "NeighborLoader, or RandomNodeLoader for parts of the graph",
}


def install() -> None:
    """Wraps the constructors, so that a missing library is reported with a way out."""
    for kind, instead in _INSTEAD.items():
        kind.__init__ = _wrapped(kind.__init__, instead)


def _wrapped(original: Callable[..., None], instead: str) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except ImportError as error:
            if find_store(args[0] if args else kwargs.get("data")) is None:
                raise
            raise ImportError(
                f"{error}. Without it, shared data is sampled by {instead}"
            ) from error

    return init

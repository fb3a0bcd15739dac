"""PyG's own tests of its loaders and samplers, run on shared data.

    python -m tests.adapters.pyg.own_loader_tests PATH_OF_A_CHECKOUT_OF_PYG [options of pytest]

The checkout must be of the version that is installed; packages of PyG come without tests. Data that
a test passes to a loader is shared first. Tests that PyG skips without pyg-lib or torch-sparse run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.sampler
import torch_geometric.testing
from torch_geometric.data import Data, HeteroData

import peergraph_pyg
from peergraph_pyg.data.store_of import has_shared_structure
from tests.adapters.pyg.own_tests import run_with_reasons

FOLDERS = ("test/loader", "test/sampler")
LOADERS = (
    *("NeighborLoader", "LinkNeighborLoader", "NodeLoader", "LinkLoader", "HGTLoader"),
    *("GraphSAINTNodeSampler", "GraphSAINTEdgeSampler", "GraphSAINTRandomWalkSampler"),
    *("ClusterData", "RandomNodeLoader", "ShaDowKHopSampler"),
)
SAMPLERS = ("NeighborSampler", "BidirectionalNeighborSampler", "HGTSampler")

_OWN_STORES = "of stores that the user wrote, which PyG's own sampler reads with a library"
_MATRICES = "makes a SparseTensor, which needs torch-sparse"
_DOWNLOADS = "downloads a data set"
# Why a test fails, by its name and, in brackets, a part of its parameters.
NOT_OURS = {
    "test_cluster_gcn": "looks at the order of edges in a partition, which has no edges here",
    "test_custom_neighbor_loader": _OWN_STORES,
    "test_custom_hetero_neighbor_loader": _OWN_STORES,
    "test_custom_hetero_neighbor_loader_duplicate": _OWN_STORES,
    "test_temporal_custom_neighbor_loader_on_karate": _OWN_STORES,
    "test_custom_hetero_link_neighbor_loader": _OWN_STORES,
    "[remote]": _OWN_STORES,
    "-remote]": _OWN_STORES,
    "test_pyg_lib_and_torch_sparse_homo_equality": "calls pyg-lib",
    "test_pyg_lib_and_torch_sparse_hetero_equality": "calls pyg-lib",
    "test_hgt_loader": _MATRICES,
    "test_shadow_k_hop_sampler": _MATRICES,
    "test_neighbor_sampler_basic": _MATRICES,
    "test_hgt_loader_on_cora": _DOWNLOADS,
    "test_cluster_gcn_correctness": _DOWNLOADS,
    "test_neighbor_sampler_on_cora": _DOWNLOADS,
    "test_multithreading_neighbor_loader": "needs more than one processor",
}

_shared: dict[int, tuple[Any, Any]] = {}


def share_arguments() -> None:
    """Makes PyG's loaders and samplers share the data that they get."""
    kinds = [getattr(torch_geometric.loader, name) for name in LOADERS]
    samplers = [getattr(torch_geometric.sampler, name, None) for name in SAMPLERS]
    for kind in (*kinds, *filter(None, samplers), torch_geometric.loader.NeighborSampler):
        kind.__init__ = _with_shared(kind.__init__)


def run_all_tests() -> None:
    """Makes PyG run its tests that are skipped without pyg-lib, torch-sparse or METIS."""
    with_package = torch_geometric.testing.withPackage

    def other_packages(*names: str) -> Any:
        rest = [name for name in names if not name.startswith(("pyg_lib", "torch_sparse"))]
        return with_package(*rest) if rest else lambda test: test

    for module in (torch_geometric.testing, torch_geometric.testing.decorators):
        module.withPackage = other_packages
        module.onlyNeighborSampler = module.withMETIS = lambda test: test


def _with_shared(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        init(self, _share(data, kwargs.get("num_nodes")), *args, **kwargs)

    return wrapped


def _share(graph: Any, num_nodes: int | None) -> Any:
    if type(graph) is torch.Tensor:  # edges
        data = Data(edge_index=graph, num_nodes=num_nodes or int(graph.max()) + 1)
        return peergraph_pyg.share(data).edge_index
    if not isinstance(graph, (Data, HeteroData)) or has_shared_structure(graph):
        return graph
    # A test may make several loaders of the same data, which is kept so that its id stays its own.
    if id(graph) not in _shared:
        _shared[id(graph)] = graph, peergraph_pyg.share(graph)
    return _shared[id(graph)][1]


def main(checkout: str, *options: str) -> int:
    """Runs the tests; 0 if none fails but those of `NOT_OURS`."""
    root = Path(checkout).resolve()
    folders = [root / folder for folder in FOLDERS if (root / folder).exists()]
    if not folders:
        raise SystemExit(f"{checkout} has none of PyG's tests of loaders")
    share_arguments()
    run_all_tests()
    return run_with_reasons(root, folders, options, _reason)


def _reason(test: str) -> str | None:
    name = test.split("::")[-1]
    of_name = NOT_OURS.get(name.split("[")[0])
    parts = (reason for part, reason in NOT_OURS.items() if "]" in part and name.endswith(part))
    return of_name or next(parts, None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

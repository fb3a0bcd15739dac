"""No loader keeps anything of the graph's size in a process: what it sends to a worker is small."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch_geometric import loader as pyg_loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MetaPath2Vec, Node2Vec

import peergraph_pyg

NODES, EDGES = 20_000, 100_000
# Far below a byte for each node, and above handles of tables and settings.
MOST_BYTES = 15_000
WRITES = ("author", "writes", "paper")


def homogeneous() -> Data:
    return Data(
        x=torch.randn(NODES, 2),
        edge_index=torch.randint(NODES, (2, EDGES)),
        edge_attr=torch.randn(EDGES),
    )


def typed() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(NODES, 2), torch.randn(NODES, 2)
    data[WRITES].edge_index = torch.randint(NODES, (2, EDGES))
    return data


def walks(model: Any) -> Any:
    """What the model's loader needs; its embedding is the user's."""
    del model.embedding
    return model


MAKERS: dict[str, Callable[[Any], Any]] = {
    "ShaDow": lambda data: pyg_loader.ShaDowKHopSampler(data, 2, 3),
    "SAINT nodes": lambda data: pyg_loader.GraphSAINTNodeSampler(data, 50, 2, 1, log=False),
    "SAINT edges": lambda data: pyg_loader.GraphSAINTEdgeSampler(data, 50, 2, 1, log=False),
    "SAINT walks": lambda data: pyg_loader.GraphSAINTRandomWalkSampler(data, 50, 2, log=False),
    "RandomNode": lambda data: pyg_loader.RandomNodeLoader(data, 50),
    "Cluster": lambda data: pyg_loader.ClusterLoader(pyg_loader.ClusterData(data, 9, log=False)),
    "NeighborSampler": lambda data: pyg_loader.NeighborSampler(data.edge_index, [3]),
    "Node2Vec": lambda data: walks(Node2Vec(data.edge_index, 1, 4, 2)),
    "HGT": lambda data: pyg_loader.HGTLoader(data, [4], ("paper", torch.arange(9))),
    "RandomNode, typed": lambda data: pyg_loader.RandomNodeLoader(data, 50),
    "MetaPath2Vec": lambda data: walks(MetaPath2Vec(data.edge_index_dict, 1, [WRITES], 1, 2)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_sends_handles_to_workers(kind: str) -> None:
    is_typed = kind in ("HGT", "RandomNode, typed", "MetaPath2Vec")
    shared = peergraph_pyg.share(typed() if is_typed else homogeneous(), device="cpu")
    loader = MAKERS[kind](shared)
    sent = getattr(loader, "__collate__", getattr(loader, "collate_fn", loader))
    assert len(ForkingPickler.dumps(sent)) < MOST_BYTES


def test_nothing_is_kept_here(device: torch.device) -> None:
    """Of tensors that are as large as the graph, only those of the store remain."""
    shared = peergraph_pyg.share(homogeneous(), device=device)
    for kind in ("ShaDow", "SAINT edges", "RandomNode", "Cluster", "NeighborSampler"):
        loader = MAKERS[kind](shared)
        next(iter(loader))
        owned = [loader, getattr(loader, "cluster_data", None)]
        for values in (vars(owner) for owner in owned if owner is not None):
            for name, value in values.items():
                is_plain = type(value) is torch.Tensor
                assert not (is_plain and value.numel() >= NODES), f"{kind}: {name}"
                assert not (isinstance(value, list) and len(value) >= NODES), f"{kind}: {name}"

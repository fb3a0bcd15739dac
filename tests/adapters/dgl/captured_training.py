"""A graph, models and the loop that `peergraph_dgl.capture` replaces."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.nn as dglnn
import numpy as np
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from torch import Tensor, nn

import peergraph_dgl
from tests.adapters.captured_results import adam, assert_same_results, loop_results

NODES, EDGES, WIDTH, CLASSES, BATCH = 400, 5000, 10, 4, 32
SEEDS = torch.arange(20, 20 + 5 * BATCH + 7)


def plain(idtype: torch.dtype = torch.int64) -> Any:
    random = torch.Generator().manual_seed(1)
    ends = torch.randint(NODES, (2, EDGES), generator=random)
    g = dgl.graph((ends[0], ends[1]), num_nodes=NODES, idtype=idtype)
    g.ndata["x"] = torch.randn(NODES, WIDTH, generator=random)
    g.ndata["y"] = torch.randint(CLASSES, (NODES,), generator=random)
    g.edata["w"] = torch.rand(EDGES, generator=random)
    # Most edges have no weight, and some nodes no edge with one.
    g.edata["p"] = (torch.randn(EDGES, generator=random) - 1).relu()
    g.edata["mask"] = g.edata["p"] > 0
    return g


class Model(nn.Module):
    """Layers of DGL over the blocks of a batch."""

    def __init__(self, kind: str, hops: int) -> None:
        super().__init__()
        sizes = [WIDTH, *[12] * (hops - 1), CLASSES]
        self.layers = nn.ModuleList(map(self._layer, [kind] * hops, sizes, sizes[1:]))
        self.kind = kind

    @staticmethod
    def _layer(kind: str, size: int, out: int) -> nn.Module:
        if kind == "gat":
            return dglnn.GATConv(size, out, 1, allow_zero_in_degree=True)
        if kind == "gcn":
            return dglnn.GraphConv(size, out, allow_zero_in_degree=True)
        return dglnn.SAGEConv(size, out, "mean")

    def forward(self, blocks: Any, h: Tensor) -> Tensor:
        for block, layer in zip(blocks, self.layers, strict=True):
            if self.kind == "weights":
                h = layer(block, h, edge_weight=block.edata["w"]).relu()
            else:
                h = layer(block, h).flatten(1).relu()
        return h


def make_model(kind: str, device: torch.device, fast: bool = True, hops: int = 2) -> nn.Module:
    torch.manual_seed(5)
    model = Model(kind, hops).to(device)
    return peergraph_dgl.accelerate(model) if fast else model


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    _, output_nodes, blocks = batch
    size = len(output_nodes)
    out = model(blocks, blocks[0].srcdata["x"])[:size]
    return F.cross_entropy(out, blocks[-1].dstdata["y"][:size]), output_nodes


def make_loader(g: Any, device: torch.device, sampler: Any = None, **options: Any) -> DataLoader:
    """Returns a loader of five full batches and one of 7 seeds, in a random order."""
    options = {"indices": SEEDS.to(g.idtype), "batch_size": BATCH, "shuffle": True, **options}
    return DataLoader(
        g, options.pop("indices"), sampler or NeighborSampler([4, 5]), device=device, **options
    )


def seed_all() -> None:
    torch.manual_seed(9)
    np.random.seed(9)  # noqa: NPY002  # DGL's loader draws the order of seeds from it


def loop(loader: Any, model: nn.Module, loss: Any = loss_of, epochs: int = 2) -> list[Any]:
    seed_all()
    return loop_results(loader, model, loss, epochs)


def run(training: Any, epochs: int = 2) -> list[Any]:
    seed_all()
    return [result for _ in range(epochs) for result in training]


def check(loader: Any, make: Any, loss: Any = loss_of) -> Any:
    """Checks the losses of two epochs; returns the training."""
    order = loader.dataset._indices.clone()
    expected = loop(loader, make(), loss)
    loader.dataset._indices.copy_(order)  # it is shuffled in place
    model = make()
    training = peergraph_dgl.capture(loader, model, adam(model), loss)
    assert_same_results(run(training), expected)
    return training

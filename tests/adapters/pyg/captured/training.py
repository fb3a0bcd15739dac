"""A graph, a model and the loop that `capture` replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

import peergraph_pyg

NODES, WIDTH, CLASSES, BATCH = 600, 12, 4, 32
FANOUTS = [5, 4, 3]


def make_loader(plain: Data, device: torch.device, **options: Any) -> NeighborLoader:
    """Returns a loader of six full batches and one of 8 seeds, in a random order."""
    settings = {
        "batch_size": BATCH,
        "shuffle": True,
        "input_nodes": torch.arange(50, 250),
        **options,
    }
    fanouts = settings.pop("num_neighbors", FANOUTS)
    return NeighborLoader(peergraph_pyg.share(plain, device=device), fanouts, **settings)


def sage(device: torch.device, dropout: float = 0.0, fast: bool = True) -> nn.Module:
    torch.manual_seed(5)
    model = GraphSAGE(WIDTH, 16, len(FANOUTS), CLASSES, dropout=dropout).to(device)
    return peergraph_pyg.accelerate(model) if fast else model


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])


def untrimmed_loss(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x, batch.edge_index)
    return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])


Loss = Callable[[nn.Module, Any], Tensor]


def loop(
    loader: Any, model: nn.Module, optimizer: Any, loss: Loss, epochs: int = 2
) -> Iterator[Tensor]:
    """The training loop that `capture` replaces."""
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            yield value.detach()


def captured(training: Any, epochs: int = 2) -> list[Tensor]:
    return [value for _ in range(epochs) for value in training]

"""A graph, a model, and comparisons of `capture` with the loop that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv

import peergraph_pyg
from peergraph.integration import CapturedTraining
from tests.adapters.captured_results import adam, assert_same_results, loop_results

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


def typed_data() -> HeteroData:
    """Nodes of two types with features, and 2,000 random edges of each of three types."""
    random = torch.Generator().manual_seed(0)
    sizes = {"user": 300, "item": 120}
    data = HeteroData()
    for node_type, count in sizes.items():
        data[node_type].x = torch.randn(count, WIDTH, generator=random)
    for source, name, target in [
        ("user", "buys", "item"),
        ("item", "rev_buys", "user"),
        ("user", "knows", "user"),
    ]:
        ends = [torch.randint(sizes[t], (2000,), generator=random) for t in (source, target)]
        data[source, name, target].edge_index = torch.stack(ends)
    return data


class TypedSage(nn.Module):
    """Two layers over the edges of all types."""

    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv((-1, -1), 8) for t in edge_types}) for _ in range(2)
        )

    def forward(self, x: dict[str, Tensor], edge_index_dict: Any) -> dict[str, Tensor]:
        for conv in self.convs:
            x = {t: rows.relu() for t, rows in conv(x, edge_index_dict).items()}
        return x


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


def captured(training: Any, epochs: int = 2) -> list[Any]:
    return [value for _ in range(epochs) for value in training]


def check(
    loader: Any,
    make: Callable[[], nn.Module],
    loss: Any,
    *,
    epochs: int = 2,
    num_eager: int | None = 2,
    scale: float = 1,
) -> tuple[CapturedTraining, list[Any]]:
    """Compares epochs with those of the loop, and the random numbers that follow.

    Args:
        loader: the loader.
        make: makes the model, always the same.
        loss: the loss.
        epochs: how many.
        num_eager: steps that do not fit the shape; None: any number.
        scale: of the usual tolerance.

    Returns:
        The training, and what its steps returned.
    """
    model = make()
    torch.manual_seed(9)
    expected = loop_results(loader, model, loss, epochs)
    after = torch.rand(4)
    model = make()
    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    torch.manual_seed(9)
    results = captured(training, epochs)
    assert torch.equal(torch.rand(4), after)
    assert_same_results(results, expected, scale)
    assert num_eager in (None, training.num_eager)
    is_on_gpu = next(model.parameters()).is_cuda
    fitting = epochs * len(training) - training.num_eager
    assert training.num_captured == (fitting - 3 if is_on_gpu else 0)
    return training, results


def check_exceeding(loader: Any, make: Callable[[], nn.Module], loss: Any) -> None:
    """Compares three epochs whose first shape is too small: the next one's has room."""
    model = make()
    torch.manual_seed(9)
    expected = loop_results(loader, model, loss, 3)
    model = make()
    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    torch.manual_seed(9)
    results, exceeding = captured(training, 1), training.num_eager
    assert exceeding > 1
    results += captured(training, 2)
    assert training.num_eager < exceeding + 6
    assert_same_results(results, expected)

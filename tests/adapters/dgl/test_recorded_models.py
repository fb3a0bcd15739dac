"""Plans of models that run on a small graph first."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import dgl  # isort: split

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peergraph_dgl
from peergraph.memory import Group
from peergraph.testing import run_ranks
from peergraph_dgl.graph.store_of import find_store

NODES = 2000


class Model(nn.Module):
    """Two layers with running statistics between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dgl.nn.GraphConv(16, 8, allow_zero_in_degree=True)
        self.norm = nn.BatchNorm1d(8)
        self.second = dgl.nn.GraphConv(8, 4, allow_zero_in_degree=True)

    def forward(self, g: Any, x: Tensor) -> Tensor:
        out: Tensor = self.second(g, F.relu(self.norm(self.first(g, x))))
        return out


def loss_of(model: Any, g: Any) -> Tensor:
    mask = g.ndata["mask"]
    return F.cross_entropy(model(g, g.ndata["x"])[mask], g.ndata["y"][mask])


def random_graph() -> Any:
    draw = torch.Generator().manual_seed(1)
    ends = torch.randint(NODES, (2, 20_000), generator=draw)
    graph = dgl.graph((ends[0], ends[1]), num_nodes=NODES)
    graph.ndata["x"] = torch.randn(NODES, 16, generator=draw)
    graph.ndata["y"] = torch.arange(NODES) % 4
    graph.ndata["mask"] = torch.rand(NODES, generator=draw) < 0.1
    return graph


def test_the_plan_is_that_of_the_model() -> None:
    model, plans = Model(), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    group = Group(0, 1, torch.device("cpu"), 60.0)
    options = {"offload": True, "num_chunks": 4, "group": group}
    for _ in range(2):
        graph = peergraph_dgl.full_graph(
            random_graph(), 1 << 21, model=model, loss=loss_of, **options
        )
        plans.append(graph.ndata["x"]._content.space.allocator.use["device"].budget)
    assert plans[0] == plans[1] > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    loss_of(model, graph).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(TypeError, match="loss must be a function of the model"):
        peergraph_dgl.full_graph(random_graph(), model=model, **options)


def _check_shared() -> None:
    """Graphs whose rows are in a store are sampled where they are."""
    shared = peergraph_dgl.share(random_graph(), device="cpu")
    served = peergraph_dgl.from_store(find_store(shared))
    budgets = []
    for graph in (shared, served):
        parts = peergraph_dgl.full_graph(
            graph, 1 << 21, model=Model(), loss=loss_of, offload=True, num_chunks=4
        )
        budgets.append(parts.ndata["x"]._content.space.allocator.use["device"].budget)
    assert budgets[0] == budgets[1] > 0


def test_shared_graphs() -> None:
    run_ranks(_check_shared, 2)

"""Full-graph training on CPU ranks and on GPUs: what few nodes, one training node, rounding and
repeated runs do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS
from tests.named_case import named_case

from .full_graph.graphs import CLASSES, WIDTH, small_graph

Make = Callable[[], nn.Module]
EPOCHS = 2

MODELS: dict[str, Make] = {
    "GCN": lambda: pyg.GCN(WIDTH, 8, 2, CLASSES, norm="batch_norm"),
    "SAGE": lambda: pyg.GraphSAGE(WIDTH, 8, 3, CLASSES, jk="cat"),
    "GAT": lambda: pyg.GAT(WIDTH, 8, 2, CLASSES, heads=2),
    "GIN": lambda: pyg.GIN(WIDTH, 8, 2, CLASSES, norm="batch_norm"),
}


def graph(num_nodes: int, num_edges: int, training: slice) -> Data:
    """A graph of which some nodes are training nodes; without attributes of edges."""
    whole = small_graph(num_nodes, num_edges, seed=num_nodes)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[training] = True
    return Data(x=whole.x, y=whole.y, edge_index=whole.edge_index, train_mask=mask)


def train(
    make: Make, data: Any, dtype: torch.dtype, device: torch.device, epochs: int = EPOCHS
) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """Returns the losses, the first epoch's gradients and the parameters in the end."""
    torch.manual_seed(0)
    model = peergraph_pyg.accelerate(make().to(device, dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses: list[float] = []
    grads: list[Tensor] = []
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        grads = grads or [p.grad.double().cpu().clone() for p in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return losses, grads, [p.detach().double().cpu() for p in model.parameters()]


def plain(make: Make, data: Data) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """PyG in one process on the CPU, in float64."""
    return train(make, copy.copy(data), torch.float64, torch.device("cpu"))


def partitioned(data: Data, dtype: torch.dtype, group: Group) -> Any:
    cast = copy.copy(data)
    cast.x = data.x.to(dtype)
    return peergraph_pyg.full_graph(cast, group=group)


def check_few_nodes_and_training_nodes(group: Group) -> None:
    """Graphs smaller than the number of ranks, and one training node: other ranks have none."""
    cases = {
        "one node": graph(1, 0, slice(None)),
        "two nodes": graph(2, 3, slice(1)),
        "three nodes": graph(3, 4, slice(None)),
        "no edges": graph(9, 0, slice(3)),
        "one training node": graph(40, 200, slice(7, 8)),
        "training nodes at the end": graph(40, 200, slice(33, None)),
    }
    for number, (name, data) in enumerate(cases.items()):
        for kind, make in list(MODELS.items())[1 - number % 2 :: 2]:
            if name == "one node" and kind != "SAGE":
                continue  # BatchNorm of PyG needs two nodes.
            with named_case(name, kind):
                ours = partitioned(data, torch.float64, group)
                actual = train(make, ours, torch.float64, group.device)
                for got, expected in zip(actual[:2], plain(make, data)[:2], strict=True):
                    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


def check_gradients(group: Group) -> None:
    """Of float32 against float64: they differ by rounding alone."""
    data = graph(300, 4000, slice(100))
    for kind, make in MODELS.items():
        expected = plain(make, data)[1]
        actual = train(make, partitioned(data, torch.float32, group), torch.float32, group.device)
        # What is zero but for rounding, as of biases before BatchNorm, counts beside the greatest.
        scale = max(float(grad.abs().max()) for grad in expected)
        for number, (got, exact) in enumerate(zip(actual[1], expected, strict=True)):
            with named_case(kind, number):
                assert float((got - exact).abs().max()) <= 2e-6 * scale


def check_two_runs(group: Group) -> None:
    """Losses, gradients and parameters of two trainings are equal bit for bit."""
    data = graph(300, 4000, slice(100))
    data.x = data.x.float()
    makes = {**MODELS, "dropout": lambda: pyg.GCN(WIDTH, 8, 2, CLASSES, dropout=0.5)}
    for kind, make in makes.items():
        first, second = (
            train(make, partitioned(data, torch.float32, group), torch.float32, group.device)
            for _ in range(2)
        )
        with named_case(kind):
            assert first[0] == second[0]
            for a, b in zip(first[1] + first[2], second[1] + second[2], strict=True):
                assert torch.equal(a, b)


def run_checks(device: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    group = Group.current(device)
    check_few_nodes_and_training_nodes(group)
    check_gradients(group)
    check_two_runs(group)


def test_on_cpu_ranks() -> None:
    run_ranks(run_checks, 3, "cpu", timeout_s=300)


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_on_gpus(ranks: int) -> None:
    run_ranks(run_checks, ranks, "cuda", device="cuda", timeout_s=300)

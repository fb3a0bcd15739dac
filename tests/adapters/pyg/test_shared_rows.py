"""Layers of several relations: rows are exchanged once a type of nodes, results are PyG's."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, GINConv, GraphConv, HeteroConv, SAGEConv

import peergraph_pyg
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES = {"paper": 40, "author": 23, "venue": 2}
WIDTH, CLASSES = 6, 3
Make = Callable[[int, int], nn.Module]

LAYERS: dict[str, Make] = {
    "mean": SAGEConv,
    "max": lambda a, b: SAGEConv(a, b, aggr="max"),
    "lazy": lambda a, b: SAGEConv((-1, -1), b),
    "sum": GraphConv,
    "attention": lambda a, b: GATConv((a, a), b, add_self_loops=False),
}


def make_data(relations: int) -> HeteroData:
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    for node_type, count in NODES.items():
        data[node_type].x = torch.randn(count, WIDTH, generator=draw, dtype=torch.float64)
        data[node_type].y = torch.randint(CLASSES, (count,), generator=draw)
    types = list(NODES)
    for relation in range(relations):
        source, target = types[relation % 3], types[relation // 3 % 3]
        ends = [torch.randint(NODES[t], (150,), generator=draw) for t in (source, target)]
        data[source, f"r{relation}", target].edge_index = torch.stack(ends)
    return data


class Model(nn.Module):
    def __init__(self, data: HeteroData, make: Make, width: int, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        # A relation that the data lack: its parameters get no gradient.
        types = [*data.edge_types, ("paper", "absent", "paper")]
        self.first = HeteroConv({t: make(WIDTH, width) for t in types}, aggr="sum")
        self.second = HeteroConv({t: make(width, CLASSES) for t in types}, aggr="mean")

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Any]) -> dict[str, Tensor]:
        x = {node_type: h.tanh() for node_type, h in self.first(x, edges).items()}
        if self.checkpoints:
            out: dict[str, Tensor] = checkpoint(self.second, x, edges, use_reentrant=False)
        else:
            out = self.second(x, edges)
        return out


def train(model: nn.Module, data: Any) -> tuple[list[float], dict[str, Tensor | None], Tensor]:
    """Returns losses of three steps, and the last gradients of parameters and of features."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    x = {t: data[t].x for t in NODES}
    for step in range(3):
        if step == 2:
            x["paper"] = x["paper"].detach().clone().requires_grad_()
        optimizer.zero_grad()
        out = model(x, data.edge_index_dict)
        loss = torch.stack([F.cross_entropy(out[t], data[t].y) for t in out]).sum()
        loss.backward()
        if step < 2:
            optimizer.step()
        losses.append(loss.item())
    grad = x["paper"].grad
    assert grad is not None
    grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return losses, {name: p.grad for name, p in model.named_parameters()}, grad


def compare(kind: str, relations: int, width: int, checkpoints: bool) -> None:
    data = make_data(relations)
    torch.manual_seed(0)
    plain = Model(data, LAYERS[kind], width, checkpoints).double()
    if kind == "lazy":
        with torch.no_grad():
            plain(data.x_dict, data.edge_index_dict)
        del plain.first.convs["paper", "absent", "paper"]
        del plain.second.convs["paper", "absent", "paper"]
    model = peergraph_pyg.accelerate(copy.deepcopy(plain))
    expected = train(plain, data)
    actual = train(model, peergraph_pyg.full_graph(data))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def compare_all(kinds: list[str]) -> None:
    for kind in kinds:
        for width in (4, 24):  # narrower and wider than the features: other orders of products
            compare(kind, 9, width, checkpoints=width == 4)


def test_results_are_those_of_one_process() -> None:
    run_ranks(compare_all, 2, list(LAYERS))


def test_of_three_ranks_one_has_no_rows_of_a_type() -> None:
    run_ranks(compare_all, 3, ["mean"])


def mixed() -> None:
    """Layers that share rows, ones that exchange their own, and ones of two types of nodes."""
    data = make_data(9)
    torch.manual_seed(0)
    kinds: list[Make] = [SAGEConv, LAYERS["attention"], LAYERS["max"]]
    convs = {t: kinds[i % 3](WIDTH, CLASSES) for i, t in enumerate(data.edge_types)}
    convs["paper", "r0", "paper"] = GINConv(nn.Linear(WIDTH, CLASSES), train_eps=True)
    plain = HeteroConv(convs).double()
    model = peergraph_pyg.accelerate(copy.deepcopy(plain))
    expected = train(plain, data)
    full = peergraph_pyg.full_graph(data)
    torch.testing.assert_close(train(model, full), expected, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        out = model(full.x_dict, full.edge_index_dict)
        for node_type, rows in plain(data.x_dict, data.edge_index_dict).items():
            torch.testing.assert_close(
                model(full.x_dict, full.edge_index_dict)[node_type].full_tensor(),
                out[node_type].full_tensor(),
            )
            assert rows.shape == out[node_type].shape


def test_layers_of_several_kinds() -> None:
    run_ranks(mixed, 2)


def count_exchanges(kind: str, relations: int) -> Counter[str]:
    """Exchanges of one training step, by name."""
    data = make_data(relations)
    torch.manual_seed(0)
    model = peergraph_pyg.accelerate(Model(data, LAYERS[kind], 8, False).double())
    full = peergraph_pyg.full_graph(data)
    counts: Counter[str] = Counter()
    announce = Group.announce

    def counted(group: Group, name: str) -> None:
        counts[name.split(",")[0]] += 1
        announce(group, name)

    for step in range(2):
        if step == 1:
            Group.announce = counted  # type: ignore[method-assign]
        out = model(full.x_dict, full.edge_index_dict)
        torch.stack([out[t].square().mean() for t in out]).sum().backward()
    return counts


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_exchanges_do_not_grow_with_the_relations(kind: str) -> None:
    few, many = (run_ranks(count_exchanges, 2, kind, relations)[0] for relations in (9, 36))
    assert few == many
    of_rows = [count for name, count in many.items() if "exchange of" in name]
    # Three types of sources: two layers forward (one has constant features), one backward.
    assert sum(of_rows) <= 9

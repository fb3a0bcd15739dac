"""Swapping layers in models and back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.package import PackageExporter, PackageImporter
from torch.package.package_exporter import PackagingError
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn.conv import MessagePassing

import peergraph_pyg
from peergraph_pyg import accelerate, explain, revert
from tests.named_case import named_cases

from .graphs import random_data
from .layer_cases import WIDTH, assert_same, edges, x_and_edges

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "sage": lambda: pyg.GraphSAGE(WIDTH, 8, 2, 3),
    "sage with jumps": lambda: pyg.GraphSAGE(WIDTH, 8, 3, 3, jk="cat", norm="batch_norm"),
    "gcn": lambda: pyg.GCN(WIDTH, 8, 2, 3),
    "gat": lambda: pyg.GAT(WIDTH, 8, 2, 3, heads=2),
    "gat v2": lambda: pyg.GAT(WIDTH, 8, 2, 3, v2=True),
    "gin": lambda: pyg.GIN(WIDTH, 8, 2, 3),
    "sequence": lambda: pyg.Sequential(
        "x, edge_index",
        [(pyg.SAGEConv(WIDTH, 8), "x, edge_index -> x"), torch.nn.ReLU(), torch.nn.Linear(8, 3)],
    ),
}


def layers(model: torch.nn.Module) -> list[MessagePassing]:
    return [module for module in model.modules() if isinstance(module, MessagePassing)]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    args = x_and_edges()
    for _ in range(steps):
        optimizer.zero_grad()
        model(*args).square().sum().backward()
        optimizer.step()


@named_cases("kind", MODELS)
def test_models_and_back(kind: str, device: torch.device) -> None:
    torch.manual_seed(0)
    theirs = MODELS[kind]().to(device)
    ours = accelerate(copy.deepcopy(theirs))
    assert repr(ours) == repr(theirs)
    assert all(type(layer).__module__.startswith("peergraph_pyg") for layer in layers(ours))
    args = x_and_edges(device)
    assert "peergraph" in explain(ours, *args)
    for _ in range(2):
        assert_same(theirs, ours, *args)
    reverted = revert(copy.deepcopy(ours))
    assert [type(layer) for layer in layers(reverted)] == [type(layer) for layer in layers(theirs)]
    assert_same(theirs, reverted, *args)
    assert "no layer" in explain(reverted, *args)


def test_training_goes_on() -> None:
    torch.manual_seed(0)
    theirs = pyg.GraphSAGE(WIDTH, 8, 2, 3)
    ours = copy.deepcopy(theirs)
    ours.convs[0].eval()
    calls: list[int] = []
    ours.convs[0].register_forward_hook(lambda *_: calls.append(1))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (theirs, ours)]
    parameters = list(ours.parameters())
    for model, optimizer in zip((theirs, ours), optimizers, strict=True):
        train(model, optimizer, 2)
    assert accelerate(ours) is ours
    assert all(a is b for a, b in zip(parameters, ours.parameters(), strict=True))
    assert not ours.convs[0].training
    assert ours.convs[1].training
    for change in (lambda: ours, lambda: revert(ours)):
        change()
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            train(model, optimizer, 2)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert len(calls) == 6


def test_others_are_left_alone() -> None:
    class Mine(pyg.SAGEConv):  # type: ignore[misc]
        pass

    model = torch.nn.ModuleList([Mine(2, 2), pyg.TAGConv(2, 2), pyg.SGConv(2, 2)])
    types = [type(layer) for layer in model]
    assert [type(layer) for layer in accelerate(model)] == types
    for function in (accelerate, revert, explain):
        with pytest.raises(TypeError, match="torch.nn.Module, got str"):
            function("model")  # type: ignore[type-var]


def test_loader_with_trimming(device: torch.device) -> None:
    data = random_data()
    del data.half, data.graph_label, data.name, data.edge_attr, data.edge_weight
    torch.manual_seed(0)
    theirs = pyg.GraphSAGE(5, 8, 2, 3).to(device)
    ours = accelerate(copy.deepcopy(theirs))
    shared = peergraph_pyg.share(data)
    for batch in NeighborLoader(shared, [3, 2], batch_size=16):
        batch = batch.to(device)
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        x, edge_index = batch.x, batch.edge_index
        assert "PyG" not in explain(ours, x, edge_index, **hops)
        assert_same(theirs, ours, x, edge_index, **hops)


@pytest.mark.parametrize("build", ["to_hetero", "HeteroConv"])
def test_heterogeneous(build: str) -> None:
    data = HeteroData()
    random = torch.Generator().manual_seed(0)
    for kind, rows in (("a", 9), ("b", 5)):
        data[kind].x = torch.randn(rows, WIDTH, generator=random)
    for relation, sizes in ((("a", "to", "b"), (9, 5)), (("b", "of", "a"), (5, 9))):
        data[relation].edge_index = edges(*sizes, 20)
    torch.manual_seed(0)
    if build == "to_hetero":
        theirs: Any = pyg.to_hetero(pyg.GraphSAGE(WIDTH, 8, 2, 3), data.metadata())
        again = pyg.to_hetero(accelerate(pyg.GraphSAGE(WIDTH, 8, 2, 3)), data.metadata())
        again.load_state_dict(theirs.state_dict())
    else:
        convs = {kind: pyg.GATConv((-1, -1), 3, add_self_loops=False) for kind in data.edge_types}
        theirs = pyg.HeteroConv(convs)
        theirs(data.x_dict, data.edge_index_dict)
        again = accelerate(copy.deepcopy(theirs))
    ours = accelerate(copy.deepcopy(theirs))
    expected = theirs(data.x_dict, data.edge_index_dict)
    for model in (ours, again):
        assert all(type(layer).__module__.startswith("peergraph_pyg") for layer in layers(model))
        torch.testing.assert_close(model(data.x_dict, data.edge_index_dict), expected)


def packaged(model: torch.nn.Module, *interned: str) -> Any:
    """The model out of a `torch.package`, all modules but the interned ones left out."""
    file = io.BytesIO()
    with PackageExporter(file) as exporter:
        if interned:
            exporter.intern(interned)
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", model)
    file.seek(0)
    return PackageImporter(file).load_pickle("model", "model.pkl")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_torch_package() -> None:
    """Accelerated models are packaged without the code of peergraph; reverted ones need none."""
    model = accelerate(MODELS["sage"]())
    expected = model(*x_and_edges())
    loaded = packaged(model)
    assert [type(layer) for layer in layers(loaded)] == [peergraph_pyg.nn.SAGEConv] * 2
    torch.testing.assert_close(loaded(*x_and_edges()), expected)
    with pytest.raises(PackagingError, match=r"C extension module.*\s+peergraph\._C"):
        packaged(model, "peergraph.**", "peergraph_pyg.**")
    loaded = packaged(revert(model))
    assert [type(layer) for layer in layers(loaded)] == [pyg.SAGEConv] * 2
    torch.testing.assert_close(loaded(*x_and_edges()), expected)

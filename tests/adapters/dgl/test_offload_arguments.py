"""Arguments of full_graph that say where offloaded rows are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import dgl  # isort: split

import torch

import peergraph_dgl
from peergraph.fullgraph import named_model
from peergraph.memory import Group

NODES = 300


def partition(x: torch.Tensor, **options: Any) -> Any:
    edges = torch.randint(NODES, (2, 900), generator=torch.Generator().manual_seed(1))
    graph = dgl.graph((edges[0], edges[1]), num_nodes=NODES)
    graph.ndata["x"] = x
    graph.ndata["y"], graph.ndata["mask"] = torch.arange(NODES) % 4, torch.arange(NODES) < 90
    settings = {"offload": True, "num_chunks": 64, "memory_budget": 50_000, "order": "random"}
    group = Group(0, 1, torch.device("cpu"), 60.0)
    return peergraph_dgl.full_graph(graph, group=group, **{**settings, **options})


def test_model_host_memory_and_folder(tmp_path: Path) -> None:
    x = torch.randn(NODES, 16)
    graph = partition(x, model=named_model([16, 16, 16, 4]), host_memory=1 << 20, folder=tmp_path)
    content = graph.ndata["x"]._content
    # The features are read from the tensor of the given graph and not copied to the host.
    assert content.store.tier == "user"
    stores = content.space.allocator
    assert (stores.folder, stores.use["host"].budget, stores.use["host"].used) == (
        tmp_path,
        1 << 20,
        0,
    )
    assert torch.equal(graph.ndata["x"].full_tensor(), x)
    with pytest.raises(ValueError, match="host_memory must not be negative, got -1"):
        partition(x, host_memory=-1)
    with pytest.raises(ValueError, match="host memory is not enough"):
        partition(x, host_memory=0, model=named_model([16, 16, 16, 4]))


def train(graph: Any) -> list[float]:
    """Losses of a GCN whose rows are all outside of the device."""
    stores = graph.ndata["x"]._content.space.allocator
    stores.use["device"].budget = stores.sequential_device_bytes = 0
    torch.manual_seed(3)
    layers = torch.nn.ModuleList(
        dgl.nn.GraphConv(16, n, allow_zero_in_degree=True) for n in (16, 16, 4)
    )
    mask = graph.ndata["mask"]
    optimizer = torch.optim.Adam(layers.parameters())
    losses = []
    for _ in range(3):
        h = graph.ndata["x"]
        for layer in layers:
            h = layer(graph, h if layer is layers[0] else h.relu())
        loss = torch.nn.functional.cross_entropy(h[mask], graph.ndata["y"][mask])
        del h
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_with_rows_in_files_and_in_bfloat16(tmp_path: Path) -> None:
    x = torch.randn(NODES, 16)
    options = {"model": named_model([16, 16, 16, 4]), "memory_budget": 1 << 20, "num_chunks": 8}
    exact = train(partition(x, **options))
    graph = partition(x, **options, host_memory=0, folder=tmp_path)
    assert train(graph) == exact
    use = graph.ndata["x"]._content.space.allocator.use
    assert (use["file"].peak > 0, use["host"].peak) == (True, 0)
    rounded = train(partition(x, **options, hidden_dtype=torch.bfloat16))
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=2**-8)
    assert not list(tmp_path.iterdir())

"""Models over offloaded rows: the losses, gradients and accuracies of rows on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.fullgraph import PartitionedTensor, write_rows
from peergraph.memory import Group

from .conv_cases import mlp, plain, typed, weighted, with_attributes
from .graphs import CLASSES, EDGE_WIDTH, RELATIONS, WIDTH, small_graph, small_hetero
from .model_cases import DeepGCN, Hetero, ToHetero
from .ranks import copy_of
from .training_cases import RGCN

HIDDEN, STEPS, DROPOUT = 8, 2, 0.4
CHUNKS = (1, 3, 7)
TOLERANCE = 1e-9

Call = Callable[[nn.Module, Any], Tensor]


class Convs(nn.Module):
    """Two layers with ReLU and dropout."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, *edges: Tensor) -> Tensor:
        h = F.dropout(self.first(x, edge_index, *edges).relu(), DROPOUT, self.training)
        out: Tensor = self.second(h, edge_index, *edges)
        return out


class GatedGraph(nn.Module):
    """GGNN: gated recurrent units between sums, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GatedGraphConv(HIDDEN, num_layers=2)
        self.lin = nn.Linear(HIDDEN + WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.conv(x, edge_index), DROPOUT, self.training)
        out: Tensor = self.lin(torch.cat([h, x], dim=-1))
        return out


def _hetero(model: nn.Module, data: Any) -> Tensor:
    out: Tensor = model(data.x_dict, data.edge_index_dict)
    return out


MODELS: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "GCN": (lambda: pyg.GCN(WIDTH, HIDDEN, 2, CLASSES, DROPOUT, norm="batch_norm"), plain),
    "GCN widening": (lambda: pyg.GCN(WIDTH, 2 * HIDDEN, 3, CLASSES, DROPOUT, jk="cat"), plain),
    "GCN weighted": (
        lambda: Convs(pyg.GCNConv(WIDTH, HIDDEN), pyg.GCNConv(HIDDEN, CLASSES)),
        weighted,
    ),
    "SAGE": (lambda: pyg.GraphSAGE(WIDTH, HIDDEN, 3, CLASSES, DROPOUT, jk="max"), plain),
    "SAGE max": (
        lambda: Convs(pyg.SAGEConv(WIDTH, HIDDEN, aggr="max"), pyg.SAGEConv(HIDDEN, CLASSES)),
        plain,
    ),
    "GIN": (lambda: pyg.GIN(WIDTH, HIDDEN, 2, CLASSES, DROPOUT, norm="batch_norm"), plain),
    "GINE": (
        lambda: Convs(
            pyg.GINEConv(mlp(WIDTH, HIDDEN), edge_dim=EDGE_WIDTH),
            pyg.GINEConv(mlp(HIDDEN, CLASSES), edge_dim=EDGE_WIDTH),
        ),
        with_attributes,
    ),
    "Graph": (
        lambda: Convs(pyg.GraphConv(WIDTH, HIDDEN, "mean"), pyg.GraphConv(HIDDEN, CLASSES)),
        weighted,
    ),
    "RGCN": (RGCN, typed),
    "GAT": (lambda: pyg.GAT(WIDTH, HIDDEN, 2, CLASSES, DROPOUT, heads=2), plain),
    "GATv2": (lambda: pyg.GAT(WIDTH, HIDDEN, 2, CLASSES, v2=True, heads=2, jk="lstm"), plain),
    "GAT edges": (
        lambda: Convs(
            pyg.GATConv(WIDTH, HIDDEN, edge_dim=EDGE_WIDTH, dropout=DROPOUT),
            pyg.GATv2Conv(HIDDEN, CLASSES, edge_dim=EDGE_WIDTH),
        ),
        with_attributes,
    ),
    # Gradients of selected rows reach rows of edges, and columns of a transposed view.
    "RGAT": (
        lambda: Convs(
            pyg.RGATConv(WIDTH, HIDDEN, RELATIONS, attention_mechanism="within-relation"),
            pyg.RGATConv(HIDDEN, CLASSES, RELATIONS, attention_mechanism="within-relation"),
        ),
        typed,
    ),
    "EdgeCNN": (
        lambda: pyg.EdgeCNN(WIDTH, HIDDEN, 2, CLASSES, norm="InstanceNorm"),
        plain,
    ),
    "Transformer": (
        lambda: Convs(
            pyg.TransformerConv(WIDTH, HIDDEN, dropout=DROPOUT),
            pyg.ResGatedGraphConv(HIDDEN, CLASSES),
        ),
        plain,
    ),
    "GGNN": (GatedGraph, plain),
    "deep": (lambda: DeepGCN(3), plain),
    "HeteroConv": (Hetero, _hetero),
    "to_hetero": (ToHetero, _hetero),
}


def _train(model: nn.Module, data: Any, call: Call, nodes: Any) -> list[float]:
    """Losses, accuracies and the sums of absolute gradients of all steps."""
    # Adam would make steps of rounding in gradients that are zero.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    results = []
    for _ in range(STEPS):
        model.train()
        optimizer.zero_grad()
        out = call(model, data)
        loss = F.cross_entropy(out[nodes.train_mask], nodes.y[nodes.train_mask])
        loss.backward()
        grads = (p.grad for p in model.parameters() if p.grad is not None)
        results += [loss.item(), *(grad.abs().sum().item() for grad in grads)]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (call(model, data).argmax(-1) == nodes.y)[nodes.train_mask].sum()
    return [*results, float(right)]


def _check(name: str, make: Callable[[], nn.Module], call: Call) -> None:
    """Trains on the device and offloaded, dropout included.

    Numbers of chunks go round over models and numbers of ranks.
    """
    hetero = call is _hetero
    data = small_hetero() if hetero else small_graph(31, 140)
    torch.manual_seed(1)
    model = peergraph_pyg.accelerate(make())
    number = list(MODELS).index(name) + Group.current("cpu").world_size
    chunks = CHUNKS[number % len(CHUNKS)]
    results = []
    for options in ({}, {"offload": True, "num_chunks": chunks}):
        parts = peergraph_pyg.full_graph(data, **options)
        nodes = parts["paper"] if hetero else parts
        results.append(_train(copy_of(model), parts, call, nodes))
    np.testing.assert_allclose(
        results[1], results[0], TOLERANCE, TOLERANCE, err_msg=f"{chunks} chunks"
    )


def placement() -> None:
    """Wide floats are offloaded; labels, masks and weights are on the device."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data, offload=True, num_chunks=3)
    for name in ("x", "scale", "pos", "edge_attr"):
        with pytest.raises(NotImplementedError, match="not on the device"):
            graph[name]._local  # noqa: B018
        assert torch.equal(graph[name].full_tensor(), data[name]), name
    for name in ("y", "train_mask", "edge_weight", "edge_type"):
        assert type(graph[name]) is PartitionedTensor, name
    assert peergraph_pyg.partition_of(graph).offloaded is not None
    resident = peergraph_pyg.partition_of(peergraph_pyg.full_graph(data))
    assert resident.offloaded is None


def shared_rows() -> None:
    """Rows of a store are read piece by piece; shared rows of one rank are not copied."""
    data = small_graph()
    shared = peergraph_pyg.share(data)
    graph = peergraph_pyg.full_graph(shared, offload=True, num_chunks=2)
    assert torch.equal(graph.x.full_tensor(), data.x)
    peergraph_pyg.store_of(shared).close()
    data.x = data.x.share_memory_()
    budget = 1 << 20
    graph = peergraph_pyg.full_graph(data, budget, offload=True, num_chunks=2)
    store = graph.x._content.store
    assert torch.equal(graph.x.full_tensor(), data.x)
    if Group.current("cpu").world_size == 1 and store.tier == "host":
        assert store.memory.data_ptr() == data.x.data_ptr()


def inference() -> None:
    """Results over the whole graph: gathered, in a file, in an array and in a table of a store."""
    data = small_graph(37, 160)
    torch.manual_seed(0)
    model = pyg.GraphSAGE(WIDTH, HIDDEN, 2, CLASSES).eval()
    shared = peergraph_pyg.share(
        Data(x=data.x, edge_index=data.edge_index, scores=data.scale[:, :4])
    )
    store = peergraph_pyg.store_of(shared)
    parts = peergraph_pyg.full_graph(shared, offload=True, num_chunks=3)
    with torch.no_grad():
        by_batches = model.inference(NeighborLoader(shared, [-1], batch_size=16))
        out = model(parts.x, parts.edge_index)
        torch.testing.assert_close(out.full_tensor(), by_batches, rtol=1e-9, atol=1e-9)
        group = Group.current("cpu")
        [folder] = set(group.all_gather(TemporaryDirectory().name)[:1])
        name = Path(folder) / "out.npy"
        name.parent.mkdir(exist_ok=True)
        write_rows(out, name)
        result = torch.from_numpy(np.load(name))
        torch.testing.assert_close(result, by_batches, rtol=1e-9, atol=1e-9)
        table = store.node_table("scores")
        write_rows(out, table)
        torch.testing.assert_close(table.read(), by_batches, rtol=1e-9, atol=1e-9)
        array = np.lib.format.open_memmap(name, "r+")
        write_rows(parts.y if "y" in parts else out * 2, array)
        group.barrier()
        np.testing.assert_allclose(np.load(name), 2 * by_batches.numpy(), 1e-9)
        with pytest.raises(ValueError, match="shape"):
            write_rows(out[:, :2], table)
        with pytest.raises(TypeError, match="NumPy"):
            write_rows(out.bfloat16(), name.with_name("half.npy"))
    group.barrier()
    if group.rank == 0:
        name.unlink()
        name.parent.rmdir()
    store.close()


def refusals() -> None:
    """What needs all rows at once names itself."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data, offload=True, num_chunks=2)
    for operation in (
        lambda: graph.x.sort(0),
        lambda: graph.x @ graph.x.t(),
        lambda: graph.x.cumsum(0),
        lambda: pyg.GPSConv(WIDTH, pyg.SAGEConv(WIDTH, WIDTH), heads=2)(graph.x, graph.edge_index),
    ):
        with pytest.raises(NotImplementedError, match=r"larger than GPU memory|full_tensor\(\)"):
            operation()


CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(_check, name, *value) for name, value in MODELS.items()},
    "placement": placement,
    "shared rows": shared_rows,
    "inference": inference,
    "refusals": refusals,
}

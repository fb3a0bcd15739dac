"""Layers use the edges that a tensor holds, however it was changed since the last call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GraphSAGE, RGCNConv, to_hetero

import peergraph_pyg
from peergraph_pyg import accelerate
from tests.named_case import named_cases

from .graphs import random_data, random_hetero
from .layer_cases import NAMES, arguments, assert_same, edge_inputs, pair, x_and_edges


def _through_numpy(tensor: Tensor, values: Tensor) -> None:
    tensor.numpy()[...] = values.numpy()


def _through_data(tensor: Tensor, values: Tensor) -> None:
    tensor.data[...] = values


def _another_data(tensor: Tensor, values: Tensor) -> None:
    tensor.data = values.clone()


def _through_foreach(tensor: Tensor, values: Tensor) -> None:
    torch._foreach_copy_([tensor.data], [values])


def _through_dlpack(tensor: Tensor, values: Tensor) -> None:
    torch.from_dlpack(tensor.detach().numpy()).copy_(values)


def _in_place(tensor: Tensor, values: Tensor) -> None:
    tensor.copy_(values)


WRITES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "numpy": _through_numpy,
    "data": _through_data,
    "another data": _another_data,
    "foreach": _through_foreach,
    "dlpack": _through_dlpack,
    "in place": _in_place,
}


@named_cases("name", NAMES)
@named_cases("write", WRITES)
def test_edge_indices(name: str, write: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    inputs = edge_inputs(name, 40)
    for _ in range(3):
        assert_same(theirs, ours, x, edge_index, *inputs)
        WRITES[write](edge_index, (edge_index + 2) % 9)
    WRITES[write](edge_index[:, 7:8], torch.tensor([[1], [3]]))
    assert_same(theirs, ours, x, edge_index, *inputs)


@named_cases("write", WRITES)
def test_types_of_edges(write: str) -> None:
    theirs, ours = pair("RGCNConv", *arguments("RGCNConv"))
    x, edge_index = x_and_edges()
    (edge_type,) = edge_inputs("RGCNConv", 40)
    for _ in range(3):
        assert_same(theirs, ours, x, edge_index, edge_type)
        WRITES[write](edge_type, (edge_type + 1) % 2)
    WRITES[write](edge_index, edge_index.flip(0))
    assert_same(theirs, ours, x, edge_index, edge_type)


def test_other_dtypes_and_lengths_of_the_same_tensor() -> None:
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    x, edge_index = x_and_edges()
    for values in (edge_index.int(), edge_index[:, :11].clone(), edge_index.flip(1).t().t()):
        assert_same(theirs, ours, x, edge_index)
        edge_index.data = values
        # PyG's scatter takes int64.
        torch.testing.assert_close(ours(x, edge_index), theirs(x, values.long()))
        edge_index.data = values.long()


@named_cases("write", ["numpy", "data", "in place"])
def test_pyg_edge_indices(write: str) -> None:
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    x, edge_index = x_and_edges()
    typed = EdgeIndex(edge_index, sparse_size=(9, 9))
    for _ in range(2):
        torch.testing.assert_close(ours(x, typed), theirs(x, edge_index))
        WRITES[write](typed.as_tensor(), (edge_index + 2) % 9)
        assert torch.equal(typed.as_tensor(), edge_index)
    torch.testing.assert_close(ours(x, typed), theirs(x, edge_index))


def test_sparse_adjacencies() -> None:
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    x, _ = x_and_edges()
    adjacency = torch.sparse_csr_tensor([0, 2, 3, 3], [0, 2, 1], torch.ones(3), (3, 9))
    for _ in range(2):
        torch.testing.assert_close(
            ours((x, x[:3]), adjacency), theirs((x, x[:3]), adjacency.clone())
        )
        adjacency.col_indices().numpy()[...] += 3


@named_cases("kind", {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT})
@named_cases("write", WRITES)
@pytest.mark.parametrize("trim", [False, True])
def test_batches(kind: str, write: str, trim: bool) -> None:
    data = random_data()
    data.x = torch.randn(60, 6)
    loader = NeighborLoader(peergraph_pyg.share(data), [3, 2], batch_size=20)
    theirs = {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT}[kind](6, 8, 2, 4)
    ours = accelerate(copy.deepcopy(theirs))
    for batch in loader:
        options = {}
        if trim:
            options["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
            options["num_sampled_edges_per_hop"] = batch.num_sampled_edges
        for _ in range(2):
            expected = theirs(batch.x, batch.edge_index, **options)
            torch.testing.assert_close(ours(batch.x, batch.edge_index, **options), expected)
            changed = _swapped(batch.edge_index) if trim else batch.edge_index.roll(1, 1)
            WRITES[write](batch.edge_index, changed)
        expected = theirs(batch.x, batch.edge_index, **options)
        torch.testing.assert_close(ours(batch.x, batch.edge_index, **options), expected)


def _swapped(edge_index: Tensor) -> Tensor:
    """The edges with other ends of the first and last; trimmed layers have these nodes as well."""
    changed = edge_index.clone()
    changed[1, 0], changed[1, -1] = 1, edge_index[1, -2]
    changed[0, 0] = 0
    return changed


def test_gradients_are_of_the_edges_of_the_forward_pass() -> None:
    data = random_data()
    data.x = torch.randn(60, 6)
    batch = next(iter(NeighborLoader(peergraph_pyg.share(data), [3], batch_size=20)))
    _, ours = pair("SAGEConv", 6, 4)
    x = batch.x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(ours(x, batch.edge_index).square().sum(), x)
    loss = ours(x, batch.edge_index).square().sum()
    batch.edge_index.numpy()[...] = 1 << 40  # out of range
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, expected)
    with pytest.raises(IndexError, match="out of range"):
        ours(x, batch.edge_index)


@named_cases("write", WRITES)
def test_batches_of_typed_graphs(write: str) -> None:
    data = random_hetero()
    del data["venue", "prints", "paper"], data["venue"]  # PyG's models need in-edges of all types
    seeds = ("paper", torch.arange(8))
    shared = peergraph_pyg.share(data)
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))
    theirs = to_hetero(GraphSAGE((-1, -1), 8, num_layers=2, out_channels=4), data.metadata())
    with torch.no_grad():
        theirs(batch.x_dict, batch.edge_index_dict)
    ours = accelerate(copy.deepcopy(theirs))
    for _ in range(2):
        expected = theirs(batch.x_dict, batch.edge_index_dict)["paper"]
        actual = ours(batch.x_dict, batch.edge_index_dict)["paper"]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        for edge_type in batch.edge_types:
            edge_index = batch[edge_type].edge_index
            if edge_index.numel():
                moved = torch.stack([edge_index[0], edge_index[1].roll(1)])
                WRITES[write](edge_index, moved)


def test_types_of_partitioned_edges() -> None:
    data = random_data()
    count = data.edge_index.shape[1]
    data = Data(x=torch.randn(60, 6), edge_index=data.edge_index)
    data.edge_type = torch.arange(count) % 3
    graph = peergraph_pyg.full_graph(data.clone())
    theirs = RGCNConv(6, 4, 3)
    ours = accelerate(copy.deepcopy(theirs))
    for _ in range(2):
        expected = theirs(data.x, data.edge_index, data.edge_type)
        actual = ours(graph.x, graph.edge_index, graph.edge_type).full_tensor()
        torch.testing.assert_close(actual, expected)
        data.edge_type = 2 - data.edge_type
        local = graph.edge_type.to_local().detach().numpy()
        local[...] = 2 - local


def test_ends_of_partitioned_edges_are_copies() -> None:
    data = random_data()
    graph = peergraph_pyg.full_graph(data.clone())
    sources = graph.edge_index[0]
    for write in (
        lambda: sources.ids().to_local().numpy().fill(3),
        lambda: sources.to_local().zero_(),
        lambda: sources.full_tensor().zero_(),
        lambda: sources[2:7].zero_(),
        lambda: sources.data.zero_(),
    ):
        write()
        assert torch.equal(graph.edge_index[0].full_tensor(), data.edge_index[0])
        assert torch.equal((sources + 1).full_tensor(), data.edge_index[0] + 1)


WRITES_TO_ENDS: dict[str, Callable[[Any], Any]] = {
    "zero_": lambda ends: ends.zero_(),
    "__setitem__": lambda ends: ends.__setitem__(slice(3), 0),
    "add_": lambda ends: ends.__iadd__(1),
    "add": lambda ends: torch.add(ends, 1, out=ends),
}


@named_cases("write", WRITES_TO_ENDS)
def test_ends_of_partitioned_edges_refuse_writes(write: str) -> None:
    graph = peergraph_pyg.full_graph(random_data())
    with pytest.raises(RuntimeError, match=f"^{write}: the edges .* cannot be written"):
        WRITES_TO_ENDS[write](graph.edge_index[0])

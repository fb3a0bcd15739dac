"""What PyG asserts of its own layers, asserted of ours: scripts, sparse matrices, static graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.typing import Adj, Size
from torch_geometric.utils import to_torch_csc_tensor

from peergraph_pyg import nn as fast

from .layer_cases import WIDTH, arguments, assert_same, edge_inputs, edges, pair, x_and_edges


class _Model(torch.nn.Module):
    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Adj, size: Size = None) -> Tensor:
        out: Tensor = self.conv(x, edge_index, size=size)
        return out


def test_layer_in_a_script() -> None:
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    x, edge_index = x_and_edges()
    scripted = torch.jit.script(_Model(ours))
    torch.testing.assert_close(scripted(x, edge_index), theirs(x, edge_index))
    torch.testing.assert_close(scripted(x, edge_index, (9, 9)), theirs(x, edge_index))
    # The layer itself is as it was.
    assert type(ours) is fast.SAGEConv
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv", "GINConv", "GraphConv"])
def test_sparse_matrix(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x = x_and_edges()[0]
    # A matrix has one value for several edges between the same nodes.
    edge_index = edges().unique(dim=1)
    matrix = to_torch_csc_tensor(edge_index, size=(9, 9))
    torch.testing.assert_close(ours(x, matrix.t()), theirs(x, matrix.t()))
    if name != "GCNConv":  # PyG adds self loops to a matrix in another way.
        torch.testing.assert_close(ours(x, matrix.t()), ours(x, edge_index))


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GraphConv", "GINConv", "GINEConv"])
def test_several_features_of_one_graph(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    args = (torch.stack([x, x + 1, 2 * x]), edge_index, *edge_inputs(name, 40))
    assert_same(theirs, ours, *args)


def test_settings_of_a_layer_in_use() -> None:
    theirs, ours = pair("GCNConv", *arguments("GCNConv"))
    x, edge_index = x_and_edges()
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    parts = copy.deepcopy(ours)
    parts.decomposed_layers = 3
    torch.testing.assert_close(parts(x, edge_index), theirs(x, edge_index))
    parts.decomposed_layers = 1
    torch.testing.assert_close(parts(x, edge_index), theirs(x, edge_index))
    for layer in (theirs, ours):
        layer.flow = "target_to_source"
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    for layer in (theirs, ours):
        layer.flow = "source_to_target"
        layer.cached = True
    for _ in range(2):
        torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    ours.reset_parameters()
    assert ours._cached_edge_index is None


def test_sparse_features() -> None:
    theirs, ours = pair("GCNConv", *arguments("GCNConv"))
    x = torch.eye(9)[:, :WIDTH].to_sparse_coo()
    torch.testing.assert_close(ours(x, edges()), theirs(x, edges()))


def test_embeddings_at_both_ends() -> None:
    theirs, ours = pair("RGCNConv", (9, 5), 4, 4)
    (edge_type,) = edge_inputs("RGCNConv", 40)
    for sources in (None, torch.arange(9)):
        assert_same(theirs, ours, (sources, torch.arange(5)), edges(9, 5), edge_type)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_asking_for_attention_weights_changes_nothing(name: str) -> None:
    theirs, ours = pair(name, *arguments(name), heads=2)
    args = x_and_edges()
    out, (edge_index, weights) = ours(*args, return_attention_weights=True)
    assert torch.equal(out, ours(*args))
    assert torch.equal(out, ours(*args, return_attention_weights=False))
    expected = theirs(*args, return_attention_weights=True)[1]
    torch.testing.assert_close((edge_index, weights), expected)


def test_decomposed_layers_change_nothing() -> None:
    _, ours = pair("GCNConv", WIDTH, 6)
    args = x_and_edges()
    out = ours(*args)
    ours.decomposed_layers = 2
    assert torch.equal(ours(*args), out)
    ours.decomposed_layers = 1
    assert torch.equal(ours(*args), out)

"""What PyG asserts of its own layers, asserted of ours: scripts, sparse matrices, static graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric.nn import GCN, GIN, GraphSAGE
from torch_geometric.typing import Adj, Size
from torch_geometric.utils import to_torch_csc_tensor

from peergraph_pyg import accelerate
from peergraph_pyg import nn as fast
from tests.named_case import named_cases

from .layer_cases import (
    CHANNELS,
    NAMES,
    WIDTH,
    arguments,
    assert_same,
    edge_inputs,
    edges,
    is_fast,
    pair,
    script,
    x_and_edges,
)


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
    scripted = script(_Model(ours))
    torch.testing.assert_close(scripted(x, edge_index), theirs(x, edge_index))
    torch.testing.assert_close(scripted(x, edge_index, (9, 9)), theirs(x, edge_index))
    # The layer itself is as it was.
    assert type(ours) is fast.SAGEConv
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))


@pytest.mark.parametrize("kind", [GCN, GIN, GraphSAGE])
def test_model_in_a_script(kind: Any) -> None:
    torch.manual_seed(0)
    model = accelerate(kind(WIDTH, 8, num_layers=2))
    args = x_and_edges()
    expected = model(*args)
    torch.testing.assert_close(script(model)(*args), expected)
    # TorchScript has put PyG's layers in their places.
    torch.testing.assert_close(model(*args), expected)
    accelerate(model)
    assert is_fast(model, *args)


@named_cases("name", NAMES)
def test_forward_mode_autograd_stays_with_pyg(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    inputs = edge_inputs(name, 40)

    def tangent(layer: Any) -> Tensor:
        with forward_ad.dual_level():
            out = layer(forward_ad.make_dual(x, torch.ones_like(x)), edge_index, *inputs)
            result: Tensor = forward_ad.unpack_dual(out).tangent
        return result

    torch.testing.assert_close(tangent(ours), tangent(theirs))


@named_cases("name", ["SAGEConv", "GATConv", "GATv2Conv", "GINEConv"])
def test_shapes_without_data(name: str) -> None:
    options = {"add_self_loops": False} if name.startswith("GAT") else {}
    _, ours = pair(name, *arguments(name), **options)
    args = (*x_and_edges(), *edge_inputs(name, 40))
    assert ours.to("meta")(*(arg.to("meta") for arg in args)).shape == (9, CHANNELS)


@named_cases("name", ["GATConv", "GATv2Conv", "GCNConv", "GraphConv"])
def test_steps_that_users_wrote(name: str) -> None:
    class Mine(getattr(fast, name)):  # type: ignore[misc]
        def propagate(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
            return 2 * super().propagate(edge_index, size, **kwargs)

    torch.manual_seed(0)
    layer = Mine(WIDTH, CHANNELS, bias=False)
    plain = getattr(fast, name)(WIDTH, CHANNELS, bias=False)
    plain.load_state_dict(layer.state_dict())
    args = x_and_edges()
    own = plain.lin_root(args[0]) if name == "GraphConv" else 0
    expected = 2 * (plain(*args) - own) + own
    torch.testing.assert_close(layer(*args), expected)
    for explain in (True, False):  # PyG then goes back to the class's method.
        layer.explain = explain
    torch.testing.assert_close(layer(*args), expected)


@named_cases("name", ["SAGEConv", "GCNConv", "GATConv", "GINConv", "GraphConv"])
def test_sparse_matrix(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x = x_and_edges()[0]
    # A matrix has one value for several edges between the same nodes.
    edge_index = edges().unique(dim=1)
    matrix = to_torch_csc_tensor(edge_index, size=(9, 9))
    torch.testing.assert_close(ours(x, matrix.t()), theirs(x, matrix.t()))
    if name != "GCNConv":  # PyG adds self loops to a matrix in another way.
        torch.testing.assert_close(ours(x, matrix.t()), ours(x, edge_index))


@named_cases("name", ["SAGEConv", "GCNConv", "GraphConv", "GINConv", "GINEConv"])
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

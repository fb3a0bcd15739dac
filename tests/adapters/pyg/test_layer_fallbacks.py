"""Calls that stay PyG's, structures that are kept, and what explain() says."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph
from peergraph_pyg import accelerate, explain, revert
from peergraph_pyg import nn as fast
from peergraph_pyg.data import csc_cache
from tests.named_case import named_cases
from tests.scripts import run_python

from .layer_cases import NAMES, WIDTH, arguments, edge_inputs, edges, is_fast, pair, x_and_edges

REFUSED: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "aggr is lstm": ("SAGEConv", {"aggr": "lstm"}, lambda layer: None),
    "aggr is softmax": ("SAGEConv", {"aggr": "softmax"}, lambda layer: None),
    "aggr is ['mean', 'max']": ("SAGEConv", {"aggr": ["mean", "max"]}, lambda layer: None),
    "flow is target_to_source": ("SAGEConv", {"flow": "target_to_source"}, lambda layer: None),
    "decomposed_layers is set": ("GCNConv", {"decomposed_layers": 2}, lambda layer: None),
    "hooks (propagate_forward_pre": (
        "GINConv",
        {},
        lambda layer: layer.register_propagate_forward_pre_hook(lambda *_: None),
    ),
    "hooks (message_forward_hooks": (
        "GCNConv",
        {},
        lambda layer: layer.register_message_forward_hook(lambda *_: None),
    ),
    "hooks (edge_update_forward": (
        "GATConv",
        {},
        lambda layer: layer.register_edge_update_forward_hook(lambda *_: None),
    ),
    "hooks of the aggregation": (
        "GraphConv",
        {},
        lambda layer: layer.aggr_module.register_forward_hook(lambda *_: None),
    ),
    "message is overridden": (
        "GINConv",
        {},
        lambda layer: setattr(layer, "message", lambda x_j: 2 * x_j),
    ),
}


@named_cases("why", REFUSED)
def test_layers_that_stay_with_pyg(why: str) -> None:
    name, options, change = REFUSED[why]
    theirs, ours = pair(name, *arguments(name), **options)
    change(theirs)
    change(ours)
    x, edge_index = x_and_edges()
    if "lstm" in why:
        edge_index = edges(grouped=True)
    args = (x, edge_index, *edge_inputs(name, 40))
    torch.testing.assert_close(ours(*args), theirs(*args))
    if "overridden" not in why:  # A function of the instance is not copied.
        assert f"PyG, {why}" in explain(ours, *args).replace("there are ", "")


PLAIN_MESSAGE_PASSING = """
import copy, torch
from torch_geometric.nn import GATConv, MessagePassing, SAGEConv
from peergraph_pyg import accelerate

MessagePassing()
x, edge_index = torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 1, 0, 4, 4]])
for layer in (SAGEConv(4, 3, aggr="softmax"), GATConv(4, 3, flow="target_to_source")):
    ours = accelerate(copy.deepcopy(layer))
    assert type(ours) is not type(layer)
    assert torch.equal(ours(x, edge_index), layer(x, edge_index))
"""


def test_fallback_after_a_plain_message_passing() -> None:
    # PyG changes the class for the whole process.
    done = run_python("-c", PLAIN_MESSAGE_PASSING)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["SAGEConv", "GINConv"])
def test_inputs_that_stay_with_pyg(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.ones(edge_index.shape[1])
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), values, (9, 9)).coalesce()
        for adjacency in (matrix, matrix.to_sparse_csr()):
            torch.testing.assert_close(ours(x, adjacency), theirs(x, adjacency))
            assert "PyG, edge_index is a float32 sparse" in explain(ours, x, adjacency)
    static = torch.stack([x, 2 * x])
    torch.testing.assert_close(ours(static, edge_index), theirs(static, edge_index))
    assert "PyG, x is [2, 9, 6]" in explain(ours, static, edge_index)
    with pytest.raises(ValueError, match="integer"):
        ours(x, edge_index.float())


def test_layers_of_users() -> None:
    class Mine(fast.SAGEConv):
        def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return x_j - x_i

    layer = Mine(WIDTH, 3)
    x, edge_index = x_and_edges()
    expected = torch.zeros(9, WIDTH).index_add(
        0, edge_index[1], (x[edge_index[0]] - x[edge_index[1]])
    )
    expected = expected / edge_index[1].bincount(minlength=9).clamp(min=1).unsqueeze(1)
    actual = layer.propagate(edge_index, x=(x, x))
    torch.testing.assert_close(actual, expected)
    assert "PyG, message is overridden" in explain(layer, x, edge_index)


def test_explanations_of_pyg() -> None:
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    x, edge_index = x_and_edges()
    expected = theirs(x, edge_index)
    for layer in (theirs, ours):
        layer.explain = True
        layer._edge_mask = torch.linspace(-1, 1, 40)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    assert not torch.allclose(ours(x, edge_index), expected)
    revert(ours)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    accelerate(ours)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    ours.explain = False
    torch.testing.assert_close(ours(x, edge_index), expected)
    assert "PyG" not in explain(ours, x, edge_index)


@named_cases("name", NAMES)
def test_changed_edges_are_seen(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    inputs = edge_inputs(name, 40)
    ours(x, edge_index, *inputs)
    edge_index[0, :5] = 0
    if name.endswith("RGCNConv"):
        inputs[0][:5] = 1
    torch.testing.assert_close(ours(x, edge_index, *inputs), theirs(x, edge_index, *inputs))


def test_cached_normalisation_is_of_the_first_edges() -> None:
    theirs, ours = pair("GCNConv", *arguments("GCNConv"), cached=True)
    _, other = pair("GCNConv", *arguments("GCNConv"))
    x, edge_index = x_and_edges()
    ours(x, edges(count=30))
    theirs(x, edges(count=30))
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    uncached, _ = pair("GCNConv", *arguments("GCNConv"))
    torch.testing.assert_close(other(x, edge_index), uncached(x, edge_index))


def test_structures_are_kept_and_let_go() -> None:
    layer = fast.GCNConv(WIDTH, 3)
    x, edge_index = x_and_edges()
    csc_cache._entries.clear()
    layer(x, edge_index)
    (entry,) = csc_cache._entries.values()
    (csc,) = entry.by_key.values()
    layer(x, edge_index)
    assert list(entry.by_key.values()) == [csc]
    del edge_index
    gc.collect()
    assert not csc_cache._entries
    # Edges that are grouped by destination are not copied.
    edge_index = torch.tensor([[2, 0, 1], [0, 1, 1]])
    layer(x, edge_index)
    fast.SAGEConv(WIDTH, 3)(x, edge_index)
    assert csc_cache._entries
    del edge_index
    assert not csc_cache._entries
    many = [edges(count=count) for count in range(3, 45)]
    for each in many:
        fast.SAGEConv(WIDTH, 3)(x, each)
    assert len(csc_cache._entries) <= 32
    with torch.inference_mode():
        before = len(csc_cache._entries)
        fast.SAGEConv(WIDTH, 3)(x, edges())
        assert len(csc_cache._entries) == before


def test_ids_out_of_range() -> None:
    x, edge_index = x_and_edges()
    edge_index[0, 3] = 9
    with pytest.raises(IndexError, match=r"edge_index\[0\]\[3\] = 9 is out of range"):
        fast.SAGEConv(WIDTH, 3)(x, edge_index)


def test_explain_changes_nothing() -> None:
    layer = fast.GATConv(WIDTH, 3, dropout=0.5)
    args = x_and_edges()
    state = torch.get_rng_state()
    text = explain(layer, *args)
    assert torch.equal(torch.get_rng_state(), state)
    assert "edge_updater: peergraph" in text
    assert "propagate: peergraph, sum over Csc(9 sources" in text


def test_explain_of_the_core() -> None:
    layer = fast.GCNConv(WIDTH, 3)
    args = x_and_edges()
    for state in ("made", "kept"):
        text = peergraph.explain(layer, *args)
        assert text == explain(layer, *args)
        assert f"structure: {state} for this edge index; gradients of sources by" in text
        layer(*args)


def test_explain_of_cached_normalisation_with_gradients() -> None:
    layer = fast.GCNConv(WIDTH, 3, cached=True)
    args = x_and_edges()
    layer(*args, *edge_inputs("GCNConv", 40))
    assert "propagate: peergraph" in explain(layer, *args)


def test_transforms_stay_with_pyg() -> None:
    theirs, ours = pair("GATConv", *arguments("GATConv"))
    x, edge_index = x_and_edges()

    def gradient(layer: Any) -> Tensor:
        result: Tensor = torch.func.grad(lambda x: layer(x, edge_index).square().sum())(x)
        return result

    torch.testing.assert_close(gradient(ours), gradient(theirs))


def test_second_derivatives_are_refused() -> None:
    layer = fast.SAGEConv(WIDTH, 3, aggr="max")
    x, edge_index = x_and_edges()
    out = layer(x.requires_grad_(), edge_index).square().sum()
    with pytest.raises(NotImplementedError, match="max and min over edges can be differentiated"):
        torch.autograd.grad(out, x, create_graph=True)


def test_low_precision(device: torch.device) -> None:
    for name in ("SAGEConv", "GCNConv", "GATConv"):
        theirs, ours = (layer.to(device).bfloat16() for layer in pair(name, *arguments(name)))
        x, edge_index = x_and_edges(device)
        x = x.bfloat16()
        torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), rtol=3e-2, atol=3e-2)
        assert is_fast(ours, x, edge_index)

"""Layers that save passes over features: results, gradients, and what they leave to the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, SumAddSelf
from peergraph.aggregate.layers import degree_normalisation, typed_sums
from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.memory.device.default_machine import WORK
from peergraph_pyg import explain
from peergraph_pyg import nn as fast
from peergraph_pyg.nn.features import first_rows
from tests.named_case import named_cases
from tests.pairwise import pairwise

from .layer_cases import (
    CHANNELS,
    RELATIONS,
    WIDTH,
    arguments,
    assert_same,
    edge_inputs,
    edges,
    gradients,
    mlp,
    pair,
    x_and_edges,
)
from .test_layer_results import features

PROJECTED = ("SAGEConv", "GraphConv", "RGCNConv", "FastRGCNConv")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that save passes, as they are called."""
    names: list[str] = []
    for name in ("spmm_linear", "spmm_add_self"):
        function = getattr(Csc, name)

        def counted(*args: Any, name: str = name, function: Any = function, **more: Any) -> Any:
            names.append(name)
            return function(*args, **more)

        monkeypatch.setattr(Csc, name, counted)
    sum_and_multiply = typed_sums.sum_and_multiply

    def joined(*args: Any) -> Any:
        names.append("sum_and_multiply")
        return sum_and_multiply(*args)

    monkeypatch.setattr(typed_sums, "sum_and_multiply", joined)
    return names


def step_of(name: str) -> str:
    """The operation of a layer that multiplies sums."""
    return "sum_and_multiply" if name.endswith("RGCNConv") else "spmm_linear"


def inputs_of(name: str, device: torch.device) -> tuple[Any, ...]:
    return edge_inputs(name, 40, device) if name.endswith("RGCNConv") else ()


@named_cases(
    ("shape", "count", "rows"),
    [((1, 5), 1, 0), *pairwise([(1, 1), (1, 5), (3, 2), (4, 8), (9, 3)], [1, 2], [7])],
)
def test_scores(device: torch.device, shape: tuple[int, int], count: int, rows: int) -> None:
    def leaf(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=torch.float64, requires_grad=True)

    h, vectors = leaf(rows, *shape), [leaf(*shape) for _ in range(count)]
    same, *actual = node_scores(h, *vectors)
    expected = [(h * vector).sum(-1) for vector in vectors]
    torch.testing.assert_close(same, h)
    torch.testing.assert_close(actual, expected)
    leaves = [h, *vectors]
    for with_h in (True, False):
        left = torch.autograd.grad(
            sum(item.square().sum() for item in actual) + with_h * same.square().sum(),
            leaves,
            retain_graph=True,
        )
        right = torch.autograd.grad(
            sum(item.square().sum() for item in expected) + with_h * h.square().sum(),
            leaves,
            retain_graph=True,
        )
        torch.testing.assert_close(left, right)
    (only,) = torch.autograd.grad(actual[0].sum(), vectors[:1])
    torch.testing.assert_close(only, h.sum(0).detach())


@named_cases(("heads", "channels"), [(1, 1), (1, 8), (4, 1), (4, 16), (8, 4)])
@pytest.mark.parametrize("self_loops", [True, False])
def test_widths_of_attention(
    device: torch.device, heads: int, channels: int, self_loops: bool
) -> None:
    options = {"heads": heads, "add_self_loops": self_loops}
    theirs, ours = (
        layer.to(device).double() for layer in pair("GATConv", WIDTH, channels, **options)
    )
    x = features(9, device=device, dtype=torch.float64)
    for _ in range(6):
        assert_same(theirs, ours, x, edges(device=device), tolerance=1e-10)
    # One map for two sets of nodes, of a layer that was made for one.
    both = (x, features(5, device=device, dtype=torch.float64))
    assert_same(theirs, ours, both, edges(9, 5, device=device), tolerance=1e-10)
    theirs, ours = (
        layer.to(device).double()
        for layer in pair("GATConv", (WIDTH, WIDTH + 1), channels, **options)
    )
    both = (x, features(5, WIDTH + 1, device, torch.float64))
    assert_same(theirs, ours, both, edges(9, 5, device=device), tolerance=1e-10)
    assert_same(theirs, ours, (x, None), edges(9, 5, device=device), tolerance=1e-10, size=(9, 5))


def test_frozen_attention(device: torch.device) -> None:
    for frozen in ("att_src", "att_dst", "lin"):
        theirs, ours = (layer.to(device) for layer in pair("GATConv", WIDTH, 4, heads=2))
        for layer in (theirs, ours):
            getattr(layer, frozen).requires_grad_(False)
        assert_same(theirs, ours, features(9, device=device), edges(device=device))
        x = features(9, device=device)
        torch.testing.assert_close(ours(x, edges(device=device)), theirs(x, edges(device=device)))


@named_cases("options", [{}, {"add_self_loops": False}, {"bias": False}])
@pytest.mark.parametrize("edges_a_node", [0, 100])
def test_both_ways_of_gcn(
    device: torch.device,
    options: dict[str, Any],
    edges_a_node: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = replace(WORK, weighted_edges=max(edges_a_node, 1e-9))
    monkeypatch.setattr(degree_normalisation, "WORK", work)
    theirs, ours = (
        layer.to(device).double() for layer in pair("GCNConv", WIDTH, CHANNELS, **options)
    )
    x = features(9, device=device, dtype=torch.float64)
    for grouped in (True, False):
        edge_index = edges(grouped=grouped, device=device)
        for _ in range(6):
            assert_same(theirs, ours, x, edge_index, tolerance=1e-10)
        way = "edges weighted" if edges_a_node else "rows scaled"
        assert f"{way} by the degrees" in explain(ours, x, edge_index)


@pytest.mark.parametrize("edges_a_node", [0, 100])
def test_gcn_of_mixed_dtypes(
    device: torch.device, edges_a_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = replace(WORK, weighted_edges=max(edges_a_node, 1e-9))
    monkeypatch.setattr(degree_normalisation, "WORK", work)
    theirs, ours = (layer.to(device) for layer in pair("GCNConv", WIDTH, CHANNELS))
    args = (features(9, device=device), edges(device=device))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert ours(*args).dtype == theirs(*args).dtype
        assert_same(theirs, ours, *args, tolerance=3e-2)


@pytest.mark.parametrize("name", PROJECTED)
def test_products_add_up(name: str, device: torch.device, calls: list[str]) -> None:
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    args = (features(9, device=device), edges(device=device), *inputs_of(name, device))
    for _ in range(6):
        assert_same(theirs, ours, *args)
    assert calls == [step_of(name)] * 6
    assert "forward" not in explain(ours, *args)
    with torch.no_grad():
        torch.testing.assert_close(ours(*args), theirs(*args))
    torch.testing.assert_close(ours(*args), theirs(*args))


@pytest.mark.parametrize("name", ["GINConv", "GCNConv"])
def test_self_rows_add_up(name: str, device: torch.device, calls: list[str]) -> None:
    options = {"eps": 0.3, "train_eps": True} if name == "GINConv" else {}
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name), **options))
    assert_same(theirs, ours, features(9, device=device), edges(device=device))
    assert calls == ["spmm_add_self"]


@pytest.mark.parametrize("name", ["SAGEConv", "GINConv"])
def test_first_rows_as_destinations(name: str, device: torch.device, calls: list[str]) -> None:
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    edge_index = edges(9, 5, device=device)
    x = features(9, device=device)

    def run(layer: Any, slice_of: Any) -> Any:
        leaf = x.clone().requires_grad_()
        out = layer((leaf, slice_of(leaf)), edge_index)
        leaves = [leaf, *layer.parameters()]
        return out, torch.autograd.grad(out.square().sum(), leaves)

    expected = run(theirs, lambda leaf: leaf[:5])
    torch.testing.assert_close(run(ours, lambda leaf: first_rows(leaf, 5)), expected)
    assert len(calls) == 1
    torch.testing.assert_close(run(ours, lambda leaf: leaf[:5]), expected)
    # A slice of the user's has a gradient of its own.
    leaf = x.clone().requires_grad_()
    rows = leaf[:5]
    torch.autograd.grad(ours((leaf, rows), edge_index).sum(), rows)


def test_maps_that_are_looked_at(device: torch.device, calls: list[str]) -> None:
    args = (features(9, device=device), edges(device=device))
    outputs: list[Tensor] = []
    for place in ("lin_l", "lin_r"):
        theirs, ours = (layer.to(device) for layer in pair("SAGEConv", *arguments("SAGEConv")))
        for layer in (theirs, ours):
            getattr(layer, place).register_forward_hook(lambda *call: outputs.append(call[2]))
        assert_same(theirs, ours, *args)
        torch.testing.assert_close(outputs[1], outputs[0])
        outputs.clear()
    theirs, ours = (layer.to(device) for layer in pair("SAGEConv", *arguments("SAGEConv")))
    for layer in (theirs, ours):
        layer.lin_r = torch.nn.Sequential(layer.lin_r, torch.nn.Tanh())
    assert_same(theirs, ours, *args)
    theirs, ours = (layer.to(device) for layer in pair("SAGEConv", *arguments("SAGEConv")))
    for layer in (theirs, ours):
        torch.nn.utils.parametrizations.weight_norm(layer.lin_l)
    assert_same(theirs, ours, *args)
    assert not calls


def test_propagate_of_users(device: torch.device, calls: list[str]) -> None:
    class Doubled(fast.SAGEConv):
        def propagate(self, *args: Any, **options: Any) -> Tensor:
            return 2 * super().propagate(*args, **options)

    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    mine = Doubled(*arguments("SAGEConv"))
    mine.load_state_dict(ours.state_dict())
    x, edge_index = x_and_edges()
    with torch.no_grad():
        theirs.lin_l.weight *= 2
    torch.testing.assert_close(mine(x, edge_index), theirs(x, edge_index))
    assert not calls


def test_wrong_widths_are_pygs_to_report() -> None:
    for name in PROJECTED:
        theirs, ours = pair(name, *arguments(name))
        args = (
            features(9, WIDTH + 1),
            edges(),
            *edge_inputs(name, 40)[: name.endswith("RGCNConv")],
        )
        message = "shapes cannot be multiplied|Expected size for first two dimensions"
        with pytest.raises(RuntimeError, match=message) as expected:
            theirs(*args)
        with pytest.raises(RuntimeError, match=message) as error:
            ours(*args)
        assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("name", PROJECTED)
def test_weights_of_features_without_gradients(name: str, device: torch.device) -> None:
    """Their second derivatives are PyG's."""
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    args = (features(9, device=device), edges(device=device), *inputs_of(name, device))
    results = []
    for layer in (theirs, ours):
        weights = list(layer.parameters())[:1]
        first = torch.autograd.grad(layer(*args).square().sum(), weights, create_graph=True)
        results.append(torch.autograd.grad(first[0].square().sum(), weights))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"num_bases": 2}, {"bias": False}, {"root_weight": False}])
def test_relations(options: dict[str, Any], device: torch.device, calls: list[str]) -> None:
    theirs, ours = (
        layer.to(device) for layer in pair("RGCNConv", WIDTH, CHANNELS, RELATIONS, **options)
    )
    args = (features(9, device=device), edges(device=device), *inputs_of("RGCNConv", device))
    for _ in range(6):
        assert_same(theirs, ours, *args)
    x = (features(9, device=device), features(5, device=device))
    assert_same(theirs, ours, x, edges(9, 5, device=device), args[2])
    assert calls == ["sum_and_multiply"] * 7


def test_own_term_of_edge_features(device: torch.device) -> None:
    for options in ({}, {"eps": 0.3, "train_eps": True}):
        theirs, ours = (layer.to(device) for layer in pair("GINEConv", mlp(), **options))
        inputs = edge_inputs("GINEConv", 40, device)
        x, narrow = features(9, device=device), features(5, device=device)
        assert_same(theirs, ours, x, edges(device=device), *inputs)
        assert_same(theirs, ours, (x, narrow), edges(9, 5, device=device), *inputs)
        args = ((x, None), edges(9, 5, device=device), *inputs)
        expected, actual = (gradients(layer, *args, size=(9, 5)) for layer in (theirs, ours))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("out", [WIDTH - 1, WIDTH + 1])
def test_gcn_multiplies_where_that_is_narrower(
    out: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums have the fewer columns; a hook of the map sees what PyG's map gets."""
    widths: list[int] = []
    spmm_add_self = Csc.spmm_add_self

    def recorded(csc: Csc, of: SumAddSelf) -> Tensor:
        widths.append(of.x.shape[1])
        return spmm_add_self(csc, of)

    monkeypatch.setattr(Csc, "spmm_add_self", recorded)
    theirs, ours = (layer.to(device) for layer in pair("GCNConv", WIDTH, out))
    args = (features(9, device=device), edges(device=device))
    assert_same(theirs, ours, *args)
    assert widths == [min(WIDTH, out)]
    columns: list[Any] = []
    ours.lin.register_forward_hook(lambda _, inputs, result: columns.append(result.shape[1]))
    assert_same(theirs, ours, *args)
    assert columns == [out]
    assert widths == [min(WIDTH, out), out]

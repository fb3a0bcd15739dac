"""HeteroGraphConv of GAT or GATv2 layers as one operation: the results and gradients of DGL."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from torch import Tensor

import peergraph_dgl
from peergraph.integration import explain
from tests.adapters.dgl.served import served, typed_graph

WIDTHS = {"user": 6, "game": 5, "maker": 3}


@pytest.fixture(params=[dglnn.GATConv, dglnn.GATv2Conv], ids=["GAT", "GATv2"])
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of the layers; GATv2 runs as one operation on the CPU only."""
    of_test = request.node.callspec.params
    if request.param is dglnn.GATv2Conv and of_test.get("device", "cpu") != "cpu":
        pytest.skip("GATv2 has a kernel for each relation on a GPU")
    return request.param


def model(
    kind: Any = dglnn.GATConv, aggregate: str = "sum", mixed: bool = False, **options: Any
) -> dglnn.HeteroGraphConv:
    """One layer for each relation; with `mixed`, one of the other kind in the place of one."""
    torch.manual_seed(0)
    convs = {}
    other = dglnn.GATConv if kind is dglnn.GATv2Conv else dglnn.GATv2Conv
    for source, name, target in typed_graph().canonical_etypes:
        convs[name] = (other if mixed and name == "plays" else kind)(
            (WIDTHS[source], WIDTHS[target]), 4, 2, **options
        )
    return dglnn.HeteroGraphConv(convs, aggregate)


def features(g: Any, device: torch.device) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return {
        t: torch.randn(g.num_nodes(t), WIDTHS[t], generator=draws, dtype=torch.float64).to(device)
        for t in g.ntypes
    }


def results(conv: Any, g: Any, inputs: Any) -> dict[str, Tensor | None]:
    """Outputs, and gradients of a weighted sum of them, by name."""
    pairs = inputs if isinstance(inputs, tuple) else (inputs,)
    leaves = [{t: x.clone().requires_grad_() for t, x in each.items()} for each in pairs]
    conv.zero_grad()
    out = conv(g, tuple(leaves) if isinstance(inputs, tuple) else leaves[0])
    total = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x).to(x)).sum() for x in out.values())
    total.backward()
    values = {f"out {t}": x.detach() for t, x in out.items()}
    values |= {f"x {i} {t}": x.grad for i, each in enumerate(leaves) for t, x in each.items()}
    return values | {name: p.grad for name, p in conv.named_parameters()}


def compare(conv: Any, g: Any, inputs: Any) -> None:
    fast = peergraph_dgl.accelerate(copy.deepcopy(conv))
    expected, actual = results(conv, g, inputs), results(fast, g, inputs)
    assert "relations in one pass" in explain(fast, g, inputs)
    assert list(actual) == list(expected)
    for name, value in expected.items():
        other = actual[name]
        if value is None or other is None:
            assert value is None or not value.any(), name
            assert other is None or not other.any(), name
        else:
            torch.testing.assert_close(other, value, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
@pytest.mark.parametrize("mixed", [False, True])
def test_graph(kind: Any, aggregate: str, mixed: bool, device: torch.device) -> None:
    g = served(typed_graph(), device)
    compare(model(kind, aggregate, mixed).to(device, torch.float64), g, features(g, device))


@pytest.mark.parametrize("options", [{"bias": False}, {"negative_slope": 0.05}])
def test_options(kind: Any, options: dict[str, Any], device: torch.device) -> None:
    g = served(typed_graph(), device)
    compare(model(kind, **options).to(device, torch.float64), g, features(g, device))


def test_pair_of_inputs_and_missing_types(kind: Any, device: torch.device) -> None:
    g = served(typed_graph(), device)
    conv, x = model(kind).to(device, torch.float64), features(g, device)
    compare(conv, g, (x, {t: rows + 1 for t, rows in x.items()}))
    del x["maker"]
    compare(conv, g, x)


def test_block(kind: Any, device: torch.device) -> None:
    """Destinations are the first sources, some without edges; a relation has none."""
    g = dgl.in_subgraph(typed_graph(), {"user": [0, 1, 2], "game": [1, 5]})
    g = dgl.remove_edges(g, torch.arange(g.num_edges("makes")), "makes")
    block = dgl.to_block(g, {"user": [0, 1, 2, 7], "game": [1, 5]})
    draws = torch.Generator().manual_seed(1)
    x = {
        t: torch.randn(block.num_src_nodes(t), WIDTHS[t], generator=draws).to(device, torch.float64)
        for t in block.srctypes
    }
    compare(model(kind).to(device, torch.float64), served(block, device), x)


def test_edges_are_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from peergraph_dgl.nn import hetero

    calls = []
    original = hetero.TypedEdges
    monkeypatch.setattr(
        hetero, "TypedEdges", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    )
    g = typed_graph()
    conv, x = peergraph_dgl.accelerate(model().double()), features(g, torch.device("cpu"))
    for _ in range(3):
        conv(g, x)
    assert len(calls) == 1
    g.add_edges([0, 1], [2, 3], etype="plays")
    conv(g, x)
    assert len(calls) == 2


def test_calls_that_run_relation_by_relation(kind: Any) -> None:
    g = typed_graph()
    x = features(g, torch.device("cpu"))
    for options in ({"attn_drop": 0.5}, {"feat_drop": 0.5}, {"residual": True}):
        conv = model(kind, **options).double()
        fast = peergraph_dgl.accelerate(copy.deepcopy(conv))
        assert "alone, there is" in explain(fast, g, x)
        torch.manual_seed(0)
        expected = conv(g, x)
        torch.manual_seed(0)
        for node_type, rows in fast(g, x).items():
            torch.testing.assert_close(rows, expected[node_type])
    conv = model(kind, "max").double()
    fast = peergraph_dgl.accelerate(copy.deepcopy(conv))
    assert "neither added nor averaged" in explain(fast, g, x)
    for node_type, rows in fast(g, x).items():
        torch.testing.assert_close(rows, conv(g, x)[node_type])
    peergraph_dgl.revert(fast)
    assert type(fast) is dglnn.HeteroGraphConv

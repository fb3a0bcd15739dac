"""The layers of ``peergraph_dgl.nn`` are DGL's: parameters, results, gradients."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from torch import Tensor

import peergraph_dgl
import peergraph_dgl.nn as fast
from peergraph.integration import explain
from tests.adapters.dgl.served import (
    assert_close,
    block,
    grads,
    leaf,
    plain_graph,
    served,
    typed_graph,
)
from tests.named_case import named_case, named_cases

Make = Callable[[Any], torch.nn.Module]
CPU = torch.device("cpu")

LAYERS: dict[str, Make] = {
    "GraphConv": lambda nn: nn.GraphConv(6, 5, allow_zero_in_degree=True, activation=torch.tanh),
    "GraphConv left": lambda nn: nn.GraphConv(6, 8, norm="left", allow_zero_in_degree=True),
    "GraphConv right": lambda nn: nn.GraphConv(6, 5, norm="right", allow_zero_in_degree=True),
    "GraphConv none": lambda nn: nn.GraphConv(
        6, 6, norm="none", weight=False, bias=False, allow_zero_in_degree=True
    ),
    "SAGE mean": lambda nn: nn.SAGEConv(6, 5, "mean"),
    "SAGE mean, wide": lambda nn: nn.SAGEConv(6, 8, "mean", bias=False),
    "SAGE gcn": lambda nn: nn.SAGEConv(6, 8, "gcn"),
    "SAGE gcn, narrow": lambda nn: nn.SAGEConv(6, 5, "gcn", activation=torch.relu),
    "SAGE pool": lambda nn: nn.SAGEConv(6, 5, "pool", norm=torch.nn.LayerNorm(5)),
    "SAGE lstm": lambda nn: nn.SAGEConv(6, 5, "lstm"),
    "GAT": lambda nn: nn.GATConv(6, 5, 3, residual=True, allow_zero_in_degree=True),
    "GATv2": lambda nn: nn.GATv2Conv(6, 5, 3, allow_zero_in_degree=True),
    "GIN max": lambda nn: nn.GINConv(torch.nn.Linear(6, 5), "max"),
    "GIN sum": lambda nn: nn.GINConv(torch.nn.Linear(6, 5), "sum", learn_eps=True),
}
RELATIONAL: dict[str, Make] = {
    "basis": lambda nn: nn.RelGraphConv(6, 5, 4, "basis", 2, layer_norm=True),
    "basis, no self loop": lambda nn: nn.RelGraphConv(6, 5, 4, "basis", self_loop=False),
    "bdd": lambda nn: nn.RelGraphConv(6, 6, 4, "bdd", 3),
    "none": lambda nn: nn.RelGraphConv(6, 5, 4),
}


def pair_of(make: Make) -> tuple[torch.nn.Module, torch.nn.Module]:
    """DGL's layer and ours, with the same parameters."""
    torch.manual_seed(0)
    slow, quick = make(dglnn), make(fast)
    quick.load_state_dict(slow.state_dict())
    assert list(quick.state_dict()) == list(slow.state_dict())
    return slow, quick


def values(rows: int, *shape: int) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(rows))


def run(conv: torch.nn.Module, graph: Any, device: torch.device, *features: Any) -> list[Any]:
    inputs = [leaf(f, device) if f.is_floating_point() else f.to(device) for f in features]
    out = conv(graph, *inputs)
    leaves = [f for f in inputs if f.is_floating_point()]
    return [out, *grads(out, [*leaves, *conv.parameters()])]


def check(slow: Any, quick: Any, graph: Any, device: torch.device, *features: Any) -> None:
    expected = run(slow, graph, CPU, *features)
    # On the CPU both on DGL's own index and on that of graphs on a GPU.
    graphs = [served(graph, device)] if device != CPU else [graph, served(graph, CPU)]
    for g in graphs:
        got = run(copy.deepcopy(quick).to(device), g, device, *features)
        for ours, theirs in zip(got, expected, strict=True):
            assert_close(ours, theirs)


@named_cases("name", LAYERS)
def test_layer(name: str, device: torch.device) -> None:
    for graph in (plain_graph, block):
        g = graph()
        with named_case(graph.__name__):
            check(*pair_of(LAYERS[name]), g, device, values(g.num_src_nodes(), 6))


@pytest.mark.parametrize("name", ["SAGE mean", "GIN max"])
def test_graph_that_allows_one_format(name: str, device: torch.device) -> None:
    g = plain_graph().formats("csc")
    check(*pair_of(LAYERS[name]), g, device, values(g.num_src_nodes(), 6))


def test_edge_weights(device: torch.device) -> None:
    g = plain_graph()
    weights = values(g.num_edges()).abs()

    class Weighted(torch.nn.Module):
        def __init__(self, conv: torch.nn.Module) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, g: Any, x: Tensor, w: Tensor) -> Any:
            return self.conv(g, x, edge_weight=w)

    for name, make in LAYERS.items():
        if name in ("SAGE lstm", "GATv2"):  # They take no weights.
            continue
        slow, quick = pair_of(make)
        with named_case(name):
            check(Weighted(slow), Weighted(quick), g, device, values(g.num_nodes(), 6), weights)


@pytest.mark.parametrize("name", RELATIONAL)
def test_relational(name: str, device: torch.device) -> None:
    for graph, norm in itertools.product([plain_graph, block], [False, True]):
        g = graph()
        types = torch.arange(g.num_edges()) % 4
        more = [values(g.num_edges(), 1)] if norm else []
        x = values(g.num_src_nodes(), 6)
        with named_case(graph.__name__, "norm", norm):
            check(*pair_of(RELATIONAL[name]), g, device, x, types, *more)


class OnPair(torch.nn.Module):
    """Calls a layer with features of sources and destinations."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, g: Any, x: Tensor, y: Tensor) -> Any:
        return self.conv(g, (x, y))


PAIRS: dict[str, Make] = {
    "GraphConv": lambda nn: nn.GraphConv(6, 5, allow_zero_in_degree=True),
    "SAGE mean": lambda nn: nn.SAGEConv((6, 4), 5, "mean"),
    "SAGE mean, wide": lambda nn: nn.SAGEConv((6, 4), 8, "mean"),
    "SAGE pool": lambda nn: nn.SAGEConv((6, 4), 5, "pool"),
    "SAGE gcn": lambda nn: nn.SAGEConv((6, 6), 5, "gcn"),
    "GIN": lambda nn: nn.GINConv(torch.nn.Linear(6, 5), "mean"),
    "GAT": lambda nn: nn.GATConv((6, 4), 5, 2, residual=True, allow_zero_in_degree=True),
    "GAT, one weight": lambda nn: nn.GATConv(6, 5, 2, allow_zero_in_degree=True),
    "GATv2": lambda nn: nn.GATv2Conv((6, 4), 5, 2, residual=True, allow_zero_in_degree=True),
}


def test_pairs_of_features(device: torch.device) -> None:
    g = typed_graph()["plays"]
    for name, make in PAIRS.items():
        width = 6 if name in ("SAGE gcn", "GIN", "GAT, one weight") else 4
        slow, quick = pair_of(make)
        x, y = values(12, 6), values(7, width)
        with named_case(name):
            check(OnPair(slow), OnPair(quick), g, device, x, y)
            assert "fused" in explain(quick, g, (x, y))


def test_graph_conv_without_features_of_destinations(device: torch.device) -> None:
    g, x = typed_graph()["plays"], values(12, 6)
    slow, quick = pair_of(PAIRS["GraphConv"])
    check(slow, quick, g, device, x)
    assert "fused" in explain(quick, g, x)


def test_attention_and_zero_degrees(device: torch.device) -> None:
    slow, quick = pair_of(LAYERS["GAT"])
    g, x = plain_graph(), values(24, 6)
    expected = slow(g, x, get_attention=True)
    got = quick.to(device)(served(g, device), x.to(device), get_attention=True)
    assert_close(got[1], expected[1])
    with pytest.raises(dgl.DGLError, match="0-in-degree nodes"):
        fast.GraphConv(6, 5).to(device)(served(g, device), x.to(device))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sage = {t: dglnn.SAGEConv(6, 5, "mean") for t in ("follows", "plays", "makes")}
        sage["played-by"] = dglnn.SAGEConv(6, 5, "pool")
        self.first = dglnn.HeteroGraphConv(sage, aggregate="sum")
        self.second = dglnn.GATConv(5, 3, 2, allow_zero_in_degree=True)

    def forward(self, g: Any, x: dict[str, Tensor]) -> Tensor:
        h = {ntype: torch.relu(out) for ntype, out in self.first(g, x).items()}
        out: Tensor = self.second(g["follows"], h["user"])
        return out


def test_accelerate_and_revert(device: torch.device) -> None:
    torch.manual_seed(0)
    model = Model().to(device)
    g = typed_graph()
    x = {ntype: values(g.num_nodes(ntype), 6).to(device) for ntype in g.ntypes}
    g = served(g, device)
    kinds = [type(module) for module in model.modules()]
    parameters = list(model.parameters())
    expected = model(g, x)
    assert peergraph_dgl.accelerate(model) is model
    assert isinstance(model.second, fast.GATConv)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert_close(model(g, x), expected.cpu())
    model(g, x).sum().backward()
    assert all(p.grad is not None for p in model.second.parameters())
    peergraph_dgl.revert(model)
    assert [type(module) for module in model.modules()] == kinds
    assert_close(model(g, x), expected.cpu())
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        peergraph_dgl.accelerate(3)


def test_fused_code_runs() -> None:
    for name, make in (LAYERS | RELATIONAL).items():
        _, quick = pair_of(make)
        g = plain_graph()
        extra = [torch.arange(g.num_edges()) % 4] if name in RELATIONAL else []
        text = explain(quick, g, values(24, 6), *extra)
        fused = name not in ("SAGE lstm", "bdd", "none")
        assert ("peergraph, fused" in text) == fused, (name, text)
        assert ("DGL, " in text) == (not fused), (name, text)


def test_edge_lists_of_dgls_graphs_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    from peergraph_dgl.backend import message_passing

    calls = []
    original = message_passing.edge_list_of
    monkeypatch.setattr(
        message_passing, "edge_list_of", lambda *args: calls.append(args) or original(*args)
    )
    g = typed_graph()
    layer = pair_of(LAYERS["SAGE mean"])[1]
    for _ in range(3):
        layer(g["follows"], values(12, 6))
    assert len(calls) == 1


def test_functions_of_users_run_on_dgls_graph() -> None:
    class Own(fast.SAGEConv):
        def forward(self, graph: Any, feat: Tensor) -> Tensor:
            graph.srcdata["h"] = feat
            graph.update_all(lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)})
            out: Tensor = graph.dstdata["h"]
            return out

    g = plain_graph()
    x = values(24, 6)
    assert_close(Own(6, 5, "mean")(g, x), dgl.ops.copy_u_sum(g, x))


# Layers with dropout of features and of attention; DGL draws the same numbers in the same order.
RANDOM: dict[str, Make] = {
    "SAGE": lambda nn: nn.SAGEConv(6, 5, "mean", feat_drop=0.5),
    "SAGE lstm": lambda nn: nn.SAGEConv(6, 5, "lstm", feat_drop=0.5),
    "GAT": lambda nn: nn.GATConv(6, 5, 3, 0.3, 0.4, residual=True, allow_zero_in_degree=True),
    "GATv2": lambda nn: nn.GATv2Conv(6, 5, 3, 0.3, 0.4, allow_zero_in_degree=True),
    "RelGraph": lambda nn: nn.RelGraphConv(6, 5, 4, "basis", 2, dropout=0.5),
}


@pytest.mark.parametrize("name", RANDOM)
def test_dropout_draws_dgls_numbers(name: str) -> None:
    for graph in (plain_graph, block):
        slow, quick = pair_of(RANDOM[name])
        g = graph()
        x = values(g.num_src_nodes(), 6)
        extra = [torch.arange(g.num_edges()) % 4] if name == "RelGraph" else []
        torch.manual_seed(7)
        expected = slow(g, x, *extra)
        after = torch.rand(1)
        torch.manual_seed(7)
        with named_case(graph.__name__):
            assert_close(quick(g, x, *extra), expected)
            assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("make", "arguments", "reason"),
    [
        (LAYERS["GAT"], {"get_attention": True}, "attention weights are returned"),
        (LAYERS["GATv2"], {"get_attention": True}, "attention weights are returned"),
        (LAYERS["GIN sum"], {"rank": 3}, r"features are \[24, 2, 6\]"),
        (LAYERS["GraphConv"], {"rank": 3}, r"features are \[24, 2, 6\]"),
        (LAYERS["GIN sum"], {"edge_weight": (80, 6)}, r"edge_weight is \[80, 6\]"),
        (LAYERS["SAGE mean, wide"], {"edge_weight": (80, 6)}, r"edge_weight is \[80, 6\]"),
        (LAYERS["SAGE mean"], {"hook": "fc_neigh"}, "a linear layer is modified or has hooks"),
        (LAYERS["GAT"], {"hook": "attn_drop"}, "dropout or hooks"),
        (LAYERS["GATv2"], {"hook": "leaky_relu"}, "activation or hooks"),
    ],
)
def test_unsupported_calls_take_dgls_steps(
    make: Make, arguments: dict[str, Any], reason: str
) -> None:
    slow, quick = pair_of(make)
    g = plain_graph()
    x = values(24, *([2, 6] if arguments.get("rank") else [6]))
    options: dict[str, Any] = {}
    if arguments.get("get_attention"):
        options["get_attention"] = True
    if "edge_weight" in arguments:
        options["edge_weight"] = values(g.num_edges(), *arguments["edge_weight"][1:])
        reason = reason.replace("80", str(g.num_edges()))
    calls: list[int] = []
    if "hook" in arguments:
        for layer in (slow, quick):
            getattr(layer, arguments["hook"]).register_forward_hook(lambda *_: calls.append(0))
    expected, got = slow(g, x, **options), quick(g, x, **options)
    if not isinstance(expected, tuple):
        expected, got = (expected,), (got,)
    for ours, theirs in zip(got, expected, strict=True):
        assert_close(ours, theirs)
    assert len(calls) == (2 if "hook" in arguments else 0)
    text = explain(quick, g, x, **options)
    assert re.search(f"peergraph's kernels in DGL's steps, .*{reason}", text), text


def test_autocast_takes_dgls_steps() -> None:
    slow, quick = pair_of(LAYERS["GraphConv"])
    g, x = plain_graph(), values(24, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert "there is autocast" in explain(quick, g, x)
        assert quick(g, x).dtype == slow(g, x).dtype


@pytest.mark.parametrize("kind", ["GraphConv", "GATConv", "GATv2Conv"])
def test_errors_are_dgls(kind: str) -> None:
    sizes = (6, 4) if kind == "GraphConv" else (6, 4, 2)
    g = dgl.graph(([0], [1]), num_nodes=3)
    x = values(3, 6)
    with pytest.raises(dgl.DGLError, match="0-in-degree"):
        getattr(fast, kind)(*sizes)(g, x)
    if kind == "GraphConv":
        layer = fast.GraphConv(6, 4, allow_zero_in_degree=True)
        with pytest.raises(dgl.DGLError, match="External weight"):
            layer(g, x, weight=layer.weight)


def test_external_weight_of_graph_conv() -> None:
    slow, quick = pair_of(lambda nn: nn.GraphConv(6, 4, weight=False, allow_zero_in_degree=True))
    g, x, weight = plain_graph(), values(24, 6), values(6, 4)
    assert_close(quick(g, x, weight=weight), slow(g, x, weight=weight))
    assert "fused" in explain(quick, g, x, weight=weight)


def test_graph_without_edges(device: torch.device) -> None:
    g = dgl.graph(([], []), num_nodes=4)
    # Not "SAGE pool": DGL's maximum over no edges has a gradient in node 0.
    for name in ("GraphConv", "SAGE mean", "GIN sum", "GAT", "GATv2"):
        check(*pair_of(LAYERS[name]), g, device, values(4, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_of_features(dtype: torch.dtype) -> None:
    for name in ("GraphConv", "SAGE mean", "GIN sum", "GAT", "GATv2"):
        _, quick = pair_of(LAYERS[name])
        g, x = plain_graph(), values(24, 6)
        expected = quick(g, x)
        got = quick.to(dtype)(g, x.to(dtype))
        assert got.dtype == dtype
        assert (got.float() - expected).abs().max() < 0.1
        assert "fused" in explain(quick, g, x.to(dtype))

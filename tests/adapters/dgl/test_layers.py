"""The layers of ``peergraph_dgl.nn`` are DGL's: parameters, results, gradients."""

from __future__ import annotations

import copy
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
from peergraph_dgl.nn import convs
from tests.adapters.dgl.served import (
    assert_close,
    block,
    grads,
    leaf,
    plain_graph,
    served,
    typed_graph,
)

Make = Callable[[Any], torch.nn.Module]
CPU = torch.device("cpu")

LAYERS: dict[str, Make] = {
    "GraphConv": lambda nn: nn.GraphConv(6, 5, allow_zero_in_degree=True, activation=torch.tanh),
    "GraphConv left": lambda nn: nn.GraphConv(6, 8, norm="left", allow_zero_in_degree=True),
    "SAGE mean": lambda nn: nn.SAGEConv(6, 5, "mean"),
    "SAGE gcn": lambda nn: nn.SAGEConv(6, 8, "gcn"),
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
    given = [leaf(f, device) if f.is_floating_point() else f.to(device) for f in features]
    out = conv(graph, *given)
    leaves = [f for f in given if f.is_floating_point()]
    return [out, *grads(out, [*leaves, *conv.parameters()])]


def check(slow: Any, quick: Any, graph: Any, device: torch.device, *features: Any) -> None:
    wanted = run(slow, graph, CPU, *features)
    # On the CPU both on DGL's own index and on that of graphs on a GPU.
    graphs = [served(graph, device)] if device != CPU else [graph, served(graph, CPU)]
    for g in graphs:
        got = run(copy.deepcopy(quick).to(device), g, device, *features)
        for ours, theirs in zip(got, wanted, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("graph", [plain_graph, block])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, graph: Callable[..., Any], device: torch.device) -> None:
    g = graph()
    check(*pair_of(LAYERS[name]), g, device, values(g.num_src_nodes(), 6))


@pytest.mark.parametrize("name", ["SAGE mean", "GIN max"])
def test_graph_that_allows_one_format(name: str, device: torch.device) -> None:
    g = plain_graph().formats("csc")
    check(*pair_of(LAYERS[name]), g, device, values(g.num_src_nodes(), 6))


@pytest.mark.parametrize("name", ["GraphConv", "SAGE mean", "GIN sum", "GAT"])
def test_edge_weights(name: str, device: torch.device) -> None:
    g = plain_graph()
    weights = values(g.num_edges()).abs()

    class Weighted(torch.nn.Module):
        def __init__(self, conv: torch.nn.Module) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, g: Any, x: Tensor, w: Tensor) -> Any:
            return self.conv(g, x, edge_weight=w)

    slow, quick = pair_of(LAYERS[name])
    check(Weighted(slow), Weighted(quick), g, device, values(g.num_nodes(), 6), weights)


@pytest.mark.parametrize("graph", [plain_graph, block])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", RELATIONAL)
def test_relational(name: str, norm: bool, graph: Callable[..., Any], device: torch.device) -> None:
    g = graph()
    types = torch.arange(g.num_edges()) % 4
    more = [values(g.num_edges(), 1)] if norm else []
    check(*pair_of(RELATIONAL[name]), g, device, values(g.num_src_nodes(), 6), types, *more)


def test_pairs_of_features(device: torch.device) -> None:
    g = typed_graph()["plays"]
    x, y = values(12, 6), values(7, 4)
    for make in (
        lambda nn: nn.SAGEConv((6, 4), 5, "mean"),
        lambda nn: nn.GATConv((6, 4), 5, 2, allow_zero_in_degree=True),
        lambda nn: nn.GATv2Conv((6, 4), 5, 2, allow_zero_in_degree=True),
    ):
        slow, quick = pair_of(make)
        wanted = slow(g, (x, y))
        got = quick.to(device)(served(g, device), (x.to(device), y.to(device)))
        assert_close(got, wanted)


def test_attention_and_zero_degrees(device: torch.device) -> None:
    slow, quick = pair_of(LAYERS["GAT"])
    g, x = plain_graph(), values(24, 6)
    wanted = slow(g, x, get_attention=True)
    got = quick.to(device)(served(g, device), x.to(device), get_attention=True)
    assert_close(got[1], wanted[1])
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
    wanted = model(g, x)
    assert peergraph_dgl.accelerate(model) is model
    assert isinstance(model.second, fast.GATConv)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert_close(model(g, x), wanted.cpu())
    model(g, x).sum().backward()
    assert all(p.grad is not None for p in model.second.parameters())
    peergraph_dgl.revert(model)
    assert [type(module) for module in model.modules()] == kinds
    assert_close(model(g, x), wanted.cpu())
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        peergraph_dgl.accelerate(3)


def test_the_fast_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And structures of relations of DGL's own graphs are made once."""
    from peergraph_dgl.backend import message_passing

    calls = []
    made = message_passing.edge_list_of
    monkeypatch.setattr(
        message_passing, "edge_list_of", lambda *args: calls.append(args) or made(*args)
    )
    for name, make in (LAYERS | {"basis": RELATIONAL["basis"]}).items():
        _, quick = pair_of(make)
        refused = []

        class Watched(convs.KernelGraph):
            def __init__(self, graph: Any, refused: list[int] = refused) -> None:
                super().__init__(graph)
                refused.append(0)

            def local_scope(self, refused: list[int] = refused) -> Any:
                refused.pop()
                return super().local_scope()

        monkeypatch.setattr(convs, "KernelGraph", Watched)
        g = plain_graph()
        extra = [torch.arange(g.num_edges()) % 4] if name == "basis" else []
        quick(g, values(24, 6), *extra)
        assert bool(refused) == (name in ("SAGE lstm", "basis", "GATv2"))
    calls.clear()
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


def test_gatv2_takes_steps_where_edges_are_looked_at() -> None:
    slow, quick = pair_of(lambda nn: nn.GATv2Conv(6, 4, 2, allow_zero_in_degree=True))
    g = plain_graph()
    x = values(g.num_nodes(), 6)
    for ours, theirs in zip(quick(g, x, get_attention=True), slow(g, x, True), strict=True):
        assert_close(ours, theirs)
    seen = []
    quick.attn_drop.register_forward_hook(lambda *_: seen.append(0))
    assert_close(quick(g, x), slow(g, x))
    assert seen
    strict = fast.GATv2Conv(6, 4, 2)
    with pytest.raises(dgl.DGLError, match="0-in-degree"):
        strict(dgl.graph(([0], [1]), num_nodes=3), x[:3])

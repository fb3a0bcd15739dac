"""HeteroConv of SAGE and Graph layers as one operation: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GraphConv, HeteroConv, HGTConv, SAGEConv, to_hetero

from peergraph.aggregate.layers import RelationSize, relations_multiply_first
from peergraph.aggregate.sparse import relation_blocks
from peergraph.memory.device.default_machine import WORK
from peergraph_pyg import accelerate, explain, revert
from peergraph_pyg.data.tailed_rows import TailedRows

from .test_real_data import edge_index, features, read
from .test_typed_attention import layer as attention
from .typed_batches import EDGE_TYPES, TrimmedModel, check_batches
from .typed_graph import (
    EDGES,
    NODES,
    WIDTHS,
    check_compiled,
    check_half_precision,
    check_ids_out_of_range,
    check_int32_and_changed_edges,
    check_missing_types,
    check_unused_types,
    compare,
    graph,
    results,
    same_outputs,
)


def layer(conv: Any = SAGEConv, relations: str = "sum", **options: Any) -> HeteroConv:
    """One layer for each edge type, to 16 columns."""
    convs = {t: conv((WIDTHS[t[0]], WIDTHS[t[2]]), 16, **options) for t in EDGES}
    return HeteroConv(convs, aggr=relations)


def mixed(relations: str = "sum") -> HeteroConv:
    """Families of two kinds of sums, attention, and a layer that runs alone."""
    convs: dict[Any, Any] = {}
    for i, t in enumerate(EDGES):
        ends = WIDTHS[t[0]], WIDTHS[t[2]]
        convs[t] = [
            SAGEConv(ends, 16),
            GraphConv(ends, 16),
            SAGEConv(ends, 16),
            SAGEConv(ends, 16, aggr="sum", root_weight=False),
            GATConv(ends, 4, heads=4, add_self_loops=False),
            SAGEConv(ends, 16, aggr="max"),
        ][i]
    return HeteroConv(convs, aggr=relations)


OPTIONS = [
    {},
    {"aggr": "sum"},
    {"root_weight": False},
    {"bias": False},
    {"root_weight": False, "bias": False},
]


@pytest.mark.parametrize("relations", ["sum", "mean", "max", "min", "cat", None])
@pytest.mark.parametrize("options", OPTIONS)
def test_sage(relations: str, options: dict[str, Any], device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(SAGEConv, relations, **options).to(device, torch.float64), x, edges)


@pytest.mark.parametrize("relations", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"aggr": "mean"}, {"bias": False}])
@pytest.mark.parametrize("weighted", [False, True])
def test_graph_conv(
    relations: str, options: dict[str, Any], weighted: bool, device: torch.device
) -> None:
    """With weights of the edges of all relations but two, and without."""
    x, edges = graph(device)
    model = layer(GraphConv, relations, **options).to(device, torch.float64)
    if weighted:
        weights = {t: torch.rand(e.shape[1]).to(device, torch.float64) for t, e in edges.items()}
        del weights["author", "writes", "paper"], weights["topic", "of", "paper"]
        model = Weighted(model, weights)
    compare(model, x, edges)


class Weighted(torch.nn.Module):
    """A HeteroConv that is called with weights of edges."""

    def __init__(self, convs: HeteroConv, weights: dict[Any, Tensor]) -> None:
        super().__init__()
        self.convs, self.weights = convs, weights

    def forward(self, x: Any, edges: Any) -> Any:
        return self.convs(x, edges, edge_weight_dict=self.weights)


@pytest.mark.parametrize("relations", ["sum", "mean", "max", "cat"])
def test_mixed_layers(relations: str, device: torch.device) -> None:
    x, edges = graph(device)
    compare(mixed(relations).to(device, torch.float64), x, edges)


@pytest.mark.parametrize("relations", ["sum", "mean", "cat"])
def test_pairs_that_have_edges(
    relations: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few pairs of a destination and a relation have edges, only these have sums."""
    monkeypatch.setattr(relation_blocks, "_FEW_ROWS", {"cpu": 0, "cuda": 0})
    monkeypatch.setattr(relation_blocks, "_MOST_ROWS", 0)
    x, edges = graph(device)
    compare(layer(SAGEConv, relations).to(device, torch.float64), x, edges)
    compare(layer(GraphConv, relations).to(device, torch.float64), x, edges)
    compare(mixed(relations).to(device, torch.float64), x, edges)


@pytest.mark.parametrize("relations", ["sum", "mean", "cat"])
def test_products_before_sums(
    relations: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where results are much narrower than features, products are summed."""
    work = replace(WORK, product_margin=1e-9)
    monkeypatch.setattr("peergraph.aggregate.ops.product_order.WORK", work)
    x, edges = graph(device)
    for options in OPTIONS:
        compare(layer(SAGEConv, relations, **options).to(device, torch.float64), x, edges)
    model = layer(GraphConv, relations, aggr="mean").to(device, torch.float64)
    weights = {t: torch.rand(e.shape[1]).to(device, torch.float64) for t, e in edges.items()}
    del weights["author", "writes", "paper"]
    compare(Weighted(model, weights), x, edges)
    compare(mixed(relations).to(device, torch.float64), x, edges)
    fast = accelerate(model)
    assert "after their products" in explain(fast, x, edges)
    for again in (False, True):
        model = layer(SAGEConv, relations).to(device, torch.float64)
        check_unused_types(model, x, edges, create_graph=again)
    check_second_derivatives(layer().to(device, torch.float64), x, edges)


def test_order_of_sums_and_products() -> None:
    """Wide features of nodes with many edges are multiplied first."""
    cpu = torch.device("cpu")
    wide = RelationSize(edges=20_000, sources=500, destinations=500, columns=3000, out=16)
    assert relations_multiply_first([wide], cpu)
    batch = RelationSize(edges=20_000, sources=15_000, destinations=1500, columns=512, out=256)
    assert not relations_multiply_first([batch], cpu)
    assert not relations_multiply_first([batch], torch.device("cuda"))


def test_float32(device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    compare(layer().to(device), x, edges, 1e-4)


@pytest.mark.parametrize("relations", ["sum", "cat"])
def test_types_that_the_loss_does_not_use(relations: str, device: torch.device) -> None:
    """Parameters have no gradient where PyG's have none: optimizers with decay leave them alone."""
    x, edges = graph(device)
    for again in (False, True):
        model = layer(SAGEConv, relations).to(device, torch.float64)
        check_unused_types(model, x, edges, create_graph=again)


@pytest.mark.parametrize("make", [layer, attention])
def test_gradients_have_memory_of_their_own(make: Any, device: torch.device) -> None:
    """Weights and biases that are added up have equal gradients, which change one by one."""
    x, edges = graph(device)
    fast = accelerate(make().to(device, torch.float64))
    results(fast, x, edges)
    gradients = [p.grad for p in fast.parameters() if p.grad is not None]
    assert len({grad.data_ptr() for grad in gradients}) == len(gradients)
    torch.nn.utils.clip_grad_norm_(fast.parameters(), 1.0)
    norm = torch.stack([grad.square().sum() for grad in gradients]).sum().sqrt()
    torch.testing.assert_close(float(norm), 1.0)


def test_second_derivatives(device: torch.device) -> None:
    x, edges = graph(device)
    check_second_derivatives(layer().to(device, torch.float64), x, edges)


def check_second_derivatives(model: Any, x: Any, edges: Any) -> None:
    values = []
    for each in (model, accelerate(copy.deepcopy(model))):
        inputs = {t: rows.clone().requires_grad_() for t, rows in x.items()}
        out = each(inputs, edges)
        loss = sum(rows.pow(3).sum() for rows in out.values())
        tensors = [*(inputs[t] for t in ("paper", "author")), *each.parameters()]
        first = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)  # type: ignore[arg-type]
        sum(g.square().sum() for g in first if g is not None).backward()
        values.append([t.grad for t in tensors])
    for one, other in zip(*values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_types_without_any_edges(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    for empty in ([t for t in edges if t[2] == "topic"], list(edges)):
        for edge_type in empty:
            edges[edge_type] = edges[edge_type][:, :0]
        compare(model, x, edges)


def test_types_that_a_batch_lacks(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    check_missing_types(model, x, edges)
    x["alone"] = None  # features that no relation reads
    fast = accelerate(copy.deepcopy(model))
    same_outputs(fast, model, x, edges)


def test_types_without_nodes(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    x["topic"] = x["topic"][:0]
    edges = {t: e[:, :0] if "topic" in t else e for t, e in edges.items()}
    compare(model, x, edges)
    none = {t: rows[:0] for t, rows in x.items()}, {t: e[:, :0] for t, e in edges.items()}
    for node_type, rows in accelerate(copy.deepcopy(model))(*none).items():
        assert rows.shape == model(*none)[node_type].shape


def test_rows_of_nodes_without_edges(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed where something reads them, with the parameters that the layer had."""
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cuda", 0)
    x, edges = graph(device)
    x["paper"] = x["paper"].repeat(4, 1)
    model = layer().to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    out, expected = fast(x, edges)["paper"], model(x, edges)["paper"]
    assert isinstance(out, TailedRows)
    torch.testing.assert_close(F.leaky_relu(out).relu()[150:], expected[150:].relu())
    with torch.no_grad():
        unread = fast(x, edges)["paper"]
        assert not (unread + 0).requires_grad
        unread = fast(x, edges)["paper"]
        torch.testing.assert_close(unread[:40], expected[:40])
        x["paper"].add_(1)
        torch.testing.assert_close(unread[:40], expected[:40])
        with pytest.raises(NotImplementedError, match="have been written to"):
            unread.sum()


@pytest.mark.parametrize("relations", ["sum", "mean", "cat"])
def test_short_tails(relations: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short tail of nodes without edges has rows of sums, multiplied with the others."""
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cpu", 1 << 15)
    x, edges = graph(device)
    x["paper"] = x["paper"].repeat(4, 1)
    model = layer(SAGEConv, relations).to(device, torch.float64)
    assert type(accelerate(copy.deepcopy(model))(x, edges)["paper"]) is Tensor
    compare(model, x, edges)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, device.type, 100)
    rows = accelerate(copy.deepcopy(model))(x, {t: e[:] for t, e in edges.items()})
    assert relations == "cat" or type(rows["paper"]) is TailedRows


@pytest.mark.parametrize("kind", ["sums", "HGT"])
@pytest.mark.parametrize("fused", [False, True])
def test_rows_that_are_read_after_a_step_of_the_optimizer(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kind: str, fused: bool
) -> None:
    """They are those of the parameters that the layer had."""
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cuda", 0)
    x, edges = graph(device)
    x["paper"] = x["paper"].repeat(4, 1)
    widths = {node_type: rows.shape[1] for node_type, rows in x.items()}
    model = layer() if kind == "sums" else HGTConv(widths, widths["paper"], (list(x), list(edges)))
    model = model.to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    out, expected = fast(x, edges)["paper"], model(x, edges)["paper"]
    assert isinstance(out, TailedRows)
    out[:40].sum().backward()
    torch.optim.Adam(fast.parameters(), fused=fused).step()  # a fused one raises no versions
    for parameter in fast.parameters():
        parameter.data.mul_(2)
    torch.testing.assert_close(out[150:], expected[150:])


def test_features_that_are_written_to_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cuda", 0)
    x, edges = graph(torch.device("cpu"))
    x["paper"] = x["paper"].repeat(4, 1)
    fast = accelerate(layer().double())
    out = fast(x, edges)["paper"]
    x["paper"].numpy()[-1] = 7
    with pytest.raises(NotImplementedError, match=r"have been written to.*x\.clone"):
        out.sum()


def test_int32_edges_and_edges_that_change(device: torch.device) -> None:
    check_int32_and_changed_edges(layer().to(device, torch.float64), *graph(device))


@pytest.mark.parametrize("conv", [SAGEConv, GraphConv])
def test_half_precision(conv: Any, device: torch.device) -> None:
    """Under autocast, results are as near to those of float32 as PyG's."""
    torch.manual_seed(0)
    x, edges = graph(device, torch.float32)
    model: Any = layer(conv, aggr="mean").to(device)
    if conv is GraphConv:
        model = Weighted(model, {t: torch.rand(e.shape[1]).to(device) for t, e in edges.items()})
    check_half_precision(model, x, edges)


@pytest.mark.parametrize("options", [{"aggr": "max"}, {"normalize": True}, {"project": True}])
def test_layers_that_run_alone(options: dict[str, Any]) -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer(SAGEConv, **options).double()
    fast = accelerate(copy.deepcopy(model))
    assert "relations in one pass" not in str(explain(fast, x, edges))
    same_outputs(fast, model, x, edges)


def test_weights_with_gradients_and_hooks() -> None:
    """Gradients of weights of edges take PyG's way; hooks see each layer."""
    x, edges = graph(torch.device("cpu"))
    model = layer(GraphConv).double()
    fast, grads = accelerate(copy.deepcopy(model)), []
    for each in (model, fast):
        weights = {
            t: torch.linspace(0, 1, e.shape[1], dtype=torch.float64).requires_grad_()
            for t, e in edges.items()
        }
        out = each(x, edges, edge_weight_dict=weights)
        sum(rows.square().sum() for rows in out.values()).backward()
        grads.append([weight.grad for weight in weights.values()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    calls = []
    fast.convs["paper", "cites", "paper"].register_forward_hook(lambda *_: calls.append(1))
    fast(x, edges)
    assert calls == [1]


def test_revert_state_and_lazy_widths() -> None:
    x, edges = graph(torch.device("cpu"))
    model = HeteroConv({t: SAGEConv((-1, -1), 16) for t in EDGES}).double()
    fast = accelerate(copy.deepcopy(model))
    fast(x, edges)  # sets the widths
    fast(x, edges)
    model.load_state_dict(fast.state_dict())
    assert type(revert(fast)) is HeteroConv
    same_outputs(fast, model, x, edges, exactly=True)
    again = accelerate(fast)
    again.load_state_dict(model.state_dict())
    same_outputs(again, model, x, edges)


def test_compiled() -> None:
    check_compiled(layer().double(), *graph(torch.device("cpu")))


def test_inference_mode(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    with torch.inference_mode():
        for node_type, rows in model(x, edges).items():
            torch.testing.assert_close(fast(x, edges)[node_type], rows)


def test_ids_out_of_range(device: torch.device) -> None:
    check_ids_out_of_range(accelerate(layer().to(device, torch.float64)), *graph(device))


@pytest.mark.parametrize("name", ["imdb_hetero", "debian_hetero"])
@pytest.mark.parametrize("conv", [SAGEConv, GraphConv])
def test_real_graphs(name: str, conv: Any, device: torch.device) -> None:
    """Films, and packages of which most types have no features: these get random rows."""
    arrays, draws = read(name), torch.Generator().manual_seed(0)
    x, edges = {}, {}
    for node_type in arrays["node_types"].tolist():
        if f"{node_type}.x_data" in arrays:
            x[node_type] = features(arrays, f"{node_type}.")[:, :40].to(device, torch.float64)
        else:
            rows = torch.randn(int(arrays[f"{node_type}.num_nodes"]), 24, generator=draws)
            x[node_type] = rows.to(device, torch.float64)
    for edge_type in arrays["edge_types"].tolist():
        edges[tuple(edge_type.split("."))] = edge_index(arrays, f"{edge_type}.").to(device)
    widths = {t: rows.shape[1] for t, rows in x.items()}
    convs = {t: conv((widths[t[0]], widths[t[2]]), 16) for t in edges}
    compare(HeteroConv(convs, aggr="mean").to(device, torch.float64), x, edges, 1e-9)


@pytest.mark.parametrize("storage", [None, "lazy", "int8", "lazy int8", "lazy int8 apart"])
@pytest.mark.parametrize(("trims", "margin"), [(False, 2.0), (True, 2.0), (True, 0.0)])
def test_batches(
    storage: str | None,
    trims: bool,
    margin: float,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are read as they are stored; rows that the next layer drops are not computed."""
    work = replace(WORK, product_margin=margin or 1e-9)
    monkeypatch.setattr("peergraph.aggregate.ops.product_order.WORK", work)
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cuda", 0)
    if storage == "lazy int8 apart":  # Rows are gathered as they are stored.
        monkeypatch.setattr("peergraph.memory.TableRows.pays_to_read", lambda *_: False)

    def layer(width: int) -> HeteroConv:
        return HeteroConv({t: SAGEConv((width, width), 32) for t in EDGE_TYPES}, aggr="sum")

    torch.manual_seed(0)
    check_batches(TrimmedModel(layer, trims).to(device), storage, device, margin > 0)


class Homogeneous(torch.nn.Module):
    """Three layers that ``to_hetero`` copies for each relation."""

    def __init__(self, conv: Any, **options: Any) -> None:
        super().__init__()
        self.first = conv((-1, -1), 16, **options)
        self.second = conv((-1, -1), 16, **options)
        self.third = conv((-1, -1), 8, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        x = x + self.second(x, edge_index)
        return self.third(x.relu(), edge_index)


@pytest.mark.parametrize("relations", ["sum", "mean", "max"])
@pytest.mark.parametrize("conv", [SAGEConv, GraphConv, GATConv])
def test_to_hetero(conv: Any, relations: str, device: torch.device) -> None:
    x, edges = graph(device)
    del x["alone"]
    options = {"add_self_loops": False} if conv is GATConv else {}
    model = to_hetero(Homogeneous(conv, **options), (list(x), list(edges)), aggr=relations)
    model = model.to(device, torch.float64)
    with torch.no_grad():
        model(x, edges)  # sets the widths
    code, names = model.code, list(model.state_dict())
    compare(model, x, edges)
    fast = accelerate(copy.deepcopy(model))
    assert list(fast.state_dict()) == names
    expected = model(x, edges)
    for each in (fast, copy.deepcopy(fast), accelerate(fast), revert(copy.deepcopy(fast))):
        for node_type, rows in each(x, edges).items():
            torch.testing.assert_close(rows, expected[node_type])
    assert fast.code != code
    assert revert(fast).code.count("self.") == code.count("self.")
    torch.testing.assert_close(revert(fast)(x, edges), expected)


def test_to_hetero_with_hooks_and_weights() -> None:
    """A hook sees a layer's result; weights of edges take PyG's way."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GraphConv((-1, -1), 16)
            self.other = GraphConv((-1, -1), 4)

        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            return self.other(self.conv(x, edge_index, edge_weight), edge_index)

    x, edges = graph(torch.device("cpu"))
    del x["alone"]
    weights = {t: torch.rand(e.shape[1], dtype=torch.float64) for t, e in edges.items()}
    model = to_hetero(Model(), (list(x), list(edges))).double()
    expected = model(x, edges, weights)
    fast = accelerate(copy.deepcopy(model))
    torch.testing.assert_close(fast(x, edges, weights), expected)
    shapes = []
    hook = fast.get_submodule("other.paper__of__author").register_forward_hook
    hook(lambda *arguments: shapes.append(arguments[-1].shape))
    torch.testing.assert_close(fast(x, edges, weights), expected)
    assert shapes == [(NODES["author"], 4)]
    assert "relations in one pass" in str(explain(fast, x, edges, weights))

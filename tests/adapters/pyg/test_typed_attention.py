"""HeteroConv of GAT layers as one operation: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, HeteroConv, SAGEConv

from peergraph_pyg import accelerate, explain

from .typed_batches import EDGE_TYPES, STORAGES, TrimmedModel, check_batches
from .typed_graph import (
    EDGES,
    WIDTHS,
    check_compiled,
    check_half_precision,
    check_ids_out_of_range,
    check_int32_and_changed_edges,
    check_mean_of_dropout,
    check_missing_types,
    check_state_and_revert,
    check_unused_types,
    compare,
    graph,
    results,
    same_outputs,
    sort_keys_in_pieces,
)

KINDS = [GATConv, GATv2Conv]


@pytest.fixture(params=KINDS, ids=["GAT", "GATv2"])
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of the layers; GATv2 runs as one operation on the CPU only."""
    of_test = request.node.callspec.params
    if request.param is GATv2Conv and of_test.get("device", "cpu") != "cpu":
        pytest.skip("GATv2 has a kernel for each relation on a GPU")
    return request.param


def layer(
    kind: Any = GATConv, aggr: str | None = "sum", mixed: bool = False, **options: Any
) -> HeteroConv:
    """One layer for each edge type; with `mixed`, a SAGE layer in the place of the second."""
    convs = {}
    loops = options.pop("add_self_loops", False)
    for i, edge_type in enumerate(EDGES):
        ends = WIDTHS[edge_type[0]], WIDTHS[edge_type[2]]
        if mixed and i == 1:
            convs[edge_type] = SAGEConv(ends, 32)
        else:
            own = loops and edge_type[0] == edge_type[2]
            convs[edge_type] = kind(ends, 8, heads=4, add_self_loops=own, **options)
    return HeteroConv(convs, aggr=aggr)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "cat", None])
@pytest.mark.parametrize("mixed", [False, True])
def test_outputs_and_gradients(
    kind: Any, aggr: str | None, mixed: bool, device: torch.device
) -> None:
    x, edges = graph(device)
    compare(layer(kind, aggr, mixed).to(device, torch.float64), x, edges)


@pytest.mark.parametrize(
    "options",
    [
        {"add_self_loops": True},
        {"bias": False},
        {"negative_slope": 0.05},
        {"dropout": 0.5},  # none in evaluation
    ],
)
def test_options(kind: Any, options: dict[str, Any], device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(kind, **options).to(device, torch.float64).eval(), x, edges)


def test_pieces_and_sorted_keys(
    kind: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sort_keys_in_pieces(monkeypatch)
    x, edges = graph(device)
    compare(layer(kind).to(device, torch.float64), x, edges)


@pytest.mark.parametrize("aggr", ["sum", "max"])
def test_types_that_the_loss_does_not_use(kind: Any, aggr: str, device: torch.device) -> None:
    x, edges = graph(device)
    check_unused_types(layer(kind, aggr).to(device, torch.float64), x, edges)


def test_types_without_any_edges(kind: Any, device: torch.device) -> None:
    """PyG runs its layers on relations without edges: their parameters have gradients, zeros."""
    x, edges = graph(device)
    model = layer(kind).to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    for empty in ([t for t in edges if t[2] == "topic"], list(edges)):
        for edge_type in empty:
            edges[edge_type] = edges[edge_type][:, :0]
        names = []
        for each in (model, fast):
            gradients = results(each, x, edges)
            names.append({name for name, grad in gradients.items() if grad is not None})
        # Features of nodes without edges: PyG's are zeros where it reads them.
        parameters = set(dict(model.named_parameters()))
        assert names[0] & parameters == names[1] & parameters
        compare(model, x, edges)


def test_mean_of_heads(kind: Any, device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(kind, concat=False).to(device, torch.float64), x, edges)


def test_float32(kind: Any, device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    compare(layer(kind).to(device), x, edges, 1e-4)


def test_shared_map(kind: Any, device: torch.device) -> None:
    """Layers made with one width multiply both ends by one matrix."""
    x, edges = graph(device)
    own = {t: e for t, e in edges.items() if t[0] == t[2]}
    convs = {t: kind(WIDTHS[t[0]], 8, heads=2, add_self_loops=False) for t in own}
    compare(HeteroConv(convs, aggr="sum").to(device, torch.float64), x, edges)


def test_types_that_a_batch_lacks(kind: Any, device: torch.device) -> None:
    x, edges = graph(device)
    model = layer(kind).to(device, torch.float64)
    check_missing_types(model, x, edges)


def test_int32_edges_and_edges_that_change(kind: Any, device: torch.device) -> None:
    check_int32_and_changed_edges(layer(kind).to(device, torch.float64), *graph(device))


def test_half_precision(kind: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    x, edges = graph(device, torch.float32)
    check_half_precision(layer(kind).to(device), x, edges)


@pytest.mark.parametrize("options", [{}, {"concat": False}, {"bias": False}])
def test_residual(kind: Any, options: dict[str, Any], device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(kind, residual=True, **options).to(device, torch.float64), x, edges)
    compare(layer(kind, "mean", mixed=True, residual=True).to(device, torch.float64), x, edges)


def test_residual_in_half_precision(kind: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    x, edges = graph(device, torch.float32)
    check_half_precision(layer(kind, residual=True).to(device), x, edges)


def test_dropout_of_no_edge_and_of_all(kind: Any, device: torch.device) -> None:
    """Dropout with a probability so small that it drops no weight, and with probability 1."""
    x, edges = graph(device)
    compare(layer(kind, dropout=1e-15).to(device, torch.float64), x, edges)
    compare(layer(kind, dropout=1.0).to(device, torch.float64), x, edges)


def test_dropout(kind: Any, device: torch.device) -> None:
    """The mean of many draws is the result without dropout; gradients are of the same draw."""
    x, edges = graph(device)
    model = accelerate(layer(kind, dropout=0.3)).to(device, torch.float64)
    name = f"<author___writes___paper>.lin_{'src' if kind is GATConv else 'l'}.weight"
    assert "relations in one pass" in str(explain(model, x, edges))
    check_mean_of_dropout(model, x, edges, "paper")
    # Each head of an edge is dropped by itself, whatever the other edges.
    share = (model(x, edges)["author"][0] == model.eval()(x, edges)["author"][0]).double().mean()
    assert share < 1
    model.train()

    def run(rows: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(3)
        inputs = {**x, "author": rows}
        parameters = {f"convs.{name}": weight}
        out: Tensor = torch.func.functional_call(model, parameters, (inputs, edges))["paper"]
        return out

    weight = model.get_parameter(f"convs.{name}").detach().clone()
    rows = x["author"].clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (rows, weight.requires_grad_()), fast_mode=True)


def test_layers_of_other_widths(kind: Any) -> None:
    """Layers that have no others of their kind run as before."""
    x, edges = graph(torch.device("cpu"))
    convs = {}
    for i, t in enumerate(EDGES):
        ends = WIDTHS[t[0]], WIDTHS[t[2]]
        convs[t] = kind(ends, 8, heads=1 + i, concat=False, add_self_loops=False)
    model = HeteroConv(convs, aggr="sum").double()
    fast = accelerate(copy.deepcopy(model))
    assert "relations in one pass" not in str(explain(fast, x, edges))
    same_outputs(fast, model, x, edges)


def test_features_of_edges_and_hooks(kind: Any) -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer(kind, edge_dim=3).double()
    fast = accelerate(copy.deepcopy(model))
    attributes = {t: torch.randn(e.shape[1], 3, dtype=torch.float64) for t, e in edges.items()}
    expected = model(x, edges, edge_attr_dict=attributes)
    actual = fast(x, edges, edge_attr_dict=attributes)
    for node_type, rows in expected.items():
        torch.testing.assert_close(actual[node_type], rows)
    assert "there is edge_attr_dict" in str(explain(fast, x, edges, edge_attr_dict=attributes))
    calls = []
    plain = accelerate(layer(kind).double())
    plain.convs["paper", "cites", "paper"].register_forward_hook(lambda *_: calls.append(1))
    plain(x, edges)
    assert calls == [1]
    assert "paper cites paper alone, there are hooks" in str(explain(plain, x, edges))


def test_revert_and_state(kind: Any) -> None:
    check_state_and_revert(layer(kind).double(), *graph(torch.device("cpu")))


def test_compiled(kind: Any) -> None:
    check_compiled(layer(kind).double(), *graph(torch.device("cpu")))


def test_ids_out_of_range(kind: Any, device: torch.device) -> None:
    check_ids_out_of_range(accelerate(layer(kind).to(device, torch.float64)), *graph(device))


@pytest.mark.parametrize("storage", STORAGES)
def test_batches(
    kind: Any, storage: str | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)

    def layer(width: int) -> HeteroConv:
        ends = (width, width)
        convs = {t: kind(ends, 8, heads=4, add_self_loops=False) for t in EDGE_TYPES}
        return HeteroConv(convs, aggr="sum")

    torch.manual_seed(0)
    check_batches(TrimmedModel(layer).to(device), storage, device)


def test_gat_beside_gatv2() -> None:
    """The GAT layers run as one operation, and the GATv2 layers as another."""
    x, edges = graph(torch.device("cpu"))
    convs = {}
    for i, t in enumerate(EDGES):
        ends = WIDTHS[t[0]], WIDTHS[t[2]]
        convs[t] = KINDS[i % 2](ends, 8, heads=2, add_self_loops=False)
    model = HeteroConv(convs, aggr="mean").double()
    compare(model, x, edges)
    assert str(explain(accelerate(model), x, edges)).count("relations in one pass") == 2


def test_shared_weights() -> None:
    """GATv2 with `share_weights`: one linear layer for sources and destinations."""
    x, edges = graph(torch.device("cpu"))
    own = {t: e for t, e in edges.items() if t[0] == t[2]}
    convs = {t: GATv2Conv(WIDTHS[t[0]], 8, heads=2, share_weights=True) for t in own}
    compare(HeteroConv(convs, aggr="sum").double(), x, edges)


def test_gatv2_on_a_gpu(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer(GATv2Conv).to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    is_joined = "relations in one pass" in str(explain(fast, x, edges))
    assert is_joined == (device.type == "cpu")
    same_outputs(fast, model, x, edges)

"""HeteroConv of GAT layers as one operation: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, GATv2Conv, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import peergraph_pyg
from peergraph.memory import EncodedRows
from peergraph.memory.device.default_machine import WORK
from peergraph_pyg import accelerate, explain, revert

from .typed_graph import EDGES, NODES, WIDTHS, check_half_precision, compare, graph, results


def layer(aggr: str | None = "sum", mixed: bool = False, **options: Any) -> HeteroConv:
    """One GAT layer for each edge type; with `mixed`, a SAGE layer in the place of the second."""
    convs = {}
    loops = options.pop("add_self_loops", False)
    for i, edge_type in enumerate(EDGES):
        ends = WIDTHS[edge_type[0]], WIDTHS[edge_type[2]]
        if mixed and i == 1:
            convs[edge_type] = SAGEConv(ends, 32)
        else:
            own = loops and edge_type[0] == edge_type[2]
            convs[edge_type] = GATConv(ends, 8, heads=4, add_self_loops=own, **options)
    return HeteroConv(convs, aggr=aggr)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "cat", None])
@pytest.mark.parametrize("mixed", [False, True])
def test_outputs_and_gradients(aggr: str | None, mixed: bool, device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(aggr, mixed).to(device, torch.float64), x, edges)


@pytest.mark.parametrize(
    "options",
    [
        {"add_self_loops": True},
        {"bias": False},
        {"negative_slope": 0.05},
        {"dropout": 0.5},  # none in evaluation
    ],
)
def test_options(options: dict[str, Any], device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(**options).to(device, torch.float64).eval(), x, edges)


def test_pieces_and_sorted_keys(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are multiplied in several pieces, and pairs that a sort finds."""
    monkeypatch.setattr("peergraph.aggregate.ops.typed_rows._PIECE_BYTES", 700)
    no_keys = replace(WORK, few_keys=1e-9, keys_per_edge=1e-9)
    monkeypatch.setattr("peergraph.aggregate.sparse.index_tensors.WORK", no_keys)
    x, edges = graph(device)
    compare(layer().to(device, torch.float64), x, edges)


def test_types_that_the_loss_does_not_use(device: torch.device) -> None:
    """Parameters have no gradient where PyG's have none: optimizers with decay leave them alone."""
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    fast = accelerate(copy.deepcopy(model))
    for used in (["paper"], ["author", "topic"], ["topic"]):
        names = []
        for each in (model, fast):
            inputs = {t: rows.clone().requires_grad_() for t, rows in x.items()}
            each.zero_grad()
            out = each(inputs, edges)
            sum(out[t].square().sum() for t in used).backward()  # type: ignore[union-attr]
            gradients = {t: rows.grad for t, rows in inputs.items()}
            gradients |= {name: p.grad for name, p in each.named_parameters()}
            names.append({name for name, grad in gradients.items() if grad is not None})
        # PyG's own layers run on relations without edges, and give their parameters zeros.
        assert names[0] == names[1]


def test_types_without_any_edges(device: torch.device) -> None:
    """PyG runs its layers on relations without edges: their parameters have gradients, zeros."""
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
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


def test_mean_of_heads(device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(concat=False).to(device, torch.float64), x, edges)


def test_float32(device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    compare(layer().to(device), x, edges, 1e-4)


def test_shared_map(device: torch.device) -> None:
    """Layers made with one width multiply both ends by one matrix."""
    x, edges = graph(device)
    own = {t: e for t, e in edges.items() if t[0] == t[2]}
    convs = {t: GATConv(WIDTHS[t[0]], 8, heads=2, add_self_loops=False) for t in own}
    compare(HeteroConv(convs, aggr="sum").to(device, torch.float64), x, edges)


def test_types_that_a_batch_lacks(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    del edges["topic", "of", "paper"], edges["topic", "near", "topic"]
    compare(model, x, edges)
    del x["topic"], edges["paper", "has", "topic"]
    compare(model, x, edges)


def test_int32_edges_and_edges_that_change(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    expected = model(x, edges)  # PyG takes int64 only.
    for node_type, rows in accelerate(copy.deepcopy(model))(
        x, {t: e.int() for t, e in edges.items()}
    ).items():
        torch.testing.assert_close(rows, expected[node_type])
    compare(model, x, edges)
    edges["author", "writes", "paper"][0, :50] = 3
    compare(model, x, edges)


def test_half_precision(device: torch.device) -> None:
    torch.manual_seed(0)
    x, edges = graph(device, torch.float32)
    check_half_precision(layer().to(device), x, edges)


@pytest.mark.parametrize("options", [{}, {"concat": False}, {"bias": False}])
def test_residual(options: dict[str, Any], device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(residual=True, **options).to(device, torch.float64), x, edges)
    compare(layer("mean", mixed=True, residual=True).to(device, torch.float64), x, edges)


def test_residual_in_half_precision(device: torch.device) -> None:
    torch.manual_seed(0)
    x, edges = graph(device, torch.float32)
    check_half_precision(layer(residual=True).to(device), x, edges)


def test_dropout_of_no_edge_and_of_all(device: torch.device) -> None:
    """Dropout with a probability so small that it drops no weight, and with probability 1."""
    x, edges = graph(device)
    compare(layer(dropout=1e-15).to(device, torch.float64), x, edges)
    compare(layer(dropout=1.0).to(device, torch.float64), x, edges)


def test_dropout(device: torch.device) -> None:
    """The mean of many draws is the result without dropout; gradients are of the same draw."""
    x, edges = graph(device)
    model = accelerate(layer(dropout=0.3)).to(device, torch.float64)
    assert "relations in one pass" in str(explain(model, x, edges))
    expected = model.eval()(x, edges)["paper"]
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([model(x, edges)["paper"] for _ in range(2000)])
    error = draws.std(0) / len(draws) ** 0.5
    assert error.max() > 0
    assert ((draws.mean(0) - expected).abs() <= 6 * error + 1e-12).all()
    # Each head of an edge is dropped by itself, whatever the other edges.
    share = (model(x, edges)["author"][0] == model.eval()(x, edges)["author"][0]).double().mean()
    assert share < 1
    model.train()

    def run(rows: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(3)
        inputs = {**x, "author": rows}
        parameters = {"convs.<author___writes___paper>.lin_src.weight": weight}
        out: Tensor = torch.func.functional_call(model, parameters, (inputs, edges))["paper"]
        return out

    weight = model.convs["author", "writes", "paper"].lin_src.weight.detach().clone()
    rows = x["author"].clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (rows, weight.requires_grad_()), fast_mode=True)


def test_layers_of_other_widths() -> None:
    """Layers that have no others of their kind run as before."""
    x, edges = graph(torch.device("cpu"))
    convs = {}
    for i, t in enumerate(EDGES):
        ends = WIDTHS[t[0]], WIDTHS[t[2]]
        convs[t] = GATConv(ends, 8, heads=1 + i, concat=False, add_self_loops=False)
    model = HeteroConv(convs, aggr="sum").double()
    fast = accelerate(copy.deepcopy(model))
    assert "relations in one pass" not in str(explain(fast, x, edges))
    results = fast(x, edges)
    for node_type, rows in model(x, edges).items():
        torch.testing.assert_close(results[node_type], rows)


def test_features_of_edges_and_hooks() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer(edge_dim=3).double()
    fast = accelerate(copy.deepcopy(model))
    attributes = {t: torch.randn(e.shape[1], 3, dtype=torch.float64) for t, e in edges.items()}
    expected = model(x, edges, edge_attr_dict=attributes)
    found = fast(x, edges, edge_attr_dict=attributes)
    for node_type, rows in expected.items():
        torch.testing.assert_close(found[node_type], rows)
    assert "there is edge_attr_dict" in str(explain(fast, x, edges, edge_attr_dict=attributes))
    seen = []
    plain = accelerate(layer().double())
    plain.convs["paper", "cites", "paper"].register_forward_hook(lambda *_: seen.append(1))
    plain(x, edges)
    assert seen == [1]
    assert "paper cites paper alone, there are hooks" in str(explain(plain, x, edges))


def test_revert_and_state() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    names = list(model.state_dict())
    fast = accelerate(copy.deepcopy(model))
    assert list(fast.state_dict()) == names
    model.load_state_dict(fast.state_dict())
    assert type(revert(fast)) is HeteroConv
    for node_type, rows in model(x, edges).items():
        assert torch.equal(fast(x, edges)[node_type], rows)


def test_compiled() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    fast = torch.compile(accelerate(copy.deepcopy(model)), backend="eager")
    for node_type, rows in model(x, edges).items():
        torch.testing.assert_close(fast(x, edges)[node_type], rows)


def test_ids_out_of_range(device: torch.device) -> None:
    x, edges = graph(device)
    edges["author", "writes", "paper"][0, 7] = NODES["author"]
    with pytest.raises(IndexError, match=r"relations\[2\].edge_index\[0\]\[7\] = 30"):
        accelerate(layer().to(device, torch.float64))(x, edges)


class TrimmedModel(torch.nn.Module):
    """Two layers on a mini-batch, trimmed between them as in PyG's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for width in (16, 32):
            self.convs.append(
                HeteroConv(
                    {
                        t: GATConv((width, width), 8, heads=4, add_self_loops=False)
                        for t in EDGES
                        if EDGES[t]
                    },
                    aggr="sum",
                )
            )

    def forward(self, batch: Any) -> Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for i, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(i, *hops, x, edges)
            x = {t: F.leaky_relu(rows) for t, rows in conv(x, edges).items()}
        return x["paper"][: batch["paper"].batch_size]


@pytest.mark.parametrize("storage", [None, "int8", "lazy int8"])
def test_batches(
    storage: str | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of narrow storage are read as they are stored; rows without edges are not written."""
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    data, draws = HeteroData(), torch.Generator().manual_seed(0)
    for node_type, count in NODES.items():
        data[node_type].x = torch.randn(4 * count, 16, generator=draws)
    for edge_type, edge_index in graph(torch.device("cpu"))[1].items():
        if EDGES[edge_type]:
            data[edge_type].edge_index = edge_index
    options: dict[str, Any] = {} if storage is None else {"storage": {"x": "int8"}}
    shared = peergraph_pyg.share(data, device=device, **options)
    is_lazy, stored = storage == "lazy int8", shared
    if is_lazy:
        shared = peergraph_pyg.lazy(shared)
    loader = NeighborLoader(shared, [4, 3], input_nodes=("paper", torch.arange(20)), batch_size=10)
    torch.manual_seed(0)
    model = TrimmedModel().to(device)
    fast = accelerate(copy.deepcopy(model))
    for batch in loader:
        plain = copy.copy(batch)  # A deep one would gather the rows.
        for node_type in batch.node_types:
            plain[node_type].x = stored[node_type].x[batch[node_type].n_id]
        expected = model(plain)
        with pytest.MonkeyPatch.context() as patch:
            if is_lazy:
                patch.setattr(EncodedRows, "decode", None)
            found = fast(batch)
        assert not is_lazy or not batch["paper"].x.is_gathered
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        for each in (model, fast):
            each.zero_grad()
        expected.square().sum().backward()
        found.square().sum().backward()
        for one, other in zip(fast.parameters(), model.parameters(), strict=True):
            if other.grad is not None and other.grad.any():
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    peergraph_pyg.store_of(stored).close()


def test_gatv2_runs_relation_by_relation() -> None:
    x, edges = graph(torch.device("cpu"))
    convs = {
        t: GATv2Conv((WIDTHS[t[0]], WIDTHS[t[2]]), 8, heads=2, add_self_loops=False) for t in EDGES
    }
    model = HeteroConv(convs, aggr="sum").double()
    fast = accelerate(copy.deepcopy(model))
    assert "paper cites paper alone, GATv2Conv" in str(explain(fast, x, edges))
    results = fast(x, edges)
    for node_type, rows in model(x, edges).items():
        torch.testing.assert_close(results[node_type], rows)

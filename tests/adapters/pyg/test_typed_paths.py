"""HANConv as one sum over the relations into a type: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HANConv

import peergraph_pyg
from peergraph_pyg import accelerate, explain, revert

from .typed_graph import (
    EDGES,
    NODES,
    WIDTHS,
    check_half_precision,
    check_mean_of_dropout,
    check_missing_types,
    check_unused_types,
    compare,
    graph,
)

METADATA = (list(NODES), list(EDGES))


def layer(columns: int = 32, heads: int = 4, **options: Any) -> HANConv:
    """A layer with biases that tell rows of zeros from others."""
    torch.manual_seed(0)
    model = HANConv(WIDTHS, columns, METADATA, heads, **options)
    with torch.no_grad():
        for bias in (model.k_lin.bias, *(linear.bias for linear in model.proj.values())):
            bias.add_(0.5 * torch.randn_like(bias))
    return model


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_outputs_and_gradients(heads: int, device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(12, heads, negative_slope=0.1).to(device, torch.float64), x, edges)


def test_float32(device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    compare(layer().to(device), x, edges, 1e-4)


def test_half_precision(device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    check_half_precision(layer().to(device), x, edges)


def test_weights_of_relations(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    expected = model(x, edges, return_semantic_attention_weights=True)
    results = accelerate(copy.deepcopy(model))(x, edges, return_semantic_attention_weights=True)
    for one, other in zip(results, expected, strict=True):
        assert list(one) == list(other)
        for node_type, rows in other.items():
            if rows is None:
                assert one[node_type] is None
            else:
                torch.testing.assert_close(one[node_type], rows, rtol=1e-10, atol=1e-10)


def test_types_that_the_loss_does_not_use(device: torch.device) -> None:
    x, edges = graph(device)
    check_unused_types(layer().to(device, torch.float64), x, edges)


def test_types_and_edges_that_a_batch_lacks(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    compare(model, x, edges | {t: e[:, :0] for t, e in edges.items() if t[2] == "paper"})
    compare(model, x, {t: e[:, :0] for t, e in edges.items()})
    check_missing_types(model, x, edges)


def test_dropout(device: torch.device) -> None:
    """The mean of many draws of a linear part is the result without; gradients are of one draw."""
    x, edges = graph(device)
    model = accelerate(layer(dropout=0.3)).to(device, torch.float64)
    assert "in one pass" in str(explain(model, x, edges))
    # Positive features, so that relu changes nothing; the type has one relation.
    with torch.no_grad():
        model.proj["paper"].weight.abs_()
        model.proj["paper"].bias.abs_()
    x["paper"] = x["paper"].abs()
    check_mean_of_dropout(model, x, edges, "author")

    def run(rows: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = model({**x, "paper": rows}, edges)["author"]
        return out

    assert torch.autograd.gradcheck(run, x["paper"].requires_grad_(), fast_mode=True)
    compare(layer(dropout=1.0).to(device, torch.float64), *graph(device))


def test_calls_that_pyg_runs() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    fast = accelerate(copy.deepcopy(model))
    calls = []
    fast.k_lin.register_forward_hook(lambda *_: calls.append(1))
    results = fast(x, edges)
    assert calls
    for node_type, rows in model(x, edges).items():
        assert rows is results[node_type] is None or torch.equal(rows, results[node_type])
    assert "parameters are of other kinds" in str(explain(fast, x, edges))


def test_revert_state_and_compiler() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    fast = accelerate(copy.deepcopy(model))
    assert list(fast.state_dict()) == list(model.state_dict())
    model.load_state_dict(fast.state_dict())
    compiled = torch.compile(fast, backend="eager")(x, edges)
    assert type(revert(fast)) is HANConv
    for node_type, rows in model(x, edges).items():
        if rows is not None:
            torch.testing.assert_close(compiled[node_type], rows)
            assert torch.equal(fast(x, edges)[node_type], rows)


def test_batches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    data, draws = HeteroData(), torch.Generator().manual_seed(0)
    for node_type, count in NODES.items():
        data[node_type].x = torch.randn(4 * count, WIDTHS[node_type], generator=draws)
    for edge_type, edge_index in graph(torch.device("cpu"))[1].items():
        data[edge_type].edge_index = edge_index
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(shared, [4, 3], input_nodes=("paper", torch.arange(20)), batch_size=10)
    model = layer().to(device)
    fast = accelerate(copy.deepcopy(model))
    for batch in loader:
        x = {t: rows for t, rows in batch.x_dict.items() if len(rows)}
        edges = {t: e for t, e in batch.edge_index_dict.items() if t[0] in x and t[2] in x}
        expected, out = (
            each(x, edges)["paper"][: batch["paper"].batch_size] for each in (model, fast)
        )
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    peergraph_pyg.store_of(shared).close()

"""HGTConv as one operation over all relations: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch_geometric.nn import HGTConv

from peergraph_pyg import accelerate, explain
from peergraph_pyg.data.tailed_rows import TailedRows

from .typed_batches import EDGE_TYPES, STORAGES, TrimmedModel, check_batches
from .typed_graph import (
    EDGES,
    NODES,
    WIDTHS,
    check_compiled,
    check_half_precision,
    check_missing_types,
    check_state_and_revert,
    check_unused_types,
    compare,
    graph,
    same_outputs,
    sort_keys_in_pieces,
)

METADATA = (list(NODES), list(EDGES))


def layer(columns: int = 32, widths: Any = WIDTHS, heads: int = 4) -> HGTConv:
    """A layer whose priors and skips differ from those that a layer starts with."""
    torch.manual_seed(0)
    model = HGTConv(widths, columns, METADATA, heads)
    with torch.no_grad():
        for parameter in (*model.p_rel.values(), *model.skip.values()):
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("columns", [32, 8])
def test_outputs_and_gradients(columns: int, device: torch.device) -> None:
    """With 8 columns, those of an author, the layer mixes its result with the author's row."""
    x, edges = graph(device)
    compare(layer(columns).to(device, torch.float64), x, edges)


def test_rows_of_nodes_without_edges(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are mixed with the node's own row where something reads them."""
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    x, edges = graph(device)
    x["paper"] = x["paper"].repeat(4, 1)
    model = layer(WIDTHS["paper"]).to(device, torch.float64)
    compare(model, x, edges)
    rows = accelerate(copy.deepcopy(model))(x, edges)["paper"]
    assert isinstance(rows, TailedRows)
    assert type(rows[:40]) is torch.Tensor
    torch.testing.assert_close(rows[:120], model(x, edges)["paper"][:120])


@pytest.mark.parametrize("heads", [1, 3])
def test_heads(heads: int, device: torch.device) -> None:
    x, edges = graph(device)
    compare(layer(15, heads=heads).to(device, torch.float64), x, edges)


def test_float32(device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    compare(layer().to(device), x, edges, 1e-4)


@pytest.mark.parametrize("columns", [32, 8])
def test_half_precision(columns: int, device: torch.device) -> None:
    x, edges = graph(device, torch.float32)
    check_half_precision(layer(columns).to(device), x, edges)


def test_pieces_and_sorted_keys(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    sort_keys_in_pieces(monkeypatch)
    x, edges = graph(device)
    compare(layer().to(device, torch.float64), x, edges)


def test_types_that_the_loss_does_not_use(device: torch.device) -> None:
    x, edges = graph(device)
    check_unused_types(layer(8).to(device, torch.float64), x, edges)


def test_types_and_edges_that_a_batch_lacks(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    empty = edges | {t: e[:, :0] for t, e in edges.items() if t[2] == "paper"}
    compare(model, x, empty)
    compare(model, x, {t: e[:, :0] for t, e in edges.items()})
    check_missing_types(model, x, edges)
    x["alone"] = x["alone"][:0]
    compare(model, x, edges)


def test_some_parameters_are_frozen(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    for parameter in (*model.kqv_lin.parameters(), model.k_rel.weight):
        parameter.requires_grad_(False)
    compare(model, x, edges)


def test_edges_that_change(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    compare(model, x, edges)
    fast = accelerate(copy.deepcopy(model))
    fast(x, edges)
    edges["author", "writes", "paper"][0, :50] = 3
    same_outputs(fast, model, x, edges)
    edges["author", "writes", "paper"][0, 7] = NODES["author"]
    with pytest.raises(IndexError, match=r"relations\[2\].edge_index\[0\]\[7\] = 30"):
        fast(x, edges)


def test_calls_that_pyg_runs() -> None:
    """Another order of relations, hooks, and maps of the user."""
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    backwards = dict(reversed(edges.items()))
    fast = accelerate(copy.deepcopy(model))
    assert "in the order of the metadata" in str(explain(fast, x, backwards))
    same_outputs(fast, model, x, backwards, exactly=True)
    calls = []
    fast.out_lin.register_forward_hook(lambda *_: calls.append(1))
    fast(x, edges)
    assert calls == [1]
    assert "hooks" in str(explain(fast, x, edges))
    lazy = HGTConv(-1, 32, METADATA, 4)
    fast = accelerate(copy.deepcopy(lazy))
    x = {node_type: rows.float() for node_type, rows in x.items()}
    fast(x, edges)
    lazy(x, edges)
    fast.load_state_dict(lazy.state_dict())
    assert "relations in one pass" in str(explain(fast, x, edges))
    for node_type, rows in lazy(x, edges).items():
        torch.testing.assert_close(fast(x, edges)[node_type], rows)


def test_revert_and_state() -> None:
    check_state_and_revert(layer().double(), *graph(torch.device("cpu")))


def test_compiled() -> None:
    check_compiled(layer().double(), *graph(torch.device("cpu")))


@pytest.mark.parametrize("storage", STORAGES)
def test_batches(
    storage: str | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peergraph_pyg.data.tailed_rows._FEWEST_BYTES", 0)
    torch.manual_seed(0)
    model = TrimmedModel(lambda width: HGTConv(width, 32, (list(NODES), EDGE_TYPES), 4))
    check_batches(model.to(device), storage, device)

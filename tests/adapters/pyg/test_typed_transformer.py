"""HGTConv as one operation over all relations: the results and gradients of plain PyG."""

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
from torch_geometric.nn import HGTConv
from torch_geometric.utils import trim_to_layer

import peergraph_pyg
from peergraph.memory import EncodedRows
from peergraph.memory.device.default_machine import WORK
from peergraph_pyg import accelerate, explain, revert

from .typed_graph import EDGES, NODES, WIDTHS, check_half_precision, compare, graph

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
    """Rows that are multiplied in several pieces, and pairs that a sort finds."""
    monkeypatch.setattr("peergraph.aggregate.ops.typed_rows._PIECE_BYTES", 700)
    no_keys = replace(WORK, few_keys=1e-9, keys_per_edge=1e-9)
    monkeypatch.setattr("peergraph.aggregate.sparse.index_tensors.WORK", no_keys)
    x, edges = graph(device)
    compare(layer().to(device, torch.float64), x, edges)


def test_types_that_the_loss_does_not_use(device: torch.device) -> None:
    """The same parameters have gradients as in PyG, zeros included: optimizers differ else."""
    x, edges = graph(device)
    model = layer(8).to(device, torch.float64)
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
        assert names[0] == names[1]


def test_types_and_edges_that_a_batch_lacks(device: torch.device) -> None:
    x, edges = graph(device)
    model = layer().to(device, torch.float64)
    empty = edges | {t: e[:, :0] for t, e in edges.items() if t[2] == "paper"}
    compare(model, x, empty)
    compare(model, x, {t: e[:, :0] for t, e in edges.items()})
    del edges["topic", "of", "paper"], edges["topic", "near", "topic"]
    compare(model, x, edges)
    del x["topic"], edges["paper", "has", "topic"]
    compare(model, x, edges)
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
    for node_type, rows in model(x, edges).items():
        torch.testing.assert_close(fast(x, edges)[node_type], rows)
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
    for node_type, rows in model(x, backwards).items():
        assert torch.equal(fast(x, backwards)[node_type], rows)
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
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    names = list(model.state_dict())
    fast = accelerate(copy.deepcopy(model))
    assert list(fast.state_dict()) == names
    model.load_state_dict(fast.state_dict())
    assert type(revert(fast)) is HGTConv
    for node_type, rows in model(x, edges).items():
        assert torch.equal(fast(x, edges)[node_type], rows)


def test_compiled() -> None:
    x, edges = graph(torch.device("cpu"))
    model = layer().double()
    fast = torch.compile(accelerate(copy.deepcopy(model)), backend="eager")
    for node_type, rows in model(x, edges).items():
        torch.testing.assert_close(fast(x, edges)[node_type], rows)


class TrimmedModel(torch.nn.Module):
    """Two layers on a mini-batch, trimmed between them as in PyG's examples."""

    def __init__(self) -> None:
        super().__init__()
        edge_types = [edge_type for edge_type, count in EDGES.items() if count]
        self.convs = torch.nn.ModuleList(
            HGTConv(width, 32, (list(NODES), edge_types), 4) for width in (16, 32)
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
            out = fast(batch)
        assert not is_lazy or not batch["paper"].x.is_gathered
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        for each in (model, fast):
            each.zero_grad()
        expected.square().sum().backward()
        out.square().sum().backward()
        for one, other in zip(fast.parameters(), model.parameters(), strict=True):
            if other.grad is not None and other.grad.any():
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    peergraph_pyg.store_of(stored).close()

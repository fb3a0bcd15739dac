"""RGCNConv and FastRGCNConv as one operation: the results and gradients of plain PyG."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import FastRGCNConv, RGCNConv

import peergraph_pyg
from peergraph.aggregate.sparse import relation_blocks
from peergraph_pyg import accelerate, explain, revert
from peergraph_pyg.data import tailed_rows
from tests.named_case import named_cases

from .layer_cases import gradients
from .test_real_data import read

NODES, RELATIONS, WIDTH = 40, 5, 6
LAYERS = [RGCNConv, FastRGCNConv]
OPTIONS = {
    "plain": {},
    "sums": {"aggr": "sum"},
    "bases": {"num_bases": 3},
    "no root": {"root_weight": False},
    "no root and bias": {"root_weight": False, "bias": False},
}


def typed_edges(device: torch.device, count: int = 150) -> tuple[Tensor, Tensor]:
    """Edges, of which the last nodes and relation have none."""
    draws = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES - 6, (2, count), generator=draws)
    edge_type = torch.randint(RELATIONS - 1, (count,), generator=draws)
    return edge_index.to(device), edge_type.to(device)


def features(device: torch.device, rows: int = NODES, width: int = WIDTH) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(rows, width, generator=draws, dtype=torch.float64).to(device)


def compare(layer: Any, *args: Any, tolerance: float = 1e-10) -> None:
    """Compares a layer with its accelerated copy, which must run as one operation."""
    fast = accelerate(copy.deepcopy(layer))
    expected, actual = gradients(layer, *args), gradients(fast, *args)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert "relations in one pass" in explain(fast, *args)


@named_cases("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("only_pairs", [False, True])
def test_features(
    kind: Any, options: str, only_pairs: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of all pairs of a destination and a relation, or of those that have edges."""
    if only_pairs:
        monkeypatch.setattr(relation_blocks, "_FEW_ROWS", {"cpu": 0, "cuda": 0})
        monkeypatch.setattr(relation_blocks, "_MOST_ROWS", 0)
    layer = kind(WIDTH, 7, RELATIONS, **OPTIONS[options]).to(device, torch.float64)
    edge_index, edge_type = typed_edges(device)
    x = features(device)
    compare(layer, x, edge_index, edge_type)
    compare(layer, (x, features(device, 38)), edge_index, edge_type)


@named_cases("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_nodes_without_features(kind: Any, options: str, device: torch.device) -> None:
    layer = kind(NODES, 7, RELATIONS, **OPTIONS[options]).to(device, torch.float64)
    edge_index, edge_type = typed_edges(device)
    compare(layer, None, edge_index, edge_type)
    ids = torch.arange(NODES, device=device).flip(0)
    compare(layer, ids, edge_index, edge_type)
    compare(layer, (ids, ids[:36]), edge_index, edge_type)
    ids[:9] = 3  # is noticed
    compare(layer, ids, edge_index, edge_type)


@pytest.mark.parametrize("kind", LAYERS)
def test_other_widths_at_both_ends(kind: Any, device: torch.device) -> None:
    layer = kind((WIDTH, 4), 7, RELATIONS).to(device, torch.float64)
    args = (features(device), features(device, 38, 4)), *typed_edges(device)
    compare(layer, *args)


@pytest.mark.parametrize("kind", LAYERS)
def test_changed_types_and_edges(kind: Any, device: torch.device) -> None:
    layer = kind(WIDTH, 7, RELATIONS).to(device, torch.float64)
    x, (edge_index, edge_type) = features(device), typed_edges(device)
    for _ in range(2):
        compare(layer, x, edge_index, edge_type)
        edge_type[:50] = 0
        edge_index[0, :20] = 2
    compare(layer, x, edge_index[:, :0], edge_type[:0])


def test_types_of_no_relation(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyG's loop leaves their edges out."""
    layer = RGCNConv(WIDTH, 7, RELATIONS).to(device, torch.float64)
    x, (edge_index, edge_type) = features(device), typed_edges(device)
    edge_type[3:9] = RELATIONS + 1
    fast = accelerate(copy.deepcopy(layer))
    monkeypatch.setattr(torch_geometric.backend, "use_segment_matmul", False)
    expected = layer(x, edge_index, edge_type)
    torch.testing.assert_close(fast(x, edge_index, edge_type), expected)
    assert "in one pass" not in explain(fast, x, edge_index, edge_type)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", [False, True])
def test_half_precision(kind: Any, bias: bool, device: torch.device) -> None:
    layer = kind(WIDTH, 7, RELATIONS, bias=bias).to(device)
    fast = accelerate(copy.deepcopy(layer))
    args = features(device).float(), *typed_edges(device)
    exact, exact_gradients = gradients(layer, *args)
    errors = []
    for each in (layer, fast):
        with torch.autocast(device.type, torch.bfloat16):
            out, grads = gradients(each, *args)
            dtype = layer(*args).dtype
        assert out.dtype == dtype
        pairs = zip((out, *grads), (exact, *exact_gradients), strict=True)
        norms = [((one - other).norm() / other.norm()).detach() for one, other in pairs]
        errors.append(float(torch.stack(norms).sum()))
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("kind", LAYERS)
def test_second_derivatives(kind: Any, device: torch.device) -> None:
    layer = kind(WIDTH, 7, RELATIONS).to(device, torch.float64)
    values = []
    for each in (layer, accelerate(copy.deepcopy(layer))):
        x = features(device).requires_grad_()
        tensors = [x, *each.parameters()]
        loss = each(x, *typed_edges(device)).pow(3).sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        torch.stack([grad.square().sum() for grad in first]).sum().backward()
        values.append([tensor.grad for tensor in tensors])
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_pyg_runs(kind: Any) -> None:
    """Blocks of weights, maxima, compiled layers; `revert` and state."""
    device = torch.device("cpu")
    args = features(device), *typed_edges(device)
    for options in ({"num_blocks": 2}, *([{"aggr": "max"}] if kind is RGCNConv else [])):
        layer = kind(WIDTH, 8, RELATIONS, **options).double()
        fast = accelerate(copy.deepcopy(layer))
        torch.testing.assert_close(fast(*args), layer(*args))
        assert "in one pass" not in explain(fast, *args)
    layer = kind(WIDTH, 8, RELATIONS).double()
    fast = accelerate(copy.deepcopy(layer))
    compiled = torch.compile(fast, backend="eager")
    torch.testing.assert_close(compiled(*args), layer(*args))
    layer.load_state_dict(fast.state_dict())
    assert type(revert(fast)) is kind
    assert torch.equal(fast(*args), layer(*args))


@pytest.mark.parametrize("lazy", [False, True])
def test_batches(lazy: bool, device: torch.device) -> None:
    edge_index, edge_type = typed_edges(torch.device("cpu"), 400)
    data = Data(x=features(torch.device("cpu")).float(), edge_index=edge_index, edge_type=edge_type)
    stored = shared = peergraph_pyg.share(data, device=device, storage={"x": "int8"})
    shared = peergraph_pyg.lazy(shared) if lazy else shared
    layer = RGCNConv(WIDTH, 7, RELATIONS).to(device)
    fast = accelerate(copy.deepcopy(layer))
    loader = NeighborLoader(shared, [4, 3], input_nodes=torch.arange(20), batch_size=10)
    for batch in loader:
        x = stored.x[batch.n_id]
        expected = layer(x, batch.edge_index, batch.edge_type)
        actual = fast(batch.x, batch.edge_index, batch.edge_type)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert not lazy or not batch.x.is_gathered
        for each, out in ((layer, expected), (fast, actual)):
            each.zero_grad()
            out[: batch.batch_size].square().sum().backward()
        for one, other in zip(fast.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    peergraph_pyg.store_of(stored).close()


@pytest.mark.parametrize("bases", [None, 4])
def test_knowledge_graph(bases: int | None, device: torch.device) -> None:
    """237 relations; most pairs of an entity and a relation have no edge."""
    arrays = read("fb15k237")
    edge_index = torch.from_numpy(arrays["train"][:40_000, [0, 2]].T.copy()).long().to(device)
    edge_type = torch.from_numpy(arrays["train"][:40_000, 1].copy()).long().to(device)
    count = int(edge_index.max()) + 1
    layer = RGCNConv(WIDTH, 8, 237, num_bases=bases).to(device, torch.float64)
    compare(layer, features(device, count), edge_index, edge_type)
    compare(RGCNConv(count, 4, 237, num_bases=2).to(device).double(), None, edge_index, edge_type)


READS = {
    "all": lambda x: x * 2,
    "activation": lambda x: F.layer_norm(torch.relu(x), (7,)).sin(),
    "more than have edges": lambda x: x[:30].sigmoid(),
    "leading rows too": lambda x: x[:4].mean() * x.tanh(),
    "written": lambda x: F.elu(F.elu(x).mul_(3)),
    "evaluation": lambda x: F.dropout(x, 0.5, False).square(),
}


@named_cases("read", READS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("pair", [False, True])
def test_most_nodes_have_no_edges(
    kind: Any, read: str, pair: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are computed where they are read; first and second derivatives."""
    monkeypatch.setattr(tailed_rows, "_FEWEST_BYTES", 0)
    monkeypatch.setitem(relation_blocks._SHORT_TAIL, "cuda", 0)
    layer = kind(WIDTH, 7, RELATIONS).to(device, torch.float64)
    edge_index, edge_type = typed_edges(device)
    edge_index[1] %= 11
    results = []
    for each in (layer, accelerate(copy.deepcopy(layer))):
        x, other = (part.requires_grad_() for part in (features(device), features(device)[:36]))
        tensors = [x, *each.parameters(), *([other] if pair else [])]
        rows = each((x, other) if pair else x, edge_index, edge_type)
        assert (type(rows) is tailed_rows.TailedRows) is (each is not layer)
        out = READS[read](rows)
        first = torch.autograd.grad(out.sin().sum(), tensors, create_graph=True)
        plain = torch.autograd.grad(READS[read](rows).cos().sum(), tensors, retain_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), tensors)
        results.append((out, first, plain, second))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_of_most_nodes(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailed_rows, "_FEWEST_BYTES", 0)
    fast = accelerate(kind(WIDTH, 7, RELATIONS).double())
    edge_index, edge_type = typed_edges(torch.device("cpu"))
    edge_index[1] %= 11
    x = features(torch.device("cpu")).requires_grad_()
    rows = fast(x, edge_index, edge_type)
    out = F.dropout(rows, 0.3) * 1
    mask = (out / rows).detach()
    ones = (mask - 1 / 0.7).abs() < 1e-9
    assert bool((ones | (mask == 0)).all())
    tensors = [x, *fast.parameters()]
    expected = torch.autograd.grad((rows * mask).sin().sum(), tensors, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), tensors), expected)


def test_results_and_gradients_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result and the gradient of the features are all that has rows of all nodes."""
    monkeypatch.setattr(tailed_rows, "_FEWEST_BYTES", 0)
    nodes, width = 4000, 64
    fast = accelerate(RGCNConv(width, width, RELATIONS))
    edge_index, edge_type = typed_edges(torch.device("cpu"))
    edge_index[0] *= 50
    x = torch.randn(nodes, width, requires_grad=True)
    scale = torch.rand(nodes, width)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as steps:
        fast(x, edge_index, edge_type).flatten(1).backward(scale)
    large = [e.name for e in steps.events() if e.self_cpu_memory_usage > scale.nbytes / 2]
    assert len(large) == 2, large

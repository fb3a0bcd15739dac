"""Batches whose features stay in the store: the same results, and no matrix of them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE, SAGEConv

import peergraph_pyg
from peergraph.memory import TableRows
from peergraph.testing import run_ranks
from peergraph_pyg import LazyRows, accelerate, explain
from peergraph_pyg.prefetching.native_iterator import NativeIterator
from peergraph_pyg.prefetching.thread_state import record_stream
from tests.conftest import require_gpus
from tests.named_case import named_cases

from .graphs import random_data, random_hetero
from .layer_cases import NAMES, arguments, edge_inputs, gradients, pair

PLANS = ["replicated", "sharded", "host"]


def batches(
    device: torch.device, plan: str = "replicated", width: int = 6, **options: Any
) -> tuple[Any, Any]:
    """The same batch with and without features."""
    data = random_data()
    data.x = torch.randn(60, width, generator=torch.Generator().manual_seed(1))
    shared = peergraph_pyg.share(data, device=device, plan=plan, **options)
    results = []
    for each in (shared, peergraph_pyg.lazy(shared)):
        torch.manual_seed(0)
        seeds = torch.tensor([3, 1, 59, 3, 7])
        results.append(next(iter(NeighborLoader(each, [3, 2], input_nodes=seeds, batch_size=5))))
    return results[0], results[1]


def test_rows_on_the_cpu_are_of_no_stream() -> None:
    """Batches of a store on the CPU are made ahead on a stream where the process uses a GPU."""
    for batch in batches(torch.device("cpu")):
        record_stream(object(), batch)  # type: ignore[arg-type]


@pytest.fixture
def no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whoever gathers more rows than the batch has outside its last hop."""

    def refuse(rows: TableRows) -> Tensor:
        raise AssertionError(f"{rows.shape[0]} rows were gathered")

    monkeypatch.setattr(TableRows, "gather", refuse)


# The plan decides where a row is read, not which layer reads it.
@named_cases(
    ("name", "plan"),
    [(name, PLANS[i % len(PLANS)]) for i, name in enumerate(NAMES)]
    + [(NAMES[0], plan) for plan in PLANS[1:]],
)
def test_layers(name: str, plan: str, device: torch.device) -> None:
    plain, lazy = batches(device, plan)
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    inputs = edge_inputs(name, plain.edge_index.shape[1], device)
    expected = gradients(theirs, plain.x.clone(), plain.edge_index, *inputs)
    assert isinstance(lazy.x, LazyRows)
    actual = ours(lazy.x, lazy.edge_index, *inputs)
    torch.testing.assert_close(actual, expected[0], rtol=1e-5, atol=1e-5)
    parameters = [parameter for parameter in ours.parameters() if parameter.requires_grad]
    scale = torch.linspace(0.5, 1.5, actual.shape[-1], device=device)
    of_ours = torch.autograd.grad((actual * scale).sum(), parameters)
    for one, other in zip(of_ours, expected[1][-len(parameters) :], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
@pytest.mark.usefixtures("no_gathering")
def test_nothing_is_gathered(aggr: str, device: torch.device) -> None:
    _, lazy = batches(device)
    layer = peergraph_pyg.nn.SAGEConv(6, 4, aggr=aggr, root_weight=False).to(device)
    layer(lazy.x, lazy.edge_index)
    assert not lazy.x.is_gathered
    assert "read from the table" in explain(layer, lazy.x, lazy.edge_index)


@named_cases(("storage", "aggr"), [("bfloat16", "mean"), ("int8", "max"), ("float8_e4m3", "sum")])
def test_narrow_rows_are_not_gathered(
    storage: str, aggr: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, lazy = batches(device, width=24, storage={"x": storage})
    layer = peergraph_pyg.nn.SAGEConv(24, 4, aggr=aggr, root_weight=False).to(device)
    expected = layer(plain.x, plain.edge_index)
    with monkeypatch.context() as patch:
        patch.setattr(TableRows, "gather", lambda rows: pytest.fail("rows were gathered"))
        actual = layer(lazy.x, lazy.edge_index)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert actual.dtype == torch.float32
    assert not lazy.x.is_gathered


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
def test_features_are_read_in_place_under_autocast(aggr: str, device: torch.device) -> None:
    plain, lazy = batches(device)
    torch.manual_seed(1)
    theirs = SAGEConv(6, 4, aggr=aggr).to(device)
    ours = accelerate(copy.deepcopy(theirs))
    with torch.autocast(device.type, torch.bfloat16):
        args = (lazy.x, lazy.x[:7]), lazy.edge_index[:, :5]
        actual = ours(*args)
        expected = theirs((plain.x, plain.x[:7]), plain.edge_index[:, :5])
        assert "read from the table" in explain(ours, *args)
    torch.testing.assert_close(actual, expected, rtol=3e-2, atol=3e-2)
    assert not lazy.x.is_gathered


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_only_targets_are_gathered(
    aggr: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sums and means, targets are copied into the operand of one product instead."""
    plain, lazy = batches(device)
    torch.manual_seed(1)
    theirs = GraphSAGE(6, 8, num_layers=2, out_channels=4, aggr=aggr).to(device)
    ours = accelerate(copy.deepcopy(theirs))
    rows: list[int] = []
    gather = TableRows.gather
    monkeypatch.setattr(
        TableRows, "gather", lambda self: rows.append(self.shape[0]) or gather(self)
    )

    def run(model: Any, batch: Any) -> Tensor:
        out: Tensor = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        return out

    torch.testing.assert_close(run(ours, lazy), run(theirs, plain), rtol=1e-4, atol=1e-4)
    assert rows == ([] if aggr == "mean" else [sum(plain.num_sampled_nodes[:2])])
    assert not lazy.x.is_gathered


def test_any_other_use_gathers(device: torch.device) -> None:
    plain, lazy = batches(device)
    for use in (
        lambda x: x + 1,
        lambda x: x[2:5],
        lambda x: x[:, 1],
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.sum(),
        lambda x: F.relu(x),
        lambda x: torch.nn.BatchNorm1d(6).to(x.device)(x).detach(),
        lambda x: F.layer_norm(x, (6,)),
        lambda x: torch.cat([x, x]),
        lambda x: x.double(),
        lambda x: x.cpu().numpy().sum(),
        lambda x: x.clone(),
        lambda x: x.to("cpu"),
        lambda x: torch.tensor(x.tolist()),
    ):
        actual, expected = use(lazy.x), use(plain.x)
        if isinstance(actual, Tensor):
            assert torch.equal(actual + 0, expected)
        else:
            assert actual == expected
    assert lazy.x.is_gathered
    assert torch.equal(lazy.x[:3].clone(), plain.x[:3])
    for copied in (copy.deepcopy(lazy.x), pickle.loads(pickle.dumps(lazy.x))):
        assert type(copied) is Tensor
        assert torch.equal(copied, plain.x)


def test_first_rows_stay_lazy(device: torch.device) -> None:
    plain, lazy = batches(device)
    for x in (lazy.x[:4], lazy.x.narrow(0, 0, 4), lazy.x[:-1], lazy.x.detach()):
        assert isinstance(x, LazyRows)
        assert torch.equal(x.clone(), plain.x[: x.shape[0]])
    assert lazy.x[:100].shape == plain.x.shape
    assert lazy.x[:0].shape == (0, 6)


def test_changes_are_those_of_the_batch(device: torch.device) -> None:
    plain, lazy = batches(device)
    before = lazy.x.table_rows.gather()
    for batch in (plain, lazy):
        batch.x.mul_(2)
        batch.x[0] = 5
    layer = peergraph_pyg.nn.GINConv(torch.nn.Identity()).to(device)
    torch.testing.assert_close(
        layer(lazy.x, lazy.edge_index), layer(plain.x, plain.edge_index), rtol=1e-5, atol=1e-5
    )
    assert torch.equal(lazy.x.table_rows.gather(), before)


def test_hetero_and_stores(device: torch.device) -> None:
    shared = peergraph_pyg.lazy(peergraph_pyg.share(random_hetero(), device=device))
    seeds = ("paper", torch.arange(8))
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))
    assert {t for t in batch.node_types if isinstance(batch[t].get("x"), LazyRows)} == {
        "paper",
        "author",
    }
    store = peergraph_pyg.store_of(peergraph_pyg.share(random_data(), device=device))
    pair_of_stores = peergraph_pyg.lazy(peergraph_pyg.stores(store), "x", "half")
    loader = NeighborLoader(pair_of_stores, [3], input_nodes=torch.arange(6), batch_size=6)
    batch = next(iter(loader))
    assert isinstance(batch.x, LazyRows)
    assert isinstance(batch.half, LazyRows)
    assert type(batch.y) is Tensor


@named_cases("storage", ["int8", "float8_e4m3", "bfloat16", None])
def test_rows_as_they_are_stored(storage: str | None, device: torch.device) -> None:
    """The loader gathers narrow rows; layers get the values that it would have decoded."""
    data = random_data()
    data.x = torch.randn(60, 24, generator=torch.Generator().manual_seed(1))
    options = {} if storage is None else {"storage": {"x": storage}}
    shared = peergraph_pyg.share(data, device=device, **options)
    batches = []
    for each in (shared, peergraph_pyg.lazy(shared, as_stored=True)):
        torch.manual_seed(0)
        batches.append(next(iter(NeighborLoader(each, [3, 2], batch_size=5))))
    plain, stored = batches
    assert isinstance(stored.x, LazyRows)
    assert stored.x.is_in_memory == stored.x[:4].is_in_memory == (storage is not None)
    assert not stored.x.is_gathered
    for name in ("SAGEConv", "GATConv"):
        theirs = getattr(torch_geometric.nn, name)(24, 4).to(device)
        ours = accelerate(copy.deepcopy(theirs))
        actual = ours(stored.x, stored.edge_index)
        expected = theirs(plain.x, plain.edge_index)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(stored.x[:4] + 0, plain.x[:4])
    assert torch.equal(stored.x + 0, plain.x)
    pair_of_stores = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    loader = NeighborLoader(
        peergraph_pyg.lazy(pair_of_stores, as_stored=True),
        [3],
        input_nodes=torch.arange(6),
        batch_size=6,
    )
    assert next(iter(loader)).x.is_in_memory == (storage is not None)


@named_cases("storage", ["int8", "bfloat16", None])
def test_rows_as_they_are_stored_ahead(storage: str | None, device: torch.device) -> None:
    """A thread of C++ gathers them; layers of inference mode leave them to training."""
    options = {} if storage is None else {"storage": {"x": storage}}
    shared = peergraph_pyg.share(random_data(), device=device, **options)
    stored = peergraph_pyg.lazy(shared, as_stored=True)
    loaders = [NeighborLoader(data, [3, 2], batch_size=16) for data in (shared, stored)]
    torch.manual_seed(0)
    expected = list(peergraph_pyg.prefetch(loaders[0], 0))
    for depth in (0, 2):
        torch.manual_seed(0)
        ahead = iter(peergraph_pyg.prefetch(loaders[1], depth))
        assert isinstance(ahead, NativeIterator) == (depth > 0)
        with torch.inference_mode():
            batches = list(ahead)
        for batch, plain in zip(batches, expected, strict=True):
            assert batch.x.is_in_memory == (storage is not None)
            assert not batch.x.is_gathered
            weight = torch.nn.Parameter(torch.ones(1, device=device))
            (batch.x * weight).sum().backward()
            assert torch.equal(batch.x + 0, plain.x)
            assert torch.equal(batch.y, plain.y)


@pytest.mark.parametrize("apart", [False, True])
def test_scales_apart_from_rows(apart: bool, device: torch.device) -> None:
    """Rows of two ranks have their scales in a table that all of them have."""
    if device.type == "cuda":
        require_gpus(2)
    run_ranks(_check_scales, 2, apart, device.type, device=device.type, timeout_s=120)


def _check_scales(apart: bool, device: str) -> None:
    data = random_data()
    data.x = torch.randn(60, 256 if apart else 24, generator=torch.Generator().manual_seed(1))
    rank = torch.distributed.get_rank()
    target = f"cuda:{rank}" if device == "cuda" else "cpu"
    options = {"plan": "sharded", "storage": {"x": "int8"}}
    shared = peergraph_pyg.share(data if rank == 0 else None, device=target, **options)
    table: Any = shared.x.table
    assert len(table.encoded_tables) == (2 if apart else 1)
    loader = NeighborLoader(peergraph_pyg.lazy(shared, as_stored=True), [3, 2], batch_size=16)
    ahead = iter(peergraph_pyg.prefetch(loader, 2))
    assert isinstance(ahead, NativeIterator)
    for batch in ahead:
        assert torch.equal(batch.x + 0, shared.x[batch.n_id])
    peergraph_pyg.store_of(shared).close()


def test_errors() -> None:
    shared = peergraph_pyg.share(random_data())
    with pytest.raises(ValueError, match="no node or edge type has a shared tensor 'z'"):
        peergraph_pyg.lazy(shared, "z")
    with pytest.raises(ValueError, match="expected data returned by"):
        peergraph_pyg.lazy(random_data())
    stores = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    with pytest.raises(ValueError, match="no node or edge type has a shared tensor 'z'"):
        peergraph_pyg.lazy(stores, "z")


@named_cases("name", NAMES)
def test_gradients_of_features(name: str, device: torch.device) -> None:
    plain, lazy = batches(device)
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    inputs = edge_inputs(name, plain.edge_index.shape[1], device)
    results = []
    for layer, batch in ((theirs, plain), (ours, lazy)):
        x = batch.x.detach().requires_grad_()
        out = layer(x, batch.edge_index, *inputs)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        results.append((out, gradient + 0))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_writes_by_way_of_the_first_rows(device: torch.device) -> None:
    def first_then_all(x: Tensor) -> None:
        first = x[:4]
        assert first.sum().isfinite()
        x.mul_(2)
        first.add_(1)

    def view_of_first(x: Tensor) -> None:
        x[:4][1:3].fill_(7)

    for write in (
        lambda x: x[:2].add_(3),
        lambda x: x[:4][:2].zero_(),
        lambda x: x[:4].view(-1).fill_(7),
        lambda x: x.share_memory_()[:3].zero_(),
        first_then_all,
        view_of_first,
    ):
        plain, lazy = batches(device)
        for batch in (plain, lazy):
            write(batch.x)
        assert torch.equal(lazy.x + 0, plain.x)
    assert lazy.x.untyped_storage().nbytes() == plain.x.untyped_storage().nbytes()


def test_training_after_inference(device: torch.device) -> None:
    plain, lazy = batches(device)
    theirs, ours = (layer.to(device) for layer in pair("SAGEConv", *arguments("SAGEConv")))
    with torch.inference_mode():
        assert torch.equal(lazy.x + 0, plain.x)
    actual, expected = ours(lazy.x, lazy.edge_index), theirs(plain.x, plain.edge_index)
    torch.testing.assert_close(
        torch.autograd.grad(actual.square().sum(), list(ours.parameters())),
        torch.autograd.grad(expected.square().sum(), list(theirs.parameters())),
        rtol=1e-4,
        atol=1e-4,
    )

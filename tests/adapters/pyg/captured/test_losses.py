"""`capture`: the losses of a loop over the loader, in steps of fixed shapes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT

import peergraph_pyg
from peergraph.integration.captured.padding import padded_copy
from peergraph.sampling import NeighborSampler as CoreSampler
from peergraph.sampling import StaticShapeSample, StaticShapeSampler, next_seed
from peergraph.store import EDGE, NODE
from peergraph_pyg.captured.loader_batches import LoaderBatches
from peergraph_pyg.data import batch_structures
from tests.adapters.captured_results import adam, loop, shrink_shapes
from tests.adapters.pyg.captured.training import (
    BATCH,
    CLASSES,
    FANOUTS,
    WIDTH,
    captured,
    check,
    check_exceeding,
    loss_of,
    make_loader,
    sage,
    untrimmed_loss,
)


@pytest.mark.parametrize("kind", ["fused", "trimmed", "whole", "gat"])
def test_losses_are_those_of_the_loop(plain: Data, device: torch.device, kind: str) -> None:
    """With the layers of both, trimmed and not; the last batch of an epoch is smaller."""

    def make() -> nn.Module:
        if kind != "gat":
            return sage(device, fast=kind == "fused")
        torch.manual_seed(5)
        return peergraph_pyg.accelerate(GAT(WIDTH, 16, 2, CLASSES, heads=2).to(device))

    loss = loss_of if kind in ("fused", "trimmed") else untrimmed_loss
    training, _ = check(make_loader(plain, device), make, loss)
    assert len(training) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"weight_attr": "weight"},
        {"weight_attr": "weight", "replace": True},
        {"weight_attr": "weight", "disjoint": True},
        {"replace": True},
    ],
)
def test_draws_by_weights_and_with_replacement(
    plain: Data, device: torch.device, options: dict[str, Any]
) -> None:
    data = copy.copy(plain)
    data.weight = torch.randn(9000, generator=torch.Generator().manual_seed(1)).relu()

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return loss_of(model, batch), batch.n_id[: batch.batch_size]

    check(make_loader(data, device, **options), lambda: sage(device), loss)


def padded_batch(sample: StaticShapeSample, plain: Data, first: Tensor) -> Data:
    """Makes a batch of a static shape by hand; its padding has the first seed's values."""
    nodes = sample.nodes[NODE]
    ids = torch.where(nodes < 0, first, nodes)
    return Data(
        x=plain.x[ids],
        y=plain.y[ids],
        edge_index=sample.edge_index[EDGE],
        batch_size=BATCH,
        num_sampled_nodes=sample.shape.rows_per_hop[NODE],
        num_sampled_edges=sample.shape.edges_per_hop[EDGE],
    )


def test_losses_are_those_of_the_same_batches(plain: Data) -> None:
    """Bit for bit, dropout included: a loop over samples of the same static shape."""
    cpu = torch.device("cpu")
    seeds = torch.arange(50, 242)
    loader = make_loader(plain, cpu, input_nodes=seeds)
    model = sage(cpu, 0.5, fast=False)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    torch.manual_seed(9)
    results = captured(training)

    core = CoreSampler(peergraph_pyg.store_of(loader.data), FANOUTS)
    assert training.shape is not None
    sampler = StaticShapeSampler(
        core,
        BATCH,
        max_nodes=training.shape.rows_per_hop[NODE][1:],
        max_edges=training.shape.edges_per_hop[EDGE],
    )

    def batches() -> Iterator[Data]:
        for index in DataLoader(range(len(seeds)), BATCH, shuffle=True, collate_fn=list):
            chosen = seeds[index]
            yield padded_batch(sampler.sample(chosen, next_seed()), plain, chosen[0])

    model = sage(cpu, 0.5, fast=False)
    optimizer = adam(model)
    torch.manual_seed(9)
    expected = [v for _ in range(2) for v in loop(batches(), model, optimizer, loss_of, 1)]
    assert [float(v) for v in results] == [float(v) for v in expected]


@pytest.mark.gpus(1)
def test_large_arrays() -> None:
    """The allocator has other blocks for arrays of over 1 MiB; no two samples may share one."""
    device, nodes = torch.device("cuda", 0), 100_000
    data = Data(
        x=torch.randn(nodes, WIDTH),
        y=torch.randint(CLASSES, (nodes,)),
        edge_index=torch.randint(nodes, (2, 20 * nodes)),
    )
    options = {"num_neighbors": [15, 10, 5], "batch_size": 512, "input_nodes": torch.arange(6000)}
    loader = make_loader(data, device, **options)
    training, _ = check(loader, lambda: sage(device), loss_of, num_eager=None, scale=5)
    assert training.num_captured > 15


@pytest.mark.gpus(1)
def test_memory_stays_the_same(plain: Data) -> None:
    device = torch.device("cuda", 0)
    model = sage(device, 0.5)
    training = peergraph_pyg.capture(make_loader(plain, device), model, adam(model), loss_of)
    used = []
    for _ in range(6):
        captured(training, 1)
        gc.collect()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert len(set(used[2:])) == 1


@pytest.mark.gpus(1)
def test_what_cannot_be_captured(plain: Data) -> None:
    device = torch.device("cuda", 0)
    model = sage(device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = loss_of(model, batch)
        return value if value.item() < 1e9 else value * 0

    training = peergraph_pyg.capture(make_loader(plain, device), model, adam(model), loss)
    with pytest.raises(RuntimeError, match="could not be captured"):
        captured(training)
    assert torch.rand(3, device=device).sum() < 3


def test_samples_that_exceed_the_shape(
    plain: Data, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These batches are trained on as the loader makes them; the next epoch's shape has room."""
    shrink_shapes(monkeypatch, 2, 60)
    check_exceeding(make_loader(plain, device), lambda: sage(device), loss_of)


def test_a_loop_that_is_left(plain: Data, device: torch.device) -> None:
    """The random numbers after it are those after a loop over the loader."""
    model, loader = sage(device), make_loader(plain, device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    drawn = []
    for run in (training, loop(loader, model, adam(model), loss_of)):
        torch.manual_seed(9)
        for number, _ in enumerate(run):
            if number == 3:
                break
        del run
        gc.collect()
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)
    assert len(captured(training, 1)) == 7


def test_results_and_batches(plain: Data, device: torch.device) -> None:
    """A loss may return more; drop_last; the attributes of a batch; lazy features."""
    shapes = []

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, int]:
        if torch.is_grad_enabled():  # else losses with and without padding are compared
            shapes.append((batch.n_id.shape, batch.edge_attr.shape, batch.e_id.shape))
        assert len(batch.x) == sum(batch.num_sampled_nodes)
        value = loss_of(model, batch)
        return value, batch.input_id[:2], batch.batch_size

    data = peergraph_pyg.lazy(peergraph_pyg.share(plain, device=device))
    loader = NeighborLoader(
        data, FANOUTS, batch_size=BATCH, input_nodes=torch.arange(50, 250), drop_last=True
    )
    model = sage(device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    assert training.shape is None
    results = captured(training)
    assert len(results) == 12
    assert training.num_eager == 0
    assert len(set(shapes)) == 1
    assert [ids.tolist() for _, ids, _ in results[:2]] == [[0, 1], [BATCH, BATCH + 1]]
    assert not any(value.requires_grad for value, _, _ in results)
    assert {size for _, _, size in results} == {BATCH}


def test_a_batch_is_the_sample(plain: Data, device: torch.device) -> None:
    """No pass over its nodes or edges; only a batch that is checked has memory of its own."""
    loader = make_loader(plain, device)
    core = loader.node_sampler.core
    sampler = StaticShapeSampler(core, BATCH, valid_padding=True)
    sample = sampler.sample(torch.arange(BATCH, device=device), 3)
    edges, input_id = sample.edge_index[EDGE], torch.arange(BATCH, device=device)
    batches = LoaderBatches(loader, core.store)
    batch = batches.make(sample, ((input_id, None), None))
    assert batch.edge_index is not edges
    assert batch.edge_index.data_ptr() == edges.data_ptr()
    assert batch.n_id.data_ptr() == sample.nodes[NODE].data_ptr()
    assert batch_structures.attached(batch.edge_index) is not None
    assert list(batch.keys()) == list(next(iter(loader)).keys())
    other = batches.make(padded_copy(sample, 1), ((input_id, None), None))
    assert other.edge_index.data_ptr() != edges.data_ptr()
    assert other.n_id[sample.is_padding(NODE)].eq(1).all()
    assert torch.equal(other.edge_index, edges)
    for name in ("x", "y"):
        used = ~sample.is_padding(NODE)
        assert torch.equal(other[name][used], batch[name][used])


def test_fewer_seeds_than_a_batch(plain: Data, device: torch.device) -> None:
    loader = make_loader(plain, device, input_nodes=torch.arange(20))
    model = sage(device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    assert len(captured(training)) == 2
    assert training.num_eager == 2


@pytest.mark.parametrize("changed", ["fanouts", "mode", "autocast"])
def test_settings_that_change(plain: Data, device: torch.device, changed: str) -> None:
    model, loader = sage(device, 0.5), make_loader(plain, device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    captured(training)
    if changed == "fanouts":
        loader.node_sampler.num_neighbors = [2, 2, 2]
        captured(training, 1)
        assert training.shape is not None
        assert training.shape.edges_per_hop[EDGE][0] < 3 * BATCH
    elif changed == "mode":
        # Without dropout, the loss is that of the loop.
        model.eval()
        first = next(iter(training))
        assert torch.isfinite(first)
    else:
        with torch.autocast(device.type, torch.bfloat16):
            values = captured(training, 1)
        assert torch.stack(values).isfinite().all()

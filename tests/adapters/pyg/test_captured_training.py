"""`capture`: the losses of a loop over the loader, in steps of fixed shapes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GAT, GraphSAGE, SAGEConv

import peergraph_pyg
from peergraph.sampling import NeighborSampler as CoreSampler
from peergraph.sampling import StaticShapeSample, StaticShapeSampler, next_seed
from peergraph.store import EDGE, NODE
from peergraph_pyg.captured import captured_training
from tests.adapters.pyg.graphs import random_hetero

NODES, WIDTH, CLASSES, BATCH = 600, 12, 4, 32
FANOUTS = [5, 4, 3]


@pytest.fixture(scope="module")
def plain() -> Data:
    random = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, WIDTH, generator=random),
        y=torch.randint(CLASSES, (NODES,), generator=random),
        edge_index=torch.randint(NODES, (2, 9000), generator=random),
        edge_attr=torch.randn(9000, 3, generator=random),
    )


def make_loader(plain: Data, device: torch.device, **options: Any) -> NeighborLoader:
    """Six full batches and one of 8 seeds, in a random order."""
    given = {"batch_size": BATCH, "shuffle": True, "input_nodes": torch.arange(50, 250), **options}
    fanouts = given.pop("num_neighbors", FANOUTS)
    return NeighborLoader(peergraph_pyg.share(plain, device=device), fanouts, **given)


def sage(device: torch.device, dropout: float = 0.0, fast: bool = True) -> nn.Module:
    torch.manual_seed(5)
    model = GraphSAGE(WIDTH, 16, len(FANOUTS), CLASSES, dropout=dropout).to(device)
    return peergraph_pyg.accelerate(model) if fast else model


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])


def untrimmed_loss(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x, batch.edge_index)
    return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])


Loss = Callable[[nn.Module, Any], Tensor]


def loop(
    loader: Any, model: nn.Module, optimizer: Any, loss: Loss, epochs: int = 2
) -> Iterator[Tensor]:
    """The loop that `capture` stands for."""
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            yield value.detach()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.01)


def captured(training: Any, epochs: int = 2) -> list[Tensor]:
    return [value for _ in range(epochs) for value in training]


@pytest.mark.parametrize("kind", ["fused", "trimmed", "whole", "gat"])
def test_losses_are_those_of_the_loop(plain: Data, device: torch.device, kind: str) -> None:
    """With the layers of both, trimmed and not; the last batch of an epoch is smaller."""

    def make() -> nn.Module:
        if kind != "gat":
            return sage(device, fast=kind == "fused")
        torch.manual_seed(5)
        return peergraph_pyg.accelerate(GAT(WIDTH, 16, 2, CLASSES, heads=2).to(device))

    loss = loss_of if kind in ("fused", "trimmed") else untrimmed_loss
    model, loader = make(), make_loader(plain, device)
    torch.manual_seed(9)
    expected = torch.stack(list(loop(loader, model, adam(model), loss)))
    model = make()
    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    torch.manual_seed(9)
    found = torch.stack(captured(training))
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
    assert len(training) == 7
    assert training.num_eager == 2
    assert training.num_captured == (12 - 3 if device.type == "cuda" else 0)


def padded_batch(sample: StaticShapeSample, plain: Data, first: Tensor) -> Data:
    """A batch of a static shape, put together by hand; padding has the first seed's values."""
    nodes = sample.nodes[NODE]
    ids = torch.where(nodes < 0, first, nodes)
    return Data(
        x=plain.x[ids],
        y=plain.y[ids],
        edge_index=torch.stack([sample.row[EDGE], sample.col[EDGE]]),
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
    found = captured(training)

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
    assert [float(v) for v in found] == [float(v) for v in expected]


@pytest.mark.gpus(1)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_replays_equal_steps_that_run(plain: Data, make: Any) -> None:
    """Dropout included, with a learning rate that changes in the epoch and after it."""
    device = torch.device("cuda", 0)

    def losses(warmup: int) -> tuple[list[Tensor], Any]:
        loader, model = make_loader(plain, device), sage(device, 0.5)
        optimizer = make(model.parameters(), 0.01)
        training = peergraph_pyg.capture(loader, model, optimizer, loss_of, warmup=warmup)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.3)
        torch.manual_seed(9)
        found = []
        for _ in range(3):
            for value in training:
                found.append(value)
                schedule.step()
        return found, training

    (expected, eager), (found, training) = losses(1000), losses(3)
    assert eager.num_captured == 0
    assert training.num_captured == 15
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=2e-4, atol=2e-5)


@pytest.mark.gpus(1)
def test_large_arrays() -> None:
    """The allocator gives arrays of more than a MiB other memory; slots must not share it."""
    device, nodes = torch.device("cuda", 0), 100_000
    data = Data(
        x=torch.randn(nodes, WIDTH),
        y=torch.randint(CLASSES, (nodes,)),
        edge_index=torch.randint(nodes, (2, 20 * nodes)),
    )
    options = {"num_neighbors": [15, 10, 5], "batch_size": 512, "input_nodes": torch.arange(6000)}
    loader = make_loader(data, device, **options)
    model = sage(device)
    torch.manual_seed(9)
    expected = torch.stack(list(loop(loader, model, adam(model), loss_of)))
    model = sage(device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    torch.manual_seed(9)
    found = torch.stack(captured(training))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
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


def test_rates_of_schedulers(plain: Data, device: torch.device) -> None:
    """A scheduler that was made before, and one that is made after the capture."""
    for early in (True, False):
        found = []
        for is_captured in (True, False):
            loader, model = make_loader(plain, device), sage(device)
            optimizer = adam(model)
            make = torch.optim.lr_scheduler.ExponentialLR
            schedule = make(optimizer, 0.7) if early else None
            run: Any = loader
            if is_captured:
                run = peergraph_pyg.capture(loader, model, optimizer, loss_of)
            schedule = schedule or make(optimizer, 0.7)
            torch.manual_seed(9)
            values = []
            for _ in range(3):
                values += (
                    captured(run, 1) if is_captured else loop(loader, model, optimizer, loss_of, 1)
                )
                schedule.step()
            found.append(torch.stack(values))
        torch.testing.assert_close(found[0], found[1], rtol=2e-4, atol=2e-5)


def test_a_state_that_is_loaded(plain: Data, device: torch.device) -> None:
    """The optimizer then has other tensors, and a number as its learning rate."""

    def losses(is_captured: bool) -> Tensor:
        loader, model = make_loader(plain, device), sage(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        run: Any = loader
        if is_captured:
            run = peergraph_pyg.capture(loader, model, optimizer, loss_of)

        def epoch() -> list[Tensor]:
            if is_captured:
                return captured(run, 1)
            return list(loop(loader, model, optimizer, loss_of, 1))

        torch.manual_seed(9)
        found = epoch()
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        found += epoch()
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        optimizer.param_groups[0]["lr"] = 0.002
        found += epoch()
        return torch.stack(found)

    torch.testing.assert_close(losses(True), losses(False), rtol=2e-4, atol=2e-5)


def test_samples_that_exceed_the_shape(
    plain: Data, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are trained on as the loader makes them; the shape of the next epoch has room."""
    model, loader = sage(device), make_loader(plain, device)
    torch.manual_seed(9)
    expected = torch.stack(list(loop(loader, model, adam(model), loss_of, 3)))
    find = captured_training.find_bounds

    def too_small(*args: Any) -> Any:
        nodes, edges = find(*args)
        return [nodes[0], nodes[1] - 60, *nodes[2:]], edges

    monkeypatch.setattr(captured_training, "find_bounds", too_small)
    model = sage(device)
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    torch.manual_seed(9)
    found, exceeding = captured(training, 1), training.num_eager
    assert exceeding > 1
    found += captured(training, 2)
    assert training.num_eager < exceeding + 6
    torch.testing.assert_close(torch.stack(found), expected, rtol=2e-4, atol=2e-5)


def test_a_loop_that_is_left(plain: Data, device: torch.device) -> None:
    """The random numbers after it are those after a loop over the loader."""
    model = sage(device)
    training = peergraph_pyg.capture(make_loader(plain, device), model, adam(model), loss_of)
    drawn = []
    for run in (training, loop(training._loader, model, adam(model), loss_of)):
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
    seen = []

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, int]:
        seen.append((batch.n_id.shape, batch.edge_attr.shape, batch.e_id.shape))
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
    assert len(set(seen)) == 1
    assert [ids.tolist() for _, ids, _ in results[:2]] == [[0, 1], [BATCH, BATCH + 1]]
    assert not any(value.requires_grad for value, _, _ in results)
    assert {size for _, _, size in results} == {BATCH}


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


class Centred(nn.Module):
    """Subtracts the mean over the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(x - x.mean(0), edge_index)
        return out


def test_losses_that_depend_on_padding(plain: Data, device: torch.device) -> None:
    model, loader = Centred().to(device), make_loader(plain, device)
    training = peergraph_pyg.capture(loader, model, adam(model), untrimmed_loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))
    # A loss of all edges.
    model = sage(device)
    training = peergraph_pyg.capture(
        loader, model, adam(model), lambda m, b: loss_of(m, b) + b.edge_attr.square().mean()
    )
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))
    # A loss of all rows.
    model = sage(device)
    training = peergraph_pyg.capture(
        loader, model, adam(model), lambda m, b: F.cross_entropy(m(b.x, b.edge_index), b.y)
    )
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))


@pytest.mark.parametrize("norm", ["batch_norm", "graph_norm", "pair_norm", "instance_norm"])
def test_norms_over_all_rows(plain: Data, norm: str) -> None:
    model = GraphSAGE(WIDTH, 16, 2, CLASSES, norm=norm)
    loader = make_loader(plain, torch.device("cpu"), num_neighbors=[3, 2])
    with pytest.raises(NotImplementedError, match=r"model\.norms\.0: \w+Norm computes over all"):
        peergraph_pyg.capture(loader, model, adam(model), untrimmed_loss)


def refused(plain: Data, kind: str) -> tuple[Any, nn.Module, Any]:
    """Loader, model and optimizer, one of which :func:`capture` refuses."""
    cpu, model = torch.device("cpu"), GraphSAGE(WIDTH, 16, 3, CLASSES)
    if kind == "unshared":
        return NeighborLoader(plain, FANOUTS), model, adam(model)
    if kind == "links":
        data = peergraph_pyg.share(plain, device=cpu)
        return LinkNeighborLoader(data, FANOUTS), model, adam(model)
    if kind == "types":
        hetero = peergraph_pyg.share(random_hetero(), device=cpu)
        return NeighborLoader(hetero, [2], input_nodes="paper"), model, adam(model)
    options: dict[str, dict[str, Any]] = {
        "transform": {"transform": lambda batch: batch},
        "disjoint": {"disjoint": True},
        "subgraph_type": {"subgraph_type": "induced"},
        "input_nodes": {"input_nodes": torch.tensor([NODES])},
    }
    loader = make_loader(plain, cpu, **options.get(kind, {}))
    if kind == "optimizer":
        return loader, model, torch.optim.LBFGS(model.parameters())
    if kind == "parameters":
        return loader, model, adam(nn.Linear(2, 2))
    if kind == "model":
        return loader, nn.DataParallel(model), adam(model)
    return loader, model, adam(model)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("unshared", TypeError, "is not over data that peergraph_pyg.share"),
        ("links", TypeError, "loader must be a NeighborLoader, got LinkNeighborLoader"),
        ("types", NotImplementedError, "NeighborLoader over HeteroData"),
        ("transform", NotImplementedError, "transform of the loader"),
        ("disjoint", NotImplementedError, "disjoint of the loader"),
        ("subgraph_type", NotImplementedError, "subgraph_type of the loader"),
        ("input_nodes", IndexError, f"out of range for {NODES} nodes"),
        ("optimizer", NotImplementedError, "LBFGS cannot be captured"),
        ("parameters", ValueError, "parameters that are not the model's"),
        ("model", NotImplementedError, "DataParallel is not supported"),
    ],
)
def test_refused(plain: Data, kind: str, error: type[Exception], match: str) -> None:
    loader, model, optimizer = refused(plain, kind)
    with pytest.raises(error, match=match):
        peergraph_pyg.capture(loader, model, optimizer, loss_of)


def test_wrong_calls(plain: Data) -> None:
    cpu = torch.device("cpu")
    loader, model = make_loader(plain, cpu), sage(cpu)
    with pytest.raises(ValueError, match="warmup must be at least 2 steps, got 1"):
        peergraph_pyg.capture(loader, model, adam(model), loss_of, warmup=1)
    for value, error, match in (
        (torch.zeros(2), TypeError, r"a tensor of one number, .* got \[2\]"),
        (None, TypeError, "got NoneType"),
        (torch.zeros(()), ValueError, "does not depend on a parameter"),
    ):
        training = peergraph_pyg.capture(
            loader, model, adam(model), lambda model, batch, value=value: value
        )
        with pytest.raises(error, match=match):
            next(iter(training))
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    first = iter(training)
    next(first)
    with pytest.raises(RuntimeError, match="is being iterated already"):
        next(iter(training))
    first.close()
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(NotImplementedError, match="autocast to float16"),
    ):
        next(iter(training))
    peergraph_pyg.store_of(loader.data).close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(training))

"""`capture` of DistributedDataParallel models: the losses of the loop on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GraphSAGE

import peergraph_pyg
from peergraph.integration import SampleCounts
from peergraph.integration.captured import batch_bounds, captured_training
from peergraph.memory import Group
from peergraph.store import NODE
from peergraph.testing import run_ranks
from tests.adapters.captured_results import loop
from tests.places import cpu_and_gpus

NODES, WIDTH, CLASSES, BATCH = 600, 12, 4, 16
STEPS = 7


class Branches(nn.Module):
    """A model with a parameter that no loss reads, one that only rank 1 reads, and a buffer."""

    unused: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.sage = GraphSAGE(WIDTH, 16, 2, CLASSES)
        self.unused = nn.Parameter(torch.ones(3))
        self.bias = nn.Parameter(torch.zeros(CLASSES))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.sage(x, edge_index) * self.scale
        return out + self.bias if Group.current().rank == 1 else out


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x, batch.edge_index)
    return F.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])


def link_loss_of(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x, batch.edge_index)
    source, destination = batch.edge_label_index.to(out.device)
    scores = (out[source] * out[destination]).sum(1)
    return F.binary_cross_entropy_with_logits(scores, batch.edge_label.to(out.device))


def _loader(group: Group, kind: str = "nodes") -> Any:
    """Returns a loader of this rank's batches: six full ones and a smaller one."""
    random = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, WIDTH, generator=random),
        y=torch.randint(CLASSES, (NODES,), generator=random),
        edge_index=torch.randint(NODES, (2, 9000), generator=random),
    )
    shared = peergraph_pyg.share(data, device=str(group.device))
    count, options = 6 * BATCH + 5, {"batch_size": BATCH, "shuffle": True}
    if kind == "links":
        assert data.edge_index is not None
        links = data.edge_index[:, group.rank :: group.world_size][:, :count]
        return LinkNeighborLoader(shared, [5, 3], links, neg_sampling_ratio=1.0, **options)
    seeds = torch.arange(group.rank, 208, group.world_size)[:count]
    return NeighborLoader(shared, [5, 3], input_nodes=seeds, **options)


def _model(group: Group, kind: str) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(group.rank)  # DistributedDataParallel takes rank 0's weights
    plain: nn.Module = Branches() if kind == "branches" else GraphSAGE(WIDTH, 16, 2, CLASSES)
    model = peergraph_pyg.accelerate(plain.to(group.device)) if kind == "fast" else plain
    wrapped = DistributedDataParallel(
        model.to(group.device), find_unused_parameters=kind == "branches"
    )
    return wrapped, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _check_losses(device: str, kind: str, exceed: bool) -> None:
    group = Group.current(device=device)
    loader, loss = _loader(group, kind), link_loss_of if kind == "links" else loss_of
    model, optimizer = _model(group, kind)
    torch.manual_seed(9 + group.rank)
    expected = list(loop(loader, model, optimizer, loss, 3))
    copy, optimizer = _model(group, kind)
    if exceed and group.rank == 1:
        # Some batches of one rank do not fit.
        find = batch_bounds.find_bounds

        def smaller(*arguments: Any) -> SampleCounts:
            nodes, edges = find(*arguments)
            rows = {t: [each[0], *(int(0.9 * n) for n in each[1:])] for t, each in nodes.items()}
            return SampleCounts(rows, edges)

        captured_training.find_bounds = smaller  # type: ignore[attr-defined]
    training = peergraph_pyg.capture(loader, copy, optimizer, loss)
    torch.manual_seed(9 + group.rank)
    losses = [value for _ in range(3) for value in training]
    # Sums of a GPU's atomics are not the same in both.
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-3, atol=1e-4)
    for one, other in zip(model.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    weights = [parameter.detach().cpu() for parameter in copy.parameters()]
    for others in group.all_gather(weights):
        assert all(map(torch.equal, weights, others))
    counts = group.all_gather((training.num_eager, training.num_captured))
    assert len(set(counts)) == 1
    eager, captured = counts[0]
    assert eager > 3 if exceed else eager == 3
    on_gpu = group.device is not None and group.device.type == "cuda"
    assert captured == (3 * STEPS - eager - 3 if on_gpu else 0)
    assert training.shape is not None
    assert training.shape.rows_per_hop[NODE][0] > BATCH
    group.barrier()
    peergraph_pyg.store_of(loader.data).close()


CASES = [("plain", False), ("fast", False), ("branches", False), ("fast", True), ("links", True)]


@cpu_and_gpus(2)
@pytest.mark.parametrize(("kind", "exceed"), CASES)
def test_losses(device_type: str, kind: str, exceed: bool) -> None:
    run_ranks(_check_losses, 2, device_type, kind, exceed, device=device_type)


@pytest.mark.gpus(4)
def test_losses_on_four_gpus() -> None:
    run_ranks(_check_losses, 4, "cuda", "fast", True, device="cuda")


def _check_refused() -> None:
    group = Group.current(device="cpu")
    loader = _loader(group)
    model, optimizer = _model(group, "plain")
    uneven = NeighborLoader(
        loader.data, [5, 3], input_nodes=torch.arange(BATCH * (1 + group.rank)), batch_size=BATCH
    )
    training = peergraph_pyg.capture(uneven, model, optimizer, loss_of)
    with pytest.raises(ValueError, match="its ranks have .* batches"):
        next(iter(training))
    model.register_comm_hook(None, lambda _, bucket: bucket.buffer())
    with pytest.raises(NotImplementedError, match="a communication hook of DistributedDataPara"):
        peergraph_pyg.capture(loader, model, optimizer, loss_of)
    embedding = DistributedDataParallel(nn.Embedding(NODES, CLASSES, sparse=True))
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    loader = _loader(group)
    training = peergraph_pyg.capture(
        loader, embedding, optimizer, lambda model, batch: model(batch.n_id[:BATCH]).sum()
    )
    with pytest.raises(NotImplementedError, match=r"model\.weight: its gradient is sparse"):
        next(iter(training))
    group.barrier()


def test_refused() -> None:
    run_ranks(_check_refused, 2)


def _check_later_gradients() -> None:
    """A parameter that no loss of the first step reads has no place in the buckets."""
    group = Group.current(device="cpu")
    loader = _loader(group)
    model, optimizer = _model(group, "branches")
    steps = 0

    def loss(model: Any, batch: Any) -> Tensor:
        nonlocal steps
        steps += torch.is_grad_enabled()  # not the losses that look for padding
        value = loss_of(model, batch)
        return value if steps <= 1 else value + model.unused.sum()

    training = iter(peergraph_pyg.capture(loader, model, optimizer, loss))
    next(training)
    with pytest.raises(RuntimeError, match=r"model\.unused: it has a gradient in this step"):
        next(training)
    group.barrier()


def test_later_gradients() -> None:
    run_ranks(_check_later_gradients, 2)


def _check_frozen_parameters() -> None:
    """Parameters are frozen and trained again between epochs: a frozen one stays as it is."""
    group = Group.current(device="cpu")
    loader = _loader(group)
    model, _ = _model(group, "plain")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    training = peergraph_pyg.capture(loader, model, optimizer, loss_of)
    first = next(model.module.parameters())
    for is_trained in (True, False, True):
        first.requires_grad_(is_trained)
        before = first.detach().clone()
        list(training)
        assert torch.equal(before, first) is not is_trained
        weights = [parameter.detach() for parameter in model.parameters()]
        for others in group.all_gather(weights):
            assert all(map(torch.equal, weights, others))
    group.barrier()


def test_frozen_parameters() -> None:
    run_ranks(_check_frozen_parameters, 2)


def _check_new_buffers() -> None:
    """All ranks compute with the first one's buffer, also if it is another tensor by now."""
    group = Group.current(device="cpu")
    loader = _loader(group)
    model, optimizer = _model(group, "branches")
    training = peergraph_pyg.capture(loader, model, optimizer, loss_of)
    list(training)
    model.module.scale = torch.tensor(2.0 + group.rank)
    list(training)
    assert float(model.module.scale) == 2
    group.barrier()


def test_new_buffers() -> None:
    run_ranks(_check_new_buffers, 2)

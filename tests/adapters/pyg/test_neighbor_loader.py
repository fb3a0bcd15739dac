"""PyG's unmodified NeighborLoader on shared homogeneous data."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import pytest
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.data.lightning.datamodule import split_kwargs
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NeighborSampler
from torch_geometric.sampler.base import NumNeighbors
from torch_geometric.utils import k_hop_subgraph, trim_to_layer

import peergraph_pyg
from peergraph.testing.starting import context_of
from tests.adapters.pyg.graphs import check_batch, check_fanouts, full_hops, random_data


@pytest.mark.parametrize(
    ("fanouts", "num_workers"),
    [([3, 2], 0), ([3, 2], 2), ([-1, 1], 0), ([0], 2), ([2, 0, 5], 0)],
    ids=str,
)
def test_batches(fanouts: list[int], num_workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(
        shared, fanouts, input_nodes=shared.train_mask, batch_size=7, num_workers=num_workers
    )
    seeds = data.train_mask.nonzero().view(-1)
    results = []
    for batch in loader:
        check_batch(batch, data)
        check_fanouts(batch, data, fanouts)
        assert batch.x.device.type == batch.edge_index.device.type == device.type
        assert torch.equal(batch.n_id[: batch.batch_size].cpu(), batch.input_id)
        assert batch.name == "random"
        assert torch.equal(batch.graph_label, data.graph_label)
        assert batch.batch is None
        results.append(batch.input_id)
    assert torch.equal(torch.cat(results), seeds)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_all_neighbours(hops: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([40, 3, 59, 17])
    batch = next(iter(NeighborLoader(shared, [-1] * hops, input_nodes=seeds, batch_size=4)))
    expected = full_hops(data.edge_index, seeds, hops)
    assert torch.equal(batch.n_id.cpu(), expected["n_id"])
    assert torch.equal(batch.edge_index.cpu(), expected["edge_index"])
    assert torch.equal(batch.e_id.cpu(), expected["e_id"])
    assert batch.num_sampled_nodes == expected["num_sampled_nodes"]
    assert batch.num_sampled_edges == expected["num_sampled_edges"]
    assert torch.equal(batch.input_id, torch.arange(4))
    assert batch.batch_size == 4

    nodes = k_hop_subgraph(seeds, hops, data.edge_index, num_nodes=60)[0]
    assert torch.equal(batch.n_id.cpu().sort().values, nodes)
    inner = k_hop_subgraph(seeds, hops - 1, data.edge_index, num_nodes=60)[0]
    edges = torch.isin(data.edge_index[1], inner).nonzero().view(-1)
    assert torch.equal(batch.e_id.cpu().sort().values, edges)


def test_duplicate_seeds(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([5, 9, 5])
    batch = next(iter(NeighborLoader(shared, [4], input_nodes=seeds, batch_size=3)))
    assert torch.equal(batch.n_id[:3].cpu(), seeds)
    check_batch(batch, data)


def test_graph_without_edges(device: torch.device) -> None:
    shared = peergraph_pyg.share(Data(x=torch.arange(5.0)), device=device)
    batch = next(iter(NeighborLoader(shared, [2, 2], batch_size=3)))
    assert batch.x.tolist() == [0, 1, 2]
    assert batch.num_sampled_edges == [0, 0]


def test_same_seed_same_batches(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)

    def edges(seed: int, **options: Any) -> torch.Tensor:
        torch.manual_seed(seed)
        loader = NeighborLoader(shared, [2, 2], batch_size=10, **options)
        return torch.cat([batch.e_id.cpu() for batch in loader])

    assert torch.equal(edges(1, shuffle=True), edges(1, shuffle=True))
    assert not torch.equal(edges(1), edges(2))
    assert torch.equal(edges(1, num_workers=2), edges(1, num_workers=2))


def test_workers_draw_different_samples() -> None:
    """Two workers that get the same seeds must not draw the same neighbours."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    seeds = torch.arange(10).repeat(2)
    first, second = NeighborLoader(
        shared, [2, 2], input_nodes=seeds, batch_size=10, num_workers=2, filter_per_worker=True
    )
    assert not torch.equal(first.e_id, second.e_id)


@pytest.mark.parametrize(
    ("context", "filter_per_worker"), [("fork", True), ("fork", False), ("forkserver", None)]
)
def test_worker_options(context: str, filter_per_worker: bool | None) -> None:
    context_of("forked")  # The server of forks has PyG imported.
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    loader = NeighborLoader(
        shared,
        [3, 2],
        batch_size=20,
        num_workers=1,
        multiprocessing_context=context,
        filter_per_worker=filter_per_worker,
        prefetch_factor=3,
    )
    for _ in range(2):
        for batch in loader:
            check_batch(batch, data)


def test_worker_options_of_a_cuda_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loader makes of its options, without a GPU: only the device's name is looked at."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    store = peergraph_pyg.store_of(shared)
    sampler = NeighborSampler(shared, [2])
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    for data in (shared, peergraph_pyg.stores(store)):
        with monkeypatch.context() as patch:
            patch.setattr(store, "device", torch.device("cuda:0"))
            with pytest.warns(UserWarning, match="cuda:0: num_workers=2 set to 0"):
                loader = NodeLoader(data, sampler, torch.arange(9), pin_memory=True, **options)
        assert (loader.num_workers, loader.persistent_workers) == (0, False)
        assert not loader.pin_memory
        assert not loader.filter_per_worker
    assert NodeLoader(shared, sampler, torch.arange(9), **options).num_workers == 2


@pytest.mark.gpus(1)
def test_cuda_store_needs_no_workers() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cuda:0")
    with pytest.warns(UserWarning, match="num_workers=2 set to 0"):
        loader = NeighborLoader(
            shared,
            [3, 2],
            batch_size=20,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=4,
            pin_memory=True,
        )
    assert loader.num_workers == 0
    for batch in loader:
        assert batch.is_cuda
        check_batch(batch, data)


def test_disjoint(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([2, 7, 2, 30])
    loader = NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=4, disjoint=True)
    batch = next(iter(loader))
    check_batch(batch, data)
    check_fanouts(batch, data, [3, 2])
    subgraph, n_id = batch.batch.cpu(), batch.n_id.cpu()
    assert subgraph[:4].tolist() == [0, 1, 2, 3]
    row, col = batch.edge_index.cpu()
    assert torch.equal(subgraph[row], subgraph[col])
    assert len(torch.stack([subgraph, n_id]).unique(dim=1)[0]) == len(n_id)


def test_disjoint_all_neighbours(device: torch.device) -> None:
    data = random_data(30, 60)
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([3, 1])
    loader = NeighborLoader(shared, [-1, -1], input_nodes=seeds, batch_size=2, disjoint=True)
    batch = next(iter(loader))
    for position, seed in enumerate(seeds):
        expected = full_hops(data.edge_index, seed.view(1), 2)
        mine = batch.batch.cpu() == position
        assert torch.equal(batch.n_id.cpu()[mine], expected["n_id"])
        assert torch.equal(
            batch.e_id.cpu()[mine[batch.edge_index[0].cpu()]].sort().values,
            expected["e_id"].sort().values,
        )


def test_bidirectional(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(shared, [3, 2], batch_size=10, subgraph_type="bidirectional")
    batch = next(iter(loader))
    row, col = batch.edge_index.cpu()
    pairs = set(zip(row.tolist(), col.tolist(), strict=True))
    assert pairs == {(target, source) for source, target in pairs}
    assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    sources, targets = data.edge_index[:, batch.e_id.cpu()]
    ends = torch.stack([batch.n_id.cpu()[row], batch.n_id.cpu()[col]])
    straight = (torch.stack([sources, targets]) == ends).all(0)
    flipped = (torch.stack([targets, sources]) == ends).all(0)
    assert bool((straight | flipped).all())
    assert torch.equal(batch.edge_attr.cpu(), data.edge_attr[batch.e_id.cpu()])


def test_transforms(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)

    def mark(batch: Data) -> Data:
        batch.marked = True
        return batch

    def without_edge_ids(output: Any) -> Any:
        output.edge = None
        return output

    loader = NeighborLoader(
        shared, [3], batch_size=10, transform=mark, transform_sampler_output=without_edge_ids
    )
    batch = next(iter(loader))
    assert batch.marked
    assert "e_id" not in batch
    assert "edge_attr" not in batch


def test_trim_to_layer(device: torch.device) -> None:
    """Trimming layer by layer must not change what the seeds get."""
    shared = peergraph_pyg.share(random_data(), device=device)
    batch = next(iter(NeighborLoader(shared, [4, 3, 2], batch_size=8)))
    torch.manual_seed(0)
    layers = [SAGEConv(5, 5).to(device) for _ in range(3)]
    plain = trimmed = batch.x
    edge_index = batch.edge_index
    for depth, layer in enumerate(layers):
        plain = layer(plain, batch.edge_index)
        trimmed, edge_index, _ = trim_to_layer(
            depth, batch.num_sampled_nodes, batch.num_sampled_edges, trimmed, edge_index
        )
        trimmed = layer(trimmed, edge_index)
    assert torch.allclose(plain[:8], trimmed[:8], atol=1e-4)


def test_changing_fanouts_and_disjoint(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(shared, [1], batch_size=10)
    check_fanouts(next(iter(loader)), data, [1])
    loader.node_sampler.num_neighbors = [2, 3]
    check_fanouts(next(iter(loader)), data, [2, 3])
    loader.node_sampler.num_neighbors = NumNeighbors([4])
    check_fanouts(next(iter(loader)), data, [4])
    loader.node_sampler.disjoint = True
    assert next(iter(loader)).batch is not None


def test_changing_how_neighbours_are_chosen(device: torch.device) -> None:
    """As PyG's Lightning modules do with a copy of the sampler, for evaluation."""
    data = random_data()
    data.stamp = torch.arange(60) % 7
    shared = peergraph_pyg.share(data, device=device)
    degree = torch.bincount(data.edge_index[1], minlength=60)
    sampler = NeighborSampler(shared, [7])
    loader = NodeLoader(shared, sampler, batch_size=60)
    next(iter(loader))
    other = copy.copy(sampler)
    other.replace = True
    (batch,) = NodeLoader(shared, other, batch_size=60)
    assert batch.num_edges == 7 * int((degree > 0).sum())
    (batch,) = loader
    assert batch.num_edges == int(degree.clamp(max=7).sum())
    sampler.subgraph_type = "induced"
    (batch,) = loader
    assert batch.num_edges == data.num_edges
    timed = NeighborSampler(shared, [2], time_attr="stamp")
    loader = NodeLoader(
        shared, timed, input_nodes=torch.arange(60), input_time=torch.full((60,), 5), batch_size=60
    )
    next(iter(loader))
    timed.temporal_strategy = "last"
    (batch,) = loader
    row, col = batch.edge_index.cpu()
    for node in range(60):
        stamps = data.stamp[data.edge_index[0][data.edge_index[1] == node]]
        sampled_stamps = batch.stamp.cpu()[row[col == node]].sort().values
        assert torch.equal(sampled_stamps, stamps[stamps <= 5].sort().values[-2:])
    for name in ("time_attr", "weight_attr"):
        with pytest.raises(NotImplementedError, match=f"{name} of a sampler cannot be changed"):
            setattr(sampler, name, "stamp")


def test_parameters_of_pygs_sampler_can_be_read() -> None:
    """PyG's Lightning modules tell by them what is meant for the sampler."""
    names = list(inspect.signature(NeighborSampler).parameters)
    assert names[:2] == ["data", "num_neighbors"]
    assert names == list(inspect.signature(NeighborSampler.__init__).parameters)[1:]

    class Mine(NeighborSampler):
        def __init__(self, graph: Any) -> None:
            super().__init__(graph, [2])

    assert list(inspect.signature(Mine).parameters) == ["graph"]
    arguments = {"num_neighbors": [3], "batch_size": 4, "replace": True}
    of_sampler, of_loader = split_kwargs(arguments, NeighborSampler)
    assert of_sampler == {"num_neighbors": [3], "replace": True}
    assert of_loader == {"batch_size": 4}


def test_calling_a_loader(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    batch = NeighborLoader(shared, [2], batch_size=4)([5, 6])
    assert batch.n_id[:2].tolist() == [5, 6]
    check_batch(batch, data)


def test_sampler_classes(device: torch.device) -> None:
    """Direct construction, the loader's `neighbor_sampler=`, and NodeLoader, without warnings."""
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        direct = NeighborSampler(shared, [2, 2])
        assert type(direct) is peergraph_pyg.NeighborSampler
        assert isinstance(direct, NeighborSampler)
        own = peergraph_pyg.NeighborSampler(shared, num_neighbors=[2, 2])
        for loader in (
            NodeLoader(shared, direct, batch_size=5),
            NeighborLoader(shared, [9], neighbor_sampler=own, batch_size=5),
        ):
            check_fanouts(next(iter(loader)), data, [2, 2])


def test_other_data_is_untouched() -> None:
    with pytest.warns(UserWarning, match="pyg-lib"):
        sampler = NeighborSampler(random_data(), [2])
    assert type(sampler) is NeighborSampler
    loader = NodeLoader(random_data(), StubSampler(), num_workers=0)
    assert loader.filter_per_worker


def test_own_edges_are_sampled_by_pyg_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    shared.edge_index = torch.tensor([[0], [1]])
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", True)
    assert type(NeighborSampler(shared, [2])) is NeighborSampler


class StubSampler:
    """Stands where a sampler of the user's own would."""


def test_unsupported_inputs() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match="input_time: the sampler has no time_attr"):
        NodeLoader(shared, NeighborSampler(shared, [2]), input_time=torch.arange(60))
    with pytest.raises(ValueError, match="list of ints for a homogeneous graph"):
        NeighborLoader(shared, {("a", "b", "c"): [1]})
    for few in ([-2], NumNeighbors([-2])):
        with pytest.raises(ValueError, match="num_neighbors must be -1 .* got \\[-2\\]"):
            NeighborLoader(shared, few)
    for odd in (5, None, ["all"], [2.5], [[1]], NumNeighbors(5)):
        with pytest.raises(TypeError, match="num_neighbors must be a list of ints"):
            NeighborLoader(shared, odd)
    with pytest.raises(IndexError, match="60"):
        next(iter(NeighborLoader(shared, [2], input_nodes=torch.tensor([60]))))

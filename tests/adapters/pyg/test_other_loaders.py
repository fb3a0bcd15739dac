"""Loaders and samplers of PyG that do not sample neighbours, on shared data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch_geometric import seed_everything
from torch_geometric.data import Batch
from torch_geometric.loader import (
    CachedLoader,
    DataLoader,
    DynamicBatchSampler,
    ImbalancedSampler,
    LinkLoader,
    NeighborLoader,
    NodeLoader,
    PrefetchLoader,
    RandomNodeLoader,
    ZipLoader,
)
from torch_geometric.sampler import BaseSampler, SamplerOutput

import peergraph_pyg
from peergraph_pyg import StoreTensor
from tests.adapters.pyg.graphs import check_batch, random_data

LOADERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "DataLoader": lambda data: DataLoader([data, data], batch_size=2),
    "RandomNodeLoader": lambda data: RandomNodeLoader(data, 3),
    "DynamicBatchSampler": lambda data: DataLoader(
        [data, data], batch_sampler=DynamicBatchSampler([data, data], max_num=70, num_steps=2)
    ),
    "ImbalancedSampler": lambda data: ImbalancedSampler(data, data.train_mask),
    "Batch": lambda data: Batch.from_data_list([data, data], follow_batch=["x"]).to_data_list(),
}


def same(batch: Any, expected: Any) -> bool:
    if not hasattr(expected, "to_dict"):
        return bool(batch == expected)
    for key, value in expected.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert not isinstance(batch[key], StoreTensor)
            assert torch.equal(batch[key], value), key
    return list(batch.keys()) == list(expected.keys())


@pytest.mark.parametrize("kind", LOADERS)
def test_as_unshared(kind: str) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    seed_everything(2)
    expected = list(LOADERS[kind](data))
    seed_everything(2)
    for batch, other in zip(LOADERS[kind](shared), expected, strict=True):
        assert same(batch, other)


def test_around_neighbor_loaders(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)

    def loader() -> NeighborLoader:
        return NeighborLoader(shared, [3, 2], batch_size=20)

    pairs = list(ZipLoader([loader(), loader()], filter_per_worker=False))
    assert len(pairs) == 60  # it gives batches of one seed unless it is told a size
    batches = [*pairs[0], *CachedLoader(loader())]
    if device.type == "cpu":  # it pins batches, which lie on the GPU already where the store does
        batches += PrefetchLoader(loader())
    for batch in batches:
        check_batch(batch, data)


class _OneHop(BaseSampler):  # type: ignore[misc]
    """A user's sampler: all in-neighbours of a batch, by a structure of its own."""

    def __init__(self, edge_index: torch.Tensor) -> None:
        self.edge_index = edge_index

    def around(self, seeds: torch.Tensor, metadata: Any) -> SamplerOutput:
        edges = torch.isin(self.edge_index[1], seeds).nonzero().view(-1)
        source, target = self.edge_index[:, edges]
        nodes = torch.unique(torch.cat([seeds, source]))
        row, col = torch.searchsorted(nodes, source), torch.searchsorted(nodes, target)
        return SamplerOutput(nodes, row, col, edges, metadata=metadata)

    def sample_from_nodes(self, index: Any) -> SamplerOutput:
        return self.around(index.node, (index.input_id, index.time))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        ends = torch.stack([index.row, index.col])
        out = self.around(torch.unique(ends), None)
        links = torch.searchsorted(out.node, ends)
        out.metadata = (index.input_id, links, index.label, index.time)
        return out


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_users(workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    sampler = _OneHop(data.edge_index)
    options = {"batch_size": 7, "num_workers": workers}
    seeds = []
    for batch in NodeLoader(shared, sampler, shared.train_mask, **options):
        check_batch(batch, data)
        seeds.append(batch.input_id.cpu())
    assert torch.equal(torch.cat(seeds), data.train_mask.nonzero().view(-1))
    links = []
    for batch in LinkLoader(shared, sampler, batch_size=90, num_workers=workers):
        check_batch(batch, data)
        links.append(batch.n_id.cpu()[batch.edge_label_index.cpu()])
    assert torch.equal(torch.cat(links, 1), data.edge_index)


def test_classes_in_proportion(device: torch.device) -> None:
    """ImbalancedSampler draws seeds of shared data so that classes are equally frequent."""
    data = random_data()
    data.y = (torch.arange(60) < 6).long()
    shared = peergraph_pyg.share(data, device=device)
    torch.manual_seed(0)
    seeds = ImbalancedSampler(shared, num_samples=3000)
    loader = NeighborLoader(shared, [2], sampler=seeds, batch_size=500)
    labels = torch.cat([batch.y[: batch.batch_size] for batch in loader])
    assert 0.45 < float(labels.double().mean()) < 0.55

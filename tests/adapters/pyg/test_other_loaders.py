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
    NeighborLoader,
    PrefetchLoader,
    RandomNodeLoader,
    ZipLoader,
)

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

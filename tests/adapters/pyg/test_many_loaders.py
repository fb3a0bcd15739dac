"""Many loaders on one store, loaders that are left halfway, and many batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from tests.adapters.pyg.graphs import check_batch, random_data
from tests.held_resources import check_no_growth, resident_bytes, resource_counts


def loaders(device: torch.device, count: int) -> tuple[Any, list[Any]]:
    """The data, and loaders of several kinds on one store of it."""
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    kinds = [
        lambda: NeighborLoader(shared, [3, 2], batch_size=7, shuffle=True),
        lambda: NeighborLoader(shared, [2], batch_size=5, replace=True),
        lambda: peergraph_pyg.prefetch(NeighborLoader(shared, [4], batch_size=6), 2),
        lambda: LinkNeighborLoader(shared, [2, 2], batch_size=40, neg_sampling="binary"),
    ]
    return data, [kinds[i % len(kinds)]() for i in range(count)]


def test_eight_loaders_in_turn(device: torch.device) -> None:
    data, all_loaders = loaders(device, 8)
    for batches in zip(*all_loaders, strict=False):
        for i, batch in enumerate(batches):
            if i % 4 != 3:
                check_batch(batch, data)


def test_eight_loaders_in_threads(device: torch.device) -> None:
    data, all_loaders = loaders(device, 8)

    def work(i: int) -> int:
        count = 0
        for _ in range(3):
            for batch in all_loaders[i]:
                count += 1
                if i % 4 != 3:
                    check_batch(batch, data)
        return count

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(work, range(8)))
    assert counts == [3 * len(loader) for loader in all_loaders]


def test_loaders_left_halfway(device: torch.device) -> None:
    data, all_loaders = loaders(device, 4)

    def leave_all() -> None:
        for loader in all_loaders:
            iterator = iter(loader)
            next(iterator)
            del iterator
        for loader in all_loaders:
            for _ in loader:
                break

    leave_all()
    before = resource_counts()
    for _ in range(20):
        leave_all()
    check_no_growth(before)
    for batch in all_loaders[0]:
        check_batch(batch, data)


def test_workers_left_halfway() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    before = resource_counts()
    for _ in range(2):
        loader = NeighborLoader(shared, [3, 2], batch_size=7, num_workers=2)
        check_batch(next(iter(loader)), data)
        del loader
    check_no_growth(before)


@pytest.mark.parametrize("depth", [0, 2])
def test_thousands_of_batches_leak_nothing(device: torch.device, depth: int) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    loader = NeighborLoader(shared, [3, 2], batch_size=1)
    ahead = peergraph_pyg.prefetch(loader, depth)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            for _ in ahead:
                pass

    run(5)
    before, memory = resource_counts(), resident_bytes()
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    run(1 + 1000 // len(loader))
    check_no_growth(before)
    assert resident_bytes() - memory < 8 << 20
    assert device.type == "cpu" or torch.cuda.memory_allocated(device) <= allocated + (1 << 20)

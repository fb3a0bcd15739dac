"""Loaders and loops that the tests of prefetching compare."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph_pyg.prefetching.native_iterator import NativeIterator
from peergraph_pyg.prefetching.prefetch_iterator import PrefetchIterator
from tests.adapters.pyg.graphs import random_data

AHEAD = (NativeIterator, PrefetchIterator)
"""The iterators whose batches are made ahead."""


def end_workers() -> None:
    """Ends workers that persist; collected with their queues, each would be waited for 5 s."""
    for each in gc.get_objects():
        if type(each) is _MultiProcessingDataLoaderIter:
            each._shutdown_workers()


def contents(batch: Any) -> dict[str, Any]:
    """The values of a batch by name, tensors on the CPU."""
    values = {}
    for storage in batch.stores:
        for name, value in storage.items():
            values[f"{storage._key} {name}"] = value.cpu() if isinstance(value, Tensor) else value
    return values


def assert_equal(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        a, b = contents(a), contents(b)
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, Tensor):
                assert torch.equal(value, b[name]), name
            else:
                assert value == b[name], name


def epochs(loader: Any, depth: int, count: int = 2) -> tuple[list[Any], Tensor]:
    """The batches of some epochs, and a random number of afterwards."""
    torch.manual_seed(5)
    ahead = peergraph_pyg.prefetch(loader, depth)
    return [batch for _ in range(count) for batch in ahead], torch.rand(3)


def node_loader(device: torch.device | str, **options: Any) -> NeighborLoader:
    shared = peergraph_pyg.share(random_data(), device=device)
    return NeighborLoader(shared, [3, 2], **{"batch_size": 7, "shuffle": True, **options})

"""Arguments of `prefetch`, the environment variable, and the loaders that prefetch by default."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NeighborSampler

import peergraph_pyg
from peergraph_pyg.loader import patches
from peergraph_pyg.prefetching.prefetch_iterator import PrefetchOptions
from tests.adapters.pyg.graphs import random_data
from tests.adapters.pyg.prefetching.loops import AHEAD, assert_equal, epochs, node_loader
from tests.named_case import named_cases


@named_cases(
    ("options", "error", "match"),
    [
        ({"priority": 1}, ValueError, "priority must be -1 or 0, got 1"),
        ({"priority": "low"}, TypeError, "priority must be an int"),
        ({"max_blocks": -1}, ValueError, "max_blocks must not be negative, got -1"),
        ({"max_blocks": 0.5}, TypeError, "max_blocks must be an int"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        peergraph_pyg.prefetch(node_loader("cpu"), 2, **options)


def test_default_options() -> None:
    options = peergraph_pyg.prefetch(node_loader("cpu"), 2).prefetch_options
    assert options == PrefetchOptions(priority=-1, max_blocks=None)
    assert options.blocks_on(torch.device("cpu")) == 0
    assert PrefetchOptions(max_blocks=5).blocks_on(torch.device("cuda", 0)) == 5


@pytest.mark.gpus(1)
def test_default_limit_of_blocks() -> None:
    device = torch.device("cuda", 0)
    count = torch.cuda.get_device_properties(device).multi_processor_count
    assert PrefetchOptions().blocks_on(device) == count > 0
    assert PrefetchOptions(max_blocks=0).blocks_on(device) == 0


@pytest.mark.parametrize("depth", [-1, 1.5, True, "2"])
def test_wrong_depth(depth: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="depth must"):
        peergraph_pyg.prefetch(node_loader("cpu"), depth)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = node_loader("cpu")
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "7")
    assert peergraph_pyg.prefetch(loader).depth == 7
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "many")
    with pytest.raises(ValueError, match="PEERGRAPH_PREFETCH must be .*'many'"):
        peergraph_pyg.prefetch(loader)


def test_cpu_loaders_do_not_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(iter(node_loader("cpu")), AHEAD)
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "2")
    assert not isinstance(iter(node_loader("cpu")), AHEAD)


class OtherSampler(BaseSampler):
    """Stands where a sampler of the user's own would."""

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError


def test_which_loaders_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of stores on GPUs; without a GPU, only the device's name is looked at."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    store = peergraph_pyg.store_of(shared)
    sampler = NeighborSampler(shared, [2])
    own = [
        NeighborLoader(shared, [2]),
        LinkNeighborLoader(shared, [2]),
        NodeLoader(shared, sampler),
        LinkLoader(peergraph_pyg.stores(store), sampler),
    ]
    other = [NodeLoader(shared, OtherSampler()), NodeLoader(random_data(), OtherSampler())]
    assert not any(patches.prefetches(loader) for loader in own + other)
    monkeypatch.setattr(store, "device", torch.device("cuda:0"))
    assert all(patches.prefetches(loader) for loader in own)
    assert not any(patches.prefetches(loader) for loader in other)


@pytest.mark.gpus(1)
def test_gpu_loaders_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = node_loader("cuda:0")
    assert isinstance(iter(loader), AHEAD)
    torch.manual_seed(5)
    results = [batch for _ in range(2) for batch in loader]
    assert_equal(epochs(loader, 0)[0], results)
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "0")
    assert not isinstance(iter(loader), AHEAD)
    assert not isinstance(iter(peergraph_pyg.prefetch(loader)), AHEAD)


def test_lengths(device: torch.device) -> None:
    loader = node_loader(device)
    ahead = peergraph_pyg.prefetch(loader, 2)
    assert len(ahead) == len(iter(ahead)) == len(loader) == len(list(ahead)) == 9
    assert ahead.batch_size == 7
    assert ahead([5, 6]).batch_size == 2
    assert peergraph_pyg.prefetch(loader).depth == 1
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ahead.nonsense


def test_depth_is_a_bound() -> None:
    batches: list[int] = []
    loader: Any = DataLoader(range(20), batch_size=1, collate_fn=lambda ids: batches.append(ids[0]))
    iterator = iter(peergraph_pyg.prefetch(loader, 3))
    for count in range(1, 5):
        next(iterator)
        deadline = time.monotonic() + 20
        while len(batches) < count + 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert batches == list(range(count + 3))


def test_copied_and_pickled_prefetchers() -> None:
    ahead = peergraph_pyg.prefetch(node_loader("cpu"), 4)
    list(ahead)
    for other in (copy.copy(ahead), pickle.loads(pickle.dumps(ahead))):
        assert other.depth == 4
        assert len(list(other)) == 9

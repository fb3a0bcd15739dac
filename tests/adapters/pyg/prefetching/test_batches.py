"""Batches made ahead by a thread are those that the loop would have made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph_pyg.prefetching.prefetcher import plain_iterator
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.adapters.pyg.prefetching.loops import (
    AHEAD,
    assert_equal,
    end_workers,
    epochs,
    node_loader,
)
from tests.held_resources import prefetch_threads


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
def test_same_batches(depth: int, device: torch.device) -> None:
    loader = node_loader(device)
    expected, number = epochs(loader, 0)
    actual, same_number = epochs(loader, depth)
    assert_equal(expected, actual)
    assert torch.equal(number, same_number)
    data = random_data()
    for batch in actual:
        check_batch(batch, data)


@pytest.mark.parametrize(("priority", "max_blocks"), [(0, 0), (-1, 1), (0, 40)])
def test_priority_and_blocks_change_no_batch(
    priority: int, max_blocks: int, device: torch.device
) -> None:
    loader = node_loader(device)
    expected, _ = epochs(loader, 0)
    torch.manual_seed(5)
    ahead = peergraph_pyg.prefetch(loader, 2, priority=priority, max_blocks=max_blocks)
    assert_equal([batch for _ in range(2) for batch in ahead], expected)


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_same_links(negatives: str, device: torch.device) -> None:
    """Negative samples come from torch's generator too."""
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=data.edge_index[:, :50],
        neg_sampling=negatives,
        batch_size=9,
        shuffle=True,
    )
    assert_equal(epochs(loader, 0)[0], epochs(loader, 3)[0])


def test_same_hetero(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_hetero(), device=device)
    loader = NeighborLoader(shared, [3, 2], input_nodes="paper", batch_size=6, shuffle=True)
    assert_equal(epochs(loader, 0)[0], epochs(loader, 2)[0])


@pytest.mark.parametrize(("filter_per_worker", "persistent"), [(False, True), (True, False)])
def test_workers(filter_per_worker: bool, persistent: bool) -> None:
    options = {"filter_per_worker": filter_per_worker, "persistent_workers": persistent}

    def batches(depth: int) -> list[Any]:
        # Workers that persist remember their random state: new ones for each run.
        result = epochs(node_loader("cpu", num_workers=2, **options), depth)[0]
        end_workers()
        return result

    assert_equal(batches(0), batches(2))
    for batch in peergraph_pyg.prefetch(node_loader("cpu", num_workers=2, **options), 2):
        assert batch.num_nodes > 0
        break
    end_workers()


def test_persistent_workers_start_again() -> None:
    loader = peergraph_pyg.prefetch(
        node_loader("cpu", num_workers=1, persistent_workers=True, shuffle=False), 2
    )
    unfinished = iter(loader)
    next(unfinished)
    ids = torch.cat([batch.input_id for batch in loader])
    assert torch.equal(ids, torch.arange(60))
    with pytest.raises(StopIteration):
        next(unfinished)
    end_workers()


def test_two_loops_at_once(device: torch.device) -> None:
    loader = node_loader(device, shuffle=False)
    ahead = peergraph_pyg.prefetch(loader, 2)
    data = random_data()
    pairs = 0
    for first, second in zip(ahead, ahead, strict=True):
        assert torch.equal(first.input_id, second.input_id)
        check_batch(first, data)
        check_batch(second, data)
        pairs += 1
    assert pairs == len(loader)
    for outer in ahead:
        assert sum(inner.batch_size for inner in ahead) == 60
        check_batch(outer, data)


def test_grad_modes_are_those_of_the_loop() -> None:
    modes = []

    def look(batch: Data) -> Data:
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return batch

    ahead = peergraph_pyg.prefetch(node_loader("cpu", transform=look, batch_size=60), 1)
    list(ahead)
    with torch.no_grad():
        list(ahead)
    with torch.inference_mode():
        list(ahead)
    assert modes == [(True, False), (False, False), (False, True)]
    assert torch.is_grad_enabled()


def test_autocast_is_that_of_the_loop() -> None:
    dtypes = []

    def look(batch: Data) -> Data:
        dtypes.append((batch.x @ batch.x.t()).dtype)
        return batch

    ahead = peergraph_pyg.prefetch(node_loader("cpu", transform=look, batch_size=60), 1)
    list(ahead)
    with torch.autocast("cpu", torch.bfloat16):
        list(ahead)
    assert dtypes == [torch.float32, torch.bfloat16]


@pytest.mark.usefixtures("all_prefetch")
def test_the_ordinary_loop(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    store = peergraph_pyg.store_of(shared)
    typed = peergraph_pyg.share(random_hetero(), device=device)
    links = {"batch_size": 90, "shuffle": True, "neg_sampling": "binary"}
    loaders = [
        NeighborLoader(shared, [3, 2], batch_size=7, shuffle=True),
        NeighborLoader(peergraph_pyg.stores(store), [3, 2], batch_size=7),
        NeighborLoader(typed, [3, 2], input_nodes="paper", batch_size=6, shuffle=True),
        LinkNeighborLoader(shared, [3, 2], **links),
    ]
    for loader in loaders:
        expected, number = epochs(loader, 0)
        torch.manual_seed(5)
        assert isinstance(iter(loader), AHEAD)
        torch.manual_seed(5)
        results = [batch for _ in range(2) for batch in loader]
        assert_equal(expected, results)
        assert torch.equal(number, torch.rand(3))
        monkeypatch.setenv("PEERGRAPH_PREFETCH", "0")
        assert not isinstance(iter(loader), AHEAD)
        monkeypatch.delenv("PEERGRAPH_PREFETCH")


@pytest.mark.usefixtures("all_prefetch")
def test_a_first_batch_alone(device: torch.device) -> None:
    """`next(iter(loader))` leaves nothing behind."""
    loader = node_loader(device)
    before = prefetch_threads()
    torch.manual_seed(2)
    first, number = next(plain_iterator(loader)), torch.rand(1)
    torch.manual_seed(2)
    assert_equal([first], [next(iter(loader))])
    assert torch.equal(number, torch.rand(1))
    assert prefetch_threads() == before

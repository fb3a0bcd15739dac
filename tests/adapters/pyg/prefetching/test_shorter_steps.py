"""Batches that the thread and the loop make in turns are those of one of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")

import peergraph_pyg
from peergraph_pyg.prefetching.prefetch_iterator import PrefetchIterator
from peergraph_pyg.prefetching.prefetcher import _way_of, plain_iterator
from peergraph_pyg.prefetching.shorter_steps import ShorterSteps
from tests.adapters.pyg.prefetching.loops import assert_equal, node_loader

CPU = torch.device("cpu")


class Turns(ShorterSteps):
    """Changes at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)

    def count_step(self) -> None:
        self.by_thread = self._draw.random() < 0.5


def batches_of(
    loader: Any, way: ShorterSteps | None, draws: int, device: torch.device = CPU
) -> tuple[list[Any], torch.Tensor]:
    """Two epochs of a loop that draws a number after every `draws` batches."""
    torch.manual_seed(5)
    batches = []
    for _ in range(2):
        for batch in PrefetchIterator(plain_iterator(loader), 1, device, way=way):
            batches.append(batch)
            if draws and len(batches) % draws == 0:
                torch.rand(1)
    return batches, torch.rand(3)


@pytest.mark.parametrize("draws", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_batches_and_random_numbers_are_the_same(seed: int, draws: int) -> None:
    loader = node_loader("cpu")
    expected, after = batches_of(loader, None, draws)
    batches, after_turns = batches_of(loader, Turns(seed), draws)
    assert_equal(batches, expected)
    assert torch.equal(after, after_turns)


@pytest.mark.gpus(1)
def test_anything_that_is_iterated_on_cuda() -> None:
    torch.zeros(1, device="cuda")  # the thread has a stream then
    for batches in (range(50), [1, 2, 3]):
        assert list(peergraph_pyg.prefetch(batches)) == [*batches]


def test_loops_over_ranges_and_lists_start_anew() -> None:
    for batches in (range(3), [1, 2]):
        assert _way_of(batches) is not _way_of(batches)
    loader = node_loader("cpu")
    assert _way_of(loader) is _way_of(loader)


@pytest.mark.gpus(1)
def test_batches_are_the_same_on_cuda() -> None:
    loader, device = node_loader("cuda"), torch.device("cuda", 0)
    expected, after = batches_of(loader, None, 3, device)
    batches, after_turns = batches_of(loader, Turns(1), 3, device)
    assert_equal(batches, expected)
    assert torch.equal(after, after_turns)


def test_errors_and_closed_stores_end_loops_that_make_batches() -> None:
    class Fails:
        def __iter__(self) -> Any:
            yield 1
            yield 2
            raise KeyError("third")

    class Loop(ShorterSteps):
        def count_step(self) -> None:
            self.by_thread = False

    batches = PrefetchIterator(iter(Fails()), 1, CPU, way=Loop())
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)

    loader = node_loader("cpu")
    store = loader.node_sampler.store
    iterator = PrefetchIterator(plain_iterator(loader), 1, CPU, None, store, way=Loop())
    store.register_reader(iterator)
    next(iterator)
    next(iterator)
    store.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        next(iterator)


@pytest.mark.parametrize("faster", ["thread", "loop", "neither"])
def test_the_way_with_shorter_steps_is_taken(faster: str) -> None:
    now = [0.0]
    way = ShorterSteps(lambda: now[0])
    draw = random.Random(0)
    cost = {"thread": (1.0, 2.0), "loop": (2.0, 1.0), "neither": (1.0, 1.0)}[faster]
    ways = []
    for step in range(1200):
        if step % 100 == 0:  # evaluation between epochs
            now[0] += 1000
            way.begin_iteration()
        way.count_step()
        ways.append(way.by_thread)
        now[0] += (cost[0] if way.by_thread else cost[1]) * draw.uniform(0.95, 1.05)
    share = sum(ways) / len(ways)
    if faster == "loop":
        assert share < 0.06
        now_slower = (1.0, 3.0)
        for _ in range(600):
            way.count_step()
            now[0] += now_slower[0] if way.by_thread else now_slower[1]
        assert way.by_thread
    elif faster == "thread":
        assert share > 0.95

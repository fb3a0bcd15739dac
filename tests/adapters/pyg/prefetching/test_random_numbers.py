"""Loops and threads draw the random numbers that they would draw without prefetching."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from tests.adapters.pyg.prefetching.loops import assert_equal, epochs, node_loader


def test_random_transform(device: torch.device) -> None:
    def noise(batch: Data) -> Data:
        batch.noise = torch.rand(4) + torch.randn_like(torch.ones(4)) + torch.empty(4).uniform_()
        batch.order = torch.randperm(batch.num_nodes)
        return batch

    loader = node_loader(device, transform=noise)
    assert_equal(epochs(loader, 0)[0], epochs(loader, 2)[0])


def test_random_transform_on_the_gpu_is_reproducible(device: torch.device) -> None:
    loader = node_loader(
        device, transform=lambda batch: batch.update({"n": torch.rand_like(batch.x)})
    )
    assert_equal(epochs(loader, 2)[0], epochs(loader, 2)[0])


def test_loop_that_draws_random_numbers(device: torch.device) -> None:
    """They are the loop's own, and everything is determined by the seed."""
    loader = node_loader(device)

    def run(delay: float) -> tuple[list[Any], list[Tensor]]:
        torch.manual_seed(3)
        batches, numbers = [], []
        for _ in range(2):
            for batch in peergraph_pyg.prefetch(loader, 2):
                time.sleep(delay)
                batches.append(batch)
                numbers.append(torch.rand(2))
        return batches, numbers

    (first, numbers), (second, same_numbers) = run(0.0), run(0.003)
    assert_equal(first, second)
    assert torch.equal(torch.stack(numbers), torch.stack(same_numbers))
    assert len(torch.cat(numbers).unique()) == 2 * len(numbers)
    assert not torch.equal(first[0].e_id, first[9].e_id)


def test_random_state_after_break(device: torch.device) -> None:
    loader = node_loader(device)

    def number_after_two(depth: int) -> Tensor:
        torch.manual_seed(1)
        for i, _ in enumerate(peergraph_pyg.prefetch(loader, depth)):
            if i == 1:
                break
        return torch.rand(3)

    assert torch.equal(number_after_two(0), number_after_two(3))


def test_generator_of_the_loader(device: torch.device) -> None:
    generator = torch.Generator()
    loader = node_loader(device, generator=generator)

    def order(depth: int) -> Tensor:
        generator.manual_seed(4)
        return torch.cat([batch.input_id for batch in peergraph_pyg.prefetch(loader, depth)])

    assert torch.equal(order(0), order(2))

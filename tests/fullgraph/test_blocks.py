"""Blocks of an order: contiguous, balanced by nodes and edges."""

from __future__ import annotations

import itertools

import pytest
import torch

from peergraph.fullgraph.layout.blocks import balance_cost, cut_blocks, imbalance
from peergraph.fullgraph.layout.numbering import random_order
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, edge_graphs


def best_bottleneck(cost: torch.Tensor, world_size: int) -> float:
    """The least cost of the most expensive block, over all ways to cut."""
    before = [0.0, *cost.cumsum(0).tolist()]
    rows = cost.numel()
    return min(
        max(before[b] - before[a] for a, b in itertools.pairwise((0, *cuts, rows)))
        for cuts in itertools.combinations_with_replacement(range(rows + 1), world_size - 1)
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_blocks_are_balanced(world_size: int) -> None:
    for name, edges in edge_graphs().items():
        with named_case(name):
            degrees = torch.bincount(edges[1].long(), minlength=NUM_NODES)
            cost = balance_cost(degrees)
            counts = cut_blocks(cost, world_size)
            assert len(counts) == world_size
            assert sum(counts) == NUM_NODES
            assert float(cost.sum()) == pytest.approx(1.0)
            blocks = cost.split(list(counts))
            largest = max(float(block.sum()) for block in blocks)
            assert largest <= 1 / world_size + float(cost.max()) + 1e-9
            edges_of = degrees.split(list(counts))
            for block, own in zip(blocks, edges_of, strict=True):
                share = float(block.sum())
                assert block.numel() / NUM_NODES <= 2 * share + 1e-9
                assert int(own.sum()) <= 2 * share * int(degrees.sum()) + 1e-9


def test_bottleneck_is_close_to_the_best() -> None:
    random = torch.Generator().manual_seed(0)
    for number in range(20):
        cost = torch.rand(14, generator=random, dtype=torch.float64) ** 3
        with named_case(number):
            largest = max(float(b.sum()) for b in cost.split(list(cut_blocks(cost, 3))))
            assert largest <= best_bottleneck(cost, 3) + float(cost.max()) / 2


def test_few_rows_give_empty_blocks() -> None:
    for rows in range(5):
        with named_case(rows):
            counts = cut_blocks(torch.full((rows,), 0.1, dtype=torch.float64), 4)
            assert counts == tuple(int(rank < rows) for rank in range(4))


def test_rows_without_cost_are_all_placed() -> None:
    assert sum(cut_blocks(torch.zeros(10), 3)) == 10


def test_a_hub_is_a_block_by_itself() -> None:
    cost = torch.ones(31, dtype=torch.float64)
    cost[0] = 100
    assert cut_blocks(cost, 4) == (1, 10, 10, 10)
    last = cost.flip(0)
    assert max(float(block.sum()) for block in last.split(list(cut_blocks(last, 4)))) == 100


def test_random_order_balances_sorted_degrees() -> None:
    degrees = torch.arange(4000)
    order = random_order(4000, seed=0)
    counts = cut_blocks(balance_cost(degrees[order]), 4)
    assert imbalance(counts) < 1.05
    assert imbalance([int(d.sum()) for d in degrees[order].split(list(counts))]) < 1.05
    assert imbalance([]) == imbalance([0, 0]) == 1.0
    assert imbalance([3, 1]) == 1.5

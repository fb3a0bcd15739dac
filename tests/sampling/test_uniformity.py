"""Every subset of neighbours is equally likely, and so is every order of it."""

from __future__ import annotations

from math import comb, perm

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_cases
from tests.sampling.plain_store import EDGE, NODE, PlainStore, csc_with_degrees
from tests.sampling.uniformity import assert_uniform


def sampled_neighbors(
    degree: int, fanout: int, times: int, device: torch.device, seed: int
) -> np.ndarray:
    """[times, fanout] neighbours of one node, each time as a seed of its own."""
    store = PlainStore.homogeneous(csc_with_degrees([degree]), device=device)
    sample = NeighborSampler(store, [fanout], edge_ids=False).sample(
        torch.zeros(times, dtype=torch.int64), seed
    )
    assert sample.num_sampled_edges[EDGE] == [times * fanout]
    return sample.nodes[NODE][sample.row[EDGE]].view(times, fanout).cpu().numpy()


@named_cases(
    ("degree", "fanout"),
    [
        *[(2, 1), (3, 2), (4, 2), (5, 3), (5, 4), (9, 8), (7, 3), (60, 2), (400, 1)],
        *[(12, 10), (17, 16), (33, 32), (20, 17), (34, 33), (36, 34), (101, 100), (65, 64)],
    ],
)
def test_subsets(device: torch.device, degree: int, fanout: int) -> None:
    subsets = comb(degree, fanout)
    drawn = sampled_neighbors(degree, fanout, max(3000, 12 * subsets), device, seed=degree)
    assert_uniform(np.sort(drawn, axis=1), subsets)


@pytest.mark.parametrize(("degree", "fanout"), [(3, 2), (4, 3), (6, 3), (30, 2)])
def test_orders(device: torch.device, degree: int, fanout: int) -> None:
    drawn = sampled_neighbors(degree, fanout, 20 * perm(degree, fanout), device, seed=3)
    assert_uniform(drawn, perm(degree, fanout))


@pytest.mark.parametrize("fanout", [1, 5, 40])
def test_degree_far_above_the_fanout(device: torch.device, fanout: int) -> None:
    drawn = sampled_neighbors(100_000, fanout, 40_000 // fanout, device, seed=fanout)
    assert_uniform(drawn.reshape(-1, 1) // 1000, 100)
    assert all(np.unique(row).size == fanout for row in drawn[:200])


@pytest.mark.parametrize(("degree", "fanout"), [(5, 2), (6, 5), (35, 33)])
def test_last_of_several_hops(device: torch.device, degree: int, fanout: int) -> None:
    # Node 0 has one neighbour, node 1, whose neighbours are 2 .. degree + 1. Disjoint, so that
    # every seed finds node 1 for itself.
    csc = csc_with_degrees([1, degree], degree + 2)
    csc.indices[:1] = 1
    csc.indices[1:] = np.arange(2, degree + 2)
    store = PlainStore.homogeneous(csc, device=device)
    sampler = NeighborSampler(store, [3, fanout], disjoint=True)
    times = 20 * comb(degree, fanout)
    sample = sampler.sample(torch.zeros(times, dtype=torch.int64), 9)
    block = sample.block(1)
    drawn = sample.nodes[NODE][block.row].view(times, fanout).cpu().numpy()
    assert_uniform(np.sort(drawn, axis=1), comb(degree, fanout))


def test_calls_with_different_seeds_are_independent(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([4]), device=device)
    sampler = NeighborSampler(store, [1])
    seed_node = torch.zeros(1, dtype=torch.int64)
    pairs = [
        [int(sampler.sample(seed_node, 2 * k + i).nodes[NODE][-1]) for i in (0, 1)]
        for k in range(400)
    ]
    assert_uniform(np.array(pairs), 16)

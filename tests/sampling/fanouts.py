"""Fanouts around every limit of the samplers, and samplers that take them."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from peergraph.sampling import NeighborSampler
from tests.sampling.plain_store import LAYOUTS, PlainStore, random_csc

FANOUTS: list[list[int]] = [
    *([1], [-1, -1], [0, 4], [4, 0, 4], [2, -1, 3]),
    *([33, 2], [100, 5], [64, 31, 1], [3000], []),
]
FRONTIERS = list(product(["new", "all"], [False, True]))
"""Kinds of frontiers, and whether samples are disjoint."""
SEEDS = torch.tensor([3, 3, 117, 0, 3, 50])


def small_sampler(
    fanouts: list[int], frontier: str, disjoint: bool, device: torch.device
) -> tuple[PlainStore, NeighborSampler]:
    """A store of 120 nodes, and a sampler of it that counts duplicates."""
    csc = random_csc(np.random.default_rng(2), 120, 120, 40, own_edge_ids=False)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    options = {"frontier": frontier, "disjoint": disjoint, "duplicate_counts": True}
    return store, NeighborSampler(store, fanouts, **options)

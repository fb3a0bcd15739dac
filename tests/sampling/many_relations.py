"""Graphs of many relations between a few types."""

from __future__ import annotations

import numpy as np
import torch

from peergraph.reference.sampling import Csc
from tests.sampling.plain_store import PlainStore, random_csc

NUM_RELATIONS = 43
NUM_NODES = {"a": 50, "empty": 0, "b": 35, "isolated": 4, "c": 9}
# One or more for every kernel that draws: groups of lanes, blocks, blocks with memory of their own.
FANOUTS = [3, 0, -1, 1, 5, 8, 9, 17, 33, 100, 4, 32, 2500]
SEEDS = {"b": torch.tensor([7, 7, 34, 0]), "isolated": torch.tensor([3]), "a": torch.arange(3)}

EdgeType = tuple[str, str, str]


def random_relations(rng: np.random.Generator, count: int) -> dict[EdgeType, Csc]:
    """Relations between random types; every fifth has no edges."""
    types = ["a", "b", "c", "empty"]
    relations = {}
    for i in range(count):
        source, destination = rng.choice(types, 2, p=[0.4, 0.35, 0.2, 0.05])
        degree = 0 if i % 5 == 4 else rng.choice([0.3, 2, 12])
        sizes = NUM_NODES[source], NUM_NODES[destination]
        csc = random_csc(rng, *sizes, degree, own_edge_ids=bool(i % 2))
        relations[source, f"relation {i}", destination] = csc
    return relations


def random_fanouts(rng: np.random.Generator, store: PlainStore, hops: int) -> dict[EdgeType, list]:
    return {t: rng.choice(FANOUTS, hops).tolist() for t in store.edge_types}

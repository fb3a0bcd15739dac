"""A graph for walks, and the chances of what they draw."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from peergraph.reference.sampling import Csc
from tests.sampling.plain_store import random_csc

# Fixed seeds, so a test passes always or never; a right walker misses this once in 10,000.
LEAST_P = 1e-4
TYPES = {"item": 40, "user": 60, "tag": 9}
BY = ("user", "buys", "item")
OF = ("item", "bought by", "user")
TAGS = ("tag", "on", "item")
RELATIONS = {
    BY: random_csc(np.random.default_rng(1), 60, 40, 5),
    OF: random_csc(np.random.default_rng(2), 40, 60, 4, own_edge_ids=False),
    TAGS: random_csc(np.random.default_rng(3), 9, 40, 3),
}


def csc_of(lists: list[list[int]]) -> Csc:
    """Node d has the in-neighbours lists[d]."""
    indptr = np.cumsum([0, *map(len, lists)])
    return Csc(indptr.astype(np.int64), np.array([n for x in lists for n in x], dtype=np.int64))


def assert_chances(drawn: np.ndarray, chances: dict[int, float]) -> None:
    """Chi-square test of values that should come with these chances."""
    values, counts = np.unique(drawn, return_counts=True)
    assert set(values.tolist()) <= set(chances)
    count_of = dict(zip(values.tolist(), counts.tolist(), strict=True))
    total = sum(chances.values())
    statistic = sum(
        (count_of.get(value, 0) - drawn.size * c / total) ** 2 / (drawn.size * c / total)
        for value, c in chances.items()
    )
    assert chi2.sf(statistic, len(chances) - 1) > LEAST_P

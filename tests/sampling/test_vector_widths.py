"""On the CPU, samples are the specification's for any width of vectors and number of threads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_case
from tests.sampling.plain_store import LAYOUTS, NODE, PlainStore, random_csc
from tests.sampling.reference_samples import assert_equals_reference
from tests.sampling.weighted_temporal_kinds import prepare
from tests.vector_width import running


# A small fanout compares each draw with those before, a large one shuffles; and lists of neighbours
# are much longer than the fanout, or not.
@pytest.mark.parametrize(
    ("kind", "fanouts"),
    [
        ((), [6, 3]),
        ((), [25, 7]),
        ((), [70]),
        (("weights",), [6, 3]),
        (("weights",), [25, 7]),
        (("weights",), [70]),
    ],
    ids=str,
)
def test_widths(kind: tuple[str, ...], fanouts: list[int]) -> None:
    for vector_bytes, threads in product([16, 32, 64], [1, 3]):
        with named_case("bytes", vector_bytes, "threads", threads):
            rng = np.random.default_rng(31)
            store = PlainStore.homogeneous(
                random_csc(rng, 1500, 1500, 60),
                layout=LAYOUTS["three tiers"],
                device=torch.device("cpu"),
            )
            options, choices = prepare(store, rng, kind)
            sampler = NeighborSampler(store, fanouts, **options)
            seeds = {NODE: torch.from_numpy(rng.integers(0, 1500, 40))}
            with running(vector_bytes, threads):
                assert_equals_reference(store, sampler, seeds, 9, choices=choices if kind else None)

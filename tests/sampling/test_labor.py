"""Layer-neighbour sampling: each target's neighbours are random, and targets agree on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_cases
from tests.sampling.plain_store import EDGE, NODE, PlainStore, csc_with_degrees, random_csc
from tests.sampling.uniformity import assert_uniform


def test_each_set_is_as_likely(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([5]), device=device)
    sampler = NeighborSampler(store, [2], labor=True)
    outcomes = []
    for seed in range(3000):
        sample = sampler.sample(torch.tensor([0]), seed)
        outcomes.append(sample.nodes[NODE][sample.row[EDGE]].tolist())
    assert_uniform(np.array(outcomes), 10)


def test_targets_of_one_list_take_the_same(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([40]), device=device)
    sample = NeighborSampler(store, [7], labor=True).sample(torch.zeros(9, dtype=torch.int64), 3)
    sources = sample.nodes[NODE][sample.row[EDGE]].view(9, 7)
    assert (sources == sources[0]).all()


def test_fewer_nodes_than_without(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(4), 400, 400, 60)
    store = PlainStore.homogeneous(csc, device=device)
    seeds = torch.arange(100)

    def nodes(**options: bool) -> int:
        return NeighborSampler(store, [6, 6], **options).sample(seeds, 1).nodes[NODE].numel()

    assert nodes(labor=True, layer_dependency=True) < nodes(labor=True) < nodes()


@named_cases(
    ("options", "message"),
    [
        ({"layer_dependency": True}, "layer_dependency: needs labor"),
        ({"labor": True, "replace": True}, "labor: not with replace"),
        (
            {"labor": True, "node_time": "t", "temporal_strategy": "last"},
            "labor: not with temporal_strategy",
        ),
    ],
)
def test_errors(device: torch.device, options: dict[str, object], message: str) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([2, 1]), device=device)
    store.add_table(NODE, "t", np.arange(2))
    with pytest.raises(ValueError, match=message):
        NeighborSampler(store, [2], **options)

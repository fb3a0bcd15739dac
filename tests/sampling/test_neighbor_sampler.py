"""NeighborSampler against its specification (peergraph.reference.sampling), exactly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_case, named_cases
from tests.sampling.fanouts import FANOUTS, FRONTIERS, SEEDS, small_sampler
from tests.sampling.plain_store import (
    EDGE,
    INDEX_DTYPES,
    LAYOUT_PARAMS,
    LAYOUTS,
    NODE,
    Layout,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.reference_samples import RELATIONS, assert_equals_reference, typed_store


@named_cases("layout", LAYOUT_PARAMS)
def test_homogeneous(device: torch.device, layout: Layout) -> None:
    for index_dtype in INDEX_DTYPES:
        with named_case(index_dtype):
            rng = np.random.default_rng(1)
            csc = random_csc(rng, 300, 300, 9)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            sampler = NeighborSampler(store, [5, 3, 7], duplicate_counts=True)
            seeds = torch.from_numpy(rng.integers(0, 300, 23)).to(index_dtype)
            assert_equals_reference(store, sampler, {NODE: seeds}, 5)


@named_cases("fanouts", FANOUTS)
def test_fanouts(device: torch.device, fanouts: list[int]) -> None:
    for frontier, disjoint in FRONTIERS:
        with named_case(frontier, disjoint):
            store, sampler = small_sampler(fanouts, frontier, disjoint, device)
            assert_equals_reference(store, sampler, {NODE: SEEDS}, 2**64 - 1)


@named_cases(
    ("fanout", "degree"),
    [(33, 5000), (3000, 3001), (3000, 20_000), (5000, 5001), (2047, 2048), (7, 2048), (7, 2049)],
)
def test_large_fanout_draws(device: torch.device, fanout: int, degree: int) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([degree, fanout, 0, 1]), device=device)
    sampler = NeighborSampler(store, [fanout], duplicate_counts=True)
    assert_equals_reference(store, sampler, {NODE: torch.arange(4)}, 8)


@pytest.mark.parametrize("disjoint", [False, True])
def test_many_targets_with_a_large_fanout(device: torch.device, disjoint: bool) -> None:
    # Targets times fanout is far more than there are edges: no room may be reserved by the fanout.
    store = PlainStore.homogeneous(csc_with_degrees([20_001, 4, 0, 1]), device=device)
    sampler = NeighborSampler(store, [20_000], disjoint=disjoint, duplicate_counts=True)
    seeds = torch.tensor([0, 1, 2, 3] * 75)
    seeds[8::4] = 1
    assert_equals_reference(store, sampler, {NODE: seeds}, 8)


@pytest.mark.parametrize("layout", ["single", "three tiers"])
def test_heterogeneous(device: torch.device, layout: str) -> None:
    for frontier, disjoint in product(["new", "all"], [False, True]):
        with named_case(frontier, disjoint):
            rng = np.random.default_rng(3)
            store = typed_store(rng, device, layout)
            fanouts = {t: [3 + i, (-1, 0, 2)[i % 3], 4] for i, t in enumerate(RELATIONS)}
            sampler = NeighborSampler(
                store,
                fanouts,
                frontier=frontier,
                disjoint=disjoint,
                duplicate_counts=True,
                index_dtype=torch.int32,
            )
            seeds = {"paper": torch.tensor([5, 5, 80]), "topic": torch.tensor([6, 0, 6])}
            assert_equals_reference(store, sampler, seeds, 17)


def test_random_small_graphs(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    for trial in range(40):
        n = int(rng.integers(1, 60))
        csc = random_csc(rng, n, n, rng.integers(1, 20), own_edge_ids=bool(trial % 2))
        layout = list(LAYOUTS.values())[trial % len(LAYOUTS)]
        store = PlainStore.homogeneous(csc, layout=layout, device=device)
        sampler = NeighborSampler(
            store,
            rng.integers(-1, 12, rng.integers(1, 4)).tolist(),
            frontier=("new", "all")[trial // 2 % 2],
            disjoint=bool(trial // 4 % 2),
            edge_ids=bool(trial % 3),
            duplicate_counts=bool(trial % 5),
        )
        seeds = torch.from_numpy(rng.integers(0, n, rng.integers(0, 9)))
        assert_equals_reference(store, sampler, {NODE: seeds}, trial)


def test_seeds_on_the_device(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(5), 50, 50, 5)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    sampler = NeighborSampler(store, [3, 3])
    assert_equals_reference(store, sampler, {NODE: torch.arange(50, device=device)}, 0)
    with pytest.raises(IndexError, match=r"seeds\[1\] = 50 is out of range for 50 nodes"):
        sampler.sample(torch.tensor([4, 50, 51], device=device), 0)
    # The sampler is as good as new afterwards.
    assert_equals_reference(store, sampler, {NODE: torch.arange(50, device=device)}, 0)


def test_no_seeds(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([3, 1, 0]), device=device)
    sample = NeighborSampler(store, [2, 2], duplicate_counts=True).sample(
        torch.empty(0, dtype=torch.int64), 1
    )
    assert sample.num_sampled_nodes == {NODE: [0, 0, 0]}
    assert sample.num_sampled_edges == {EDGE: [0, 0]}
    assert sample.nodes[NODE].shape == sample.row[EDGE].shape == (0,)
    assert sample.block(1).indptr.tolist() == [0]


def test_graph_without_edges(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([0, 0, 0]), device=device)
    sampler = NeighborSampler(store, [2, -1])
    assert_equals_reference(store, sampler, {NODE: torch.tensor([2, 0])}, 1)


def test_every_edge_exists(device: torch.device) -> None:
    rng = np.random.default_rng(6)
    csc = random_csc(rng, 200, 200, 30)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    sample = NeighborSampler(store, [10, 10]).sample(torch.arange(40), 3)
    by_id = np.empty((csc.indices.size, 2), np.int64)
    by_id[csc.edge_ids, 0] = csc.indices
    by_id[csc.edge_ids, 1] = np.repeat(np.arange(200), np.diff(csc.indptr))
    nodes = sample.nodes[NODE]
    ends = torch.stack([nodes[sample.row[EDGE]], nodes[sample.col[EDGE]]], 1).cpu()
    assert torch.equal(ends, torch.from_numpy(by_id)[sample.edge_ids[EDGE].cpu()])
    # Without replacement: no target has an edge twice.
    assert torch.unique(sample.edge_ids[EDGE]).numel() == sample.edge_ids[EDGE].numel()
    assert sample.block(0).num_targets == 40

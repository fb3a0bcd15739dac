"""subgraph="induced": all edges among the sampled nodes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_case, named_cases
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
from tests.sampling.weighted_temporal_kinds import each_kind, prepare, times_of


@named_cases("layout", LAYOUT_PARAMS)
def test_homogeneous(device: torch.device, layout: Layout) -> None:
    for index_dtype, disjoint in product(INDEX_DTYPES, [False, True]):
        with named_case(index_dtype, "disjoint", disjoint):
            rng = np.random.default_rng(31)
            csc = random_csc(rng, 120, 120, 9)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            sampler = NeighborSampler(
                store, [3, 2], subgraph="induced", disjoint=disjoint, index_dtype=index_dtype
            )
            seeds = torch.tensor([3, 3, 117, 0, 50])
            assert_equals_reference(store, sampler, {NODE: seeds}, 5)


def test_against_numpy(device: torch.device) -> None:
    rng = np.random.default_rng(32)
    csc = random_csc(rng, 90, 90, 12)
    store = PlainStore.homogeneous(csc, device=device)
    sample = NeighborSampler(store, [4, 3], subgraph="induced").sample(torch.arange(6), 1)
    nodes = sample.nodes[NODE].cpu().numpy()
    source, destination = csc.indices, np.repeat(np.arange(90), np.diff(csc.indptr))
    inside = np.isin(source, nodes) & np.isin(destination, nodes)
    ids = sample.edge_ids[EDGE].cpu().numpy()
    assert sorted(ids) == sorted(csc.edge_ids[inside])
    position = np.argsort(csc.edge_ids)[ids]
    assert (nodes[sample.row[EDGE].cpu()] == source[position]).all()
    assert (nodes[sample.col[EDGE].cpu()] == destination[position]).all()
    assert sample.num_sampled_edges[EDGE] == [inside.sum()]


def test_heterogeneous(device: torch.device) -> None:
    for frontier, disjoint in product(["new", "all"], [False, True]):
        with named_case(frontier, disjoint):
            rng = np.random.default_rng(33)
            store = typed_store(rng, device)
            fanouts = {t: [3 + i, (-1, 0, 2)[i % 3]] for i, t in enumerate(RELATIONS)}
            sampler = NeighborSampler(
                store, fanouts, frontier=frontier, disjoint=disjoint, subgraph="induced"
            )
            for seeds in ({"paper": torch.tensor([5, 5, 80])}, {"topic": torch.tensor([6, 0, 6])}):
                assert_equals_reference(store, sampler, seeds, 17)


@each_kind
def test_with_other_choices(device: torch.device, kind: tuple[str, ...]) -> None:
    rng = np.random.default_rng(34)
    store = PlainStore.homogeneous(
        random_csc(rng, 70, 70, 14), layout=LAYOUTS["three tiers"], device=device
    )
    options, choices = prepare(store, rng, kind)
    sampler = NeighborSampler(store, [5, 4], subgraph="induced", **options)
    seeds = {NODE: torch.tensor([3, 3, 57, 0])}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 3, choices=choices, seed_time=times)


@pytest.mark.parametrize("disjoint", [False, True])
def test_hubs(device: torch.device, disjoint: bool) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([3000, 257, 256, 33, 1, 0]), device=device)
    sampler = NeighborSampler(store, [50], subgraph="induced", disjoint=disjoint)
    assert_equals_reference(store, sampler, {NODE: torch.arange(6)}, 8)


def test_empty(device: torch.device) -> None:
    for fanouts, disjoint in product([[], [0], [2]], [False, True]):
        with named_case(fanouts, "disjoint", disjoint):
            for degrees in ([0, 0, 0], [2, 1, 2]):
                store = PlainStore.homogeneous(csc_with_degrees(degrees), device=device)
                sampler = NeighborSampler(
                    store, fanouts, subgraph="induced", disjoint=disjoint, edge_ids=False
                )
                for ids in ([], [1, 1, 2]):
                    seeds = {NODE: torch.tensor(ids, dtype=torch.int64)}
                    assert_equals_reference(store, sampler, seeds, 1)


def test_the_work_space_is_clean_afterwards(device: torch.device) -> None:
    rng = np.random.default_rng(35)
    store = PlainStore.homogeneous(random_csc(rng, 200, 200, 9), device=device)
    sampler = NeighborSampler(store, [3, 3], subgraph="induced")
    for k in range(3):
        assert_equals_reference(store, sampler, {NODE: torch.arange(k, 200, 40)}, k)


def test_errors(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([1]), device=device)
    with pytest.raises(ValueError, match="subgraph: expected 'directional' or 'induced', got 'x'"):
        NeighborSampler(store, [1], subgraph="x")
    with pytest.raises(ValueError, match="duplicate_counts: an induced subgraph keeps no"):
        NeighborSampler(store, [1], subgraph="induced", duplicate_counts=True)

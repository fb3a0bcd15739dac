"""Graphs of many relations: on a GPU all relations of a hop are sampled at once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from peergraph.reference.sampling import Csc
from peergraph.sampling import NeighborSampler
from tests.named_case import named_case
from tests.sampling.many_relations import (
    NUM_NODES,
    NUM_RELATIONS,
    SEEDS,
    random_fanouts,
    random_relations,
)
from tests.sampling.plain_store import LAYOUTS, PlainStore, random_csc
from tests.sampling.reference_samples import assert_equals_reference
from tests.sampling.weighted_temporal_kinds import each_kind, prepare, times_of


@pytest.mark.parametrize("layout", ["single", "three tiers"])
def test_fanouts_by_relation(device: torch.device, layout: str) -> None:
    for frontier, disjoint in product(["new", "all"], [False, True]):
        with named_case(frontier, disjoint):
            rng = np.random.default_rng(61)
            relations = random_relations(rng, NUM_RELATIONS)
            store = PlainStore(NUM_NODES, relations, layout=LAYOUTS[layout], device=device)
            options = {"frontier": frontier, "disjoint": disjoint, "duplicate_counts": True}
            fanouts = random_fanouts(rng, store, 2)
            sampler = NeighborSampler(store, fanouts, index_dtype=torch.int32, **options)
            for seed in range(2):
                assert_equals_reference(store, sampler, SEEDS, seed)


def test_one_type(device: torch.device) -> None:
    # All relations find the same nodes, so most nodes are those of earlier relations.
    rng = np.random.default_rng(62)
    relations = {("n", f"relation {i}", "n"): random_csc(rng, 60, 60, 2) for i in range(70)}
    store = PlainStore({"n": 60}, relations, device=device)
    for hops in ([2, 3], [-1], [40, 1]):
        with named_case(hops):
            sampler = NeighborSampler(store, hops, edge_ids=False, duplicate_counts=True)
            assert_equals_reference(store, sampler, {"n": torch.tensor([5, 5, 59])}, 3)


def test_ids_of_different_widths(device: torch.device) -> None:
    rng = np.random.default_rng(63)
    relations = random_relations(rng, NUM_RELATIONS)
    store = PlainStore(NUM_NODES, relations, device=device, index_dtype=torch.int32)
    wide = PlainStore(NUM_NODES, relations, device=device, index_dtype=torch.int64)
    for edge_type in store.edge_types[::3]:
        store._structures[edge_type] = wide._structures[edge_type]
    for subgraph in ("directional", "induced"):
        with named_case(subgraph):
            sampler = NeighborSampler(store, [3, 2], subgraph=subgraph)
            assert_equals_reference(store, sampler, SEEDS, 8)


@each_kind
def test_other_choices(device: torch.device, kind: tuple[str, ...]) -> None:
    rng = np.random.default_rng(64)
    store = PlainStore(NUM_NODES, random_relations(rng, NUM_RELATIONS), device=device)
    options, choices = prepare(store, rng, kind)
    if kind == ("weights",):  # the others draw uniformly
        options["weights"] = dict.fromkeys(store.edge_types[::2], "w")
        choices = {t: choices[t] for t in store.edge_types[::2]}
    for subgraph in ("directional", "induced"):
        with named_case(subgraph):
            fanouts = random_fanouts(rng, store, 2)
            sampler = NeighborSampler(store, fanouts, subgraph=subgraph, **options)
            times = times_of(rng, sampler, SEEDS)
            assert_equals_reference(store, sampler, SEEDS, 4, choices=choices, seed_time=times)


@pytest.mark.parametrize("disjoint", [False, True])
def test_induced_subgraph(device: torch.device, disjoint: bool) -> None:
    rng = np.random.default_rng(65)
    store = PlainStore(NUM_NODES, random_relations(rng, NUM_RELATIONS), device=device)
    sampler = NeighborSampler(store, [2, 1], subgraph="induced", disjoint=disjoint)
    assert_equals_reference(store, sampler, SEEDS, 6)


def test_64_hops(device: torch.device) -> None:
    rng = np.random.default_rng(66)
    store = PlainStore(NUM_NODES, random_relations(rng, NUM_RELATIONS), device=device)
    fanouts = {t: rng.integers(0, 2, 64).tolist() for t in store.edge_types}
    for disjoint in (False, True):
        with named_case("disjoint", disjoint):
            sampler = NeighborSampler(store, fanouts, disjoint=disjoint, duplicate_counts=True)
            assert_equals_reference(store, sampler, SEEDS, 9)


@pytest.mark.parametrize("without", ["seeds", "edges", "fanouts"])
def test_nothing_to_sample(device: torch.device, without: str) -> None:
    rng = np.random.default_rng(67)
    relations = random_relations(rng, 12)
    if without == "edges":
        relations = {
            t: Csc(np.zeros(NUM_NODES[t[2]] + 1, np.int64), np.zeros(0, np.int64))
            for t in relations
        }
    store = PlainStore(NUM_NODES, relations, device=device)
    sampler = NeighborSampler(store, [0, 0] if without == "fanouts" else [2, -1])
    seeds = {t: ids[:0] for t, ids in SEEDS.items()} if without == "seeds" else SEEDS
    assert_equals_reference(store, sampler, seeds, 1)


def test_bad_seed(device: torch.device) -> None:
    store = PlainStore(
        NUM_NODES, random_relations(np.random.default_rng(68), NUM_RELATIONS), device=device
    )
    sampler = NeighborSampler(store, [3, 2])
    with pytest.raises(IndexError, match=r"seeds\[1\] = 50 is out of range for 50 nodes"):
        sampler.sample({"b": torch.arange(3), "a": torch.tensor([49, 50])}, 0)
    assert_equals_reference(store, sampler, SEEDS, 2)


def test_writes_to_one_tensor_leave_the_others(device: torch.device) -> None:
    store = PlainStore(
        NUM_NODES, random_relations(np.random.default_rng(69), NUM_RELATIONS), device=device
    )
    sample = NeighborSampler(store, [3, 2]).sample(SEEDS, 0)
    first, *others = store.edge_types
    versions = {t: sample.row[t]._version for t in others}
    sample.row[first].add_(1)
    assert {t: sample.row[t]._version for t in others} == versions
    assert sample.col[first]._version == 0


@pytest.mark.gpus(1)
def test_launches_do_not_grow_with_the_number_of_relations() -> None:
    device = torch.device("cuda")

    def launches(count: int) -> int:
        rng = np.random.default_rng(70)
        relations = {("n", f"relation {i}", "n"): random_csc(rng, 60, 60, 4) for i in range(count)}
        sampler = NeighborSampler(PlainStore({"n": 60}, relations, device=device), [3, 2])
        seeds = {"n": torch.arange(20, device=device)}
        sampler.sample(seeds, 0)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            sampler.sample(seeds, 1)
            torch.cuda.synchronize()
        kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        if not kernels:
            pytest.skip("the profiler sees no kernels here")
        return len(kernels)

    assert launches(200) == launches(8)

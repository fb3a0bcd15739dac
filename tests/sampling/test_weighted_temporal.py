"""Sampling with replacement, by weights and by times against the specification, exactly."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from peergraph.reference.weighted_temporal import Choice
from peergraph.sampling import NeighborSampler
from tests.named_case import named_case
from tests.sampling.plain_store import (
    EDGE,
    INDEX_DTYPES,
    LAYOUTS,
    NODE,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.reference_samples import RELATIONS, assert_equals_reference, typed_store
from tests.sampling.weighted_temporal_kinds import KINDS, each_kind, prepare, times_of


@each_kind
def test_homogeneous(device: torch.device, kind: tuple[str, ...]) -> None:
    for (name, layout), index_dtype in product(LAYOUTS.items(), INDEX_DTYPES):
        with named_case(name, index_dtype):
            rng = np.random.default_rng(21)
            csc = random_csc(rng, 150, 150, 9)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            options, choices = prepare(store, rng, kind, wide=index_dtype == torch.int64)
            sampler = NeighborSampler(store, [5, 3, 4], duplicate_counts=True, **options)
            seeds = {NODE: torch.from_numpy(rng.integers(0, 150, 17))}
            times = times_of(rng, sampler, seeds)
            assert_equals_reference(store, sampler, seeds, 5, choices=choices, seed_time=times)


@each_kind
def test_fanouts(device: torch.device, kind: tuple[str, ...]) -> None:
    fanout_lists = [[-1, 2], [0, 4], [4, 0, 4], [33, 2], [700], []]
    for fanouts, frontier, disjoint in product(fanout_lists, ["new", "all"], [False, True]):
        with named_case(fanouts, frontier, disjoint):
            rng = np.random.default_rng(22)
            csc = random_csc(rng, 60, 60, 25, own_edge_ids=False)
            store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
            options, choices = prepare(store, rng, kind)
            sampler = NeighborSampler(
                store, fanouts, frontier=frontier, disjoint=disjoint, **options
            )
            seeds = {NODE: torch.tensor([3, 3, 57, 0])}
            times = times_of(rng, sampler, seeds)
            assert_equals_reference(
                store, sampler, seeds, 2**64 - 1, choices=choices, seed_time=times
            )


@each_kind
def test_heterogeneous(device: torch.device, kind: tuple[str, ...]) -> None:
    for frontier, disjoint in product(["new", "all"], [False, True]):
        with named_case(frontier, disjoint):
            rng = np.random.default_rng(23)
            store = typed_store(rng, device)
            options, choices = prepare(store, rng, kind)
            fanouts = {t: [3 + i, (-1, 0, 2)[i % 3]] for i, t in enumerate(RELATIONS)}
            sampler = NeighborSampler(
                store, fanouts, frontier=frontier, disjoint=disjoint, **options
            )
            seeds = {"paper": torch.tensor([5, 5, 80]), "topic": torch.tensor([6, 0, 6])}
            times = times_of(rng, sampler, seeds)
            assert_equals_reference(store, sampler, seeds, 17, choices=choices, seed_time=times)


@each_kind
def test_hubs(device: torch.device, kind: tuple[str, ...]) -> None:
    # Around the lengths at which a block takes over from a warp, and keys are not kept.
    for fanout in (1, 30, 256, 3000):
        with named_case("fanout", fanout):
            rng = np.random.default_rng(24)
            csc = csc_with_degrees([5000, 2049, 2048, 257, 256, 33, 1, 0])
            store = PlainStore.homogeneous(csc, device=device)
            options, choices = prepare(store, rng, kind)
            sampler = NeighborSampler(store, [fanout], **options)
            seeds = {NODE: torch.arange(8)}
            times = times_of(rng, sampler, seeds)
            assert_equals_reference(store, sampler, seeds, 9, choices=choices, seed_time=times)


def test_many_targets_with_a_large_fanout(device: torch.device) -> None:
    # Targets times fanout is far more than the edges: they are counted first.
    for name, kind in KINDS.items():
        with named_case(name):
            rng = np.random.default_rng(25)
            store = PlainStore.homogeneous(csc_with_degrees([40, 4, 0, 1]), device=device)
            options, choices = prepare(store, rng, kind)
            fanout = 300_000
            if "replace" in kind:
                sampler = NeighborSampler(store, [fanout], **options)
                seeds = torch.tensor([2] * 20 + [3])
                times = times_of(rng, sampler, {NODE: seeds})
                got = sampler.sample(seeds, 3, seed_time=times)
                admitted = 1
                if times is not None:
                    by = 44 if choices[EDGE].edge_time else store.relations[EDGE].indices[44]
                    ago = int(times[NODE][20]) - int(choices[EDGE].times[by])
                    window = choices[EDGE].window
                    admitted = int(ago >= 0 and (window is None or ago <= window))
                assert got.num_sampled_edges[EDGE] == [fanout * admitted]
                continue
            sampler = NeighborSampler(store, [fanout], disjoint=True, **options)
            seeds = {NODE: torch.tensor([0, 1, 2, 3] * 5)}
            times = times_of(rng, sampler, seeds)
            assert_equals_reference(store, sampler, seeds, 8, choices=choices, seed_time=times)


def test_no_edges_and_no_seeds(device: torch.device) -> None:
    for name, kind in KINDS.items():
        with named_case(name):
            rng = np.random.default_rng(26)
            store = PlainStore.homogeneous(csc_with_degrees([0, 0, 0]), device=device)
            options, choices = prepare(store, rng, kind)
            sampler = NeighborSampler(store, [3, 2], **options)
            for ids in ([], [1, 1, 2]):
                seeds = {NODE: torch.tensor(ids, dtype=torch.int64)}
                times = times_of(rng, sampler, seeds)
                assert_equals_reference(store, sampler, seeds, 1, choices=choices, seed_time=times)


def test_the_defaults_are_the_plain_kind(device: torch.device) -> None:
    rng = np.random.default_rng(27)
    store = PlainStore.homogeneous(random_csc(rng, 50, 50, 9), device=device)
    prepare(store, rng, ("weights", "node_time"))
    seeds = torch.arange(10)
    plain = NeighborSampler(store, [3, 3]).sample(seeds, 4)
    same = NeighborSampler(store, [3, 3], replace=False, weights={}, node_time={}, edge_time=None)
    assert torch.equal(plain.row[EDGE], same.sample(seeds, 4).row[EDGE])


def test_extreme_times(device: torch.device) -> None:
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    times = np.array([least, least, least + 1, most, 0, most], np.int64)
    store = PlainStore.homogeneous(csc_with_degrees([6]), device=device)
    store.add_table(NODE, "t", times)
    for fanout in (1, 2, 3, 5):
        for latest in (least, least + 1, -1, most):
            for last in (False, True):
                sampler = NeighborSampler(
                    store,
                    [fanout],
                    node_time="t",
                    temporal_strategy="last" if last else "uniform",
                )
                assert_equals_reference(
                    store,
                    sampler,
                    {NODE: torch.tensor([0])},
                    fanout,
                    choices={EDGE: Choice(times=times, last=last)},
                    seed_time={NODE: torch.tensor([latest])},
                )


def test_seeds_own_times(device: torch.device) -> None:
    rng = np.random.default_rng(28)
    store = PlainStore.homogeneous(
        random_csc(rng, 80, 80, 12), layout=LAYOUTS["renumbered"], device=device
    )
    times = rng.integers(0, 50, (80, 1))
    store.add_table(NODE, "t", times)
    sampler = NeighborSampler(store, [4, 4], node_time="t")
    seeds = torch.tensor([7, 3, 3, 79])
    want = sampler.sample(seeds, 5, seed_time=torch.from_numpy(times[seeds, 0]).int())
    got = sampler.sample(seeds, 5)
    assert torch.equal(got.nodes[NODE], want.nodes[NODE])
    assert got.num_sampled_edges[EDGE][0] > 0


def test_nothing_from_the_future(device: torch.device) -> None:
    for kind in [k for k in KINDS.values() if "_time" in str(k)]:
        with named_case(kind):
            rng = np.random.default_rng(29)
            store = PlainStore.homogeneous(random_csc(rng, 400, 400, 30), device=device)
            options, choices = prepare(store, rng, kind)
            sampler = NeighborSampler(store, [10, 10], **options)
            seeds = torch.from_numpy(rng.integers(0, 400, 60))
            latest = torch.from_numpy(rng.integers(-6, 21, 60))
            sample = sampler.sample(seeds, 3, seed_time=latest)
            times = torch.from_numpy(choices[EDGE].times)
            tree = sample.batch[NODE][sample.col[EDGE]].cpu()
            ids = (
                sample.edge_ids[EDGE]
                if choices[EDGE].edge_time
                else sample.nodes[NODE][sample.row[EDGE]]
            )
            assert ids.numel() > 500
            assert (times[ids.cpu()] <= latest[tree]).all()

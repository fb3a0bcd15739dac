"""Sampling with replacement, by weights and by times against the specification, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.reference.choosing import Choice
from peergraph.sampling import NeighborSampler
from tests.sampling.plain_store import (
    EDGE,
    LAYOUTS,
    NODE,
    Layout,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.test_neighbor_sampler import RELATIONS, TYPES, assert_equals_reference

KINDS = {
    "replace": ("replace",),
    "weights": ("weights",),
    "weights, replace": ("weights", "replace"),
    "node time": ("node_time",),
    "edge time": ("edge_time",),
    "node time, last": ("node_time", "last"),
    "edge time, last": ("edge_time", "last"),
    "edge time, replace": ("edge_time", "replace"),
    "node time, weights": ("node_time", "weights"),
    "edge time, weights, replace": ("edge_time", "weights", "replace"),
    "labor": ("labor",),
    "labor, layer dependency": ("labor", "layer_dependency"),
    "labor, weights": ("labor", "weights"),
    "labor, node time": ("labor", "node_time"),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def random_weights(rng: np.random.Generator, count: int, dtype: type) -> np.ndarray:
    """Over many magnitudes, some equal, some 0, some the least and the greatest there are."""
    weights = np.exp(rng.normal(0, 4, count))
    weights[rng.random(count) < 0.2] = 0
    weights[rng.random(count) < 0.2] = 1
    info = np.finfo(dtype)
    weights[rng.random(count) < 0.02] = info.smallest_subnormal
    weights[rng.random(count) < 0.02] = info.max
    return weights.astype(dtype)


def prepare(
    store: PlainStore, rng: np.random.Generator, kind: tuple[str, ...], wide: bool = True
) -> tuple[dict[str, object], dict[tuple[str, str, str], Choice]]:
    """Adds the tables a kind needs; returns the sampler's options, and what they mean."""
    replace, labor, alike = (o in kind for o in ("replace", "labor", "layer_dependency"))
    choices = {t: Choice(replace=replace, by_node=labor, alike=alike) for t in store.edge_types}
    options: dict[str, object] = {
        o: True for o in ("replace", "labor", "layer_dependency") if o in kind
    }
    times = np.int64 if wide else np.int32
    if "last" in kind:
        options["temporal_strategy"] = "last"
    if "weights" in kind:
        options["weights"] = "w"
        for t, csc in store.relations.items():
            values = random_weights(rng, csc.indices.size, np.float64 if wide else np.float32)
            choices[t].weights = values
            store.add_table(t, "w", values if wide else values[:, None])
    if "edge_time" in kind:
        options["edge_time"] = "t"
        for t, csc in store.relations.items():
            values = rng.integers(-5, 20, csc.indices.size).astype(times)
            choices[t].times, choices[t].edge_time, choices[t].last = values, True, "last" in kind
            store.add_table(t, "t", values)
    if "node_time" in kind:
        options["node_time"] = "t"
        for t in store.node_types:
            values = rng.integers(-5, 20, store.num_nodes(t)).astype(times)
            store.add_table(t, "t", values, own_order=wide)
            for edge_type in store.edge_types:
                if edge_type[0] == t:
                    choices[edge_type].times = values
                    choices[edge_type].last = "last" in kind
    return options, choices


def times_of(
    rng: np.random.Generator, sampler: NeighborSampler, seeds: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    if not sampler.choices.timed:
        return None
    return {t: torch.from_numpy(rng.integers(-7, 22, ids.numel())) for t, ids in seeds.items()}


@each_kind
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_homogeneous(
    device: torch.device, layout: Layout, index_dtype: torch.dtype, kind: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(21)
    csc = random_csc(rng, 150, 150, 9)
    store = PlainStore.homogeneous(csc, layout=layout, index_dtype=index_dtype, device=device)
    options, choices = prepare(store, rng, kind, wide=index_dtype == torch.int64)
    sampler = NeighborSampler(store, [5, 3, 4], duplicate_counts=True, **options)
    seeds = {NODE: torch.from_numpy(rng.integers(0, 150, 17))}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 5, choices=choices, seed_time=times)


@each_kind
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("frontier", ["new", "all"])
@pytest.mark.parametrize("fanouts", [[-1, 2], [0, 4], [4, 0, 4], [33, 2], [700], []], ids=str)
def test_fanouts(
    device: torch.device, fanouts: list[int], frontier: str, disjoint: bool, kind: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(22)
    csc = random_csc(rng, 60, 60, 25, own_edge_ids=False)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    options, choices = prepare(store, rng, kind)
    sampler = NeighborSampler(store, fanouts, frontier=frontier, disjoint=disjoint, **options)
    seeds = {NODE: torch.tensor([3, 3, 57, 0])}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 2**64 - 1, choices=choices, seed_time=times)


@each_kind
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("frontier", ["new", "all"])
def test_heterogeneous(
    device: torch.device, frontier: str, disjoint: bool, kind: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(23)
    relations = {
        t: random_csc(rng, TYPES[t[0]], TYPES[t[2]], 6 * (i != 3), own_edge_ids=i % 2 == 0)
        for i, t in enumerate(RELATIONS)
    }
    store = PlainStore(TYPES, relations, layout=LAYOUTS["three tiers"], device=device)
    options, choices = prepare(store, rng, kind)
    fanouts = {t: [3 + i, (-1, 0, 2)[i % 3]] for i, t in enumerate(RELATIONS)}
    sampler = NeighborSampler(store, fanouts, frontier=frontier, disjoint=disjoint, **options)
    seeds = {"paper": torch.tensor([5, 5, 80]), "topic": torch.tensor([6, 0, 6])}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 17, choices=choices, seed_time=times)


@each_kind
@pytest.mark.parametrize("fanout", [1, 30, 256, 3000])
def test_hubs(device: torch.device, fanout: int, kind: tuple[str, ...]) -> None:
    # Around the lengths at which a block takes over from a warp, and keys are not kept.
    rng = np.random.default_rng(24)
    csc = csc_with_degrees([5000, 2049, 2048, 257, 256, 33, 1, 0])
    store = PlainStore.homogeneous(csc, device=device)
    options, choices = prepare(store, rng, kind)
    sampler = NeighborSampler(store, [fanout], **options)
    seeds = {NODE: torch.arange(8)}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 9, choices=choices, seed_time=times)


@each_kind
def test_many_targets_with_a_large_fanout(device: torch.device, kind: tuple[str, ...]) -> None:
    # Targets times fanout is far more than the edges: they are counted first.
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
            admitted = int(choices[EDGE].times[44] <= int(times[NODE][20]))
        assert got.num_sampled_edges[EDGE] == [fanout * admitted]
        return
    sampler = NeighborSampler(store, [fanout], disjoint=True, **options)
    seeds = {NODE: torch.tensor([0, 1, 2, 3] * 5)}
    times = times_of(rng, sampler, seeds)
    assert_equals_reference(store, sampler, seeds, 8, choices=choices, seed_time=times)


@each_kind
def test_no_edges_and_no_seeds(device: torch.device, kind: tuple[str, ...]) -> None:
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


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if "_time" in str(k)], ids=str)
def test_nothing_from_the_future(device: torch.device, kind: tuple[str, ...]) -> None:
    rng = np.random.default_rng(29)
    store = PlainStore.homogeneous(random_csc(rng, 400, 400, 30), device=device)
    options, choices = prepare(store, rng, kind)
    sampler = NeighborSampler(store, [10, 10], **options)
    seeds = torch.from_numpy(rng.integers(0, 400, 60))
    latest = torch.from_numpy(rng.integers(-6, 21, 60))
    sample = sampler.sample(seeds, 3, seed_time=latest)
    times = torch.from_numpy(choices[EDGE].times)
    tree = sample.batch[NODE][sample.col[EDGE]].cpu()
    ids = sample.edge_ids[EDGE] if choices[EDGE].edge_time else sample.nodes[NODE][sample.row[EDGE]]
    assert ids.numel() > 500
    assert (times[ids.cpu()] <= latest[tree]).all()

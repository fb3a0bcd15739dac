"""Samples of a static shape: without padding they are the samples that fit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

import peergraph
from peergraph.sampling import (
    NeighborSampler,
    Sample,
    StaticShapeSample,
    StaticShapeSampler,
    sample_bounds,
)
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
from tests.sampling.reference_samples import RELATIONS, TYPES, typed_store
from tests.sampling.static_shape_samples import assert_padded, assert_same_sample
from tests.sampling.weighted_temporal_kinds import each_kind, prepare

Seeds = torch.Tensor | dict[str, torch.Tensor]


def check(
    sampler: NeighborSampler,
    seeds: dict[str, torch.Tensor],
    *,
    room: int = 3,
    seed: int = 7,
    seed_time: dict[str, torch.Tensor] | None = None,
    seed_start: dict[str, torch.Tensor] | None = None,
    times: float = 1.0,
    given_bounds: bool = True,
) -> StaticShapeSample:
    """Samples with `room` more places than seeds, and bounds `times` as large as needed."""
    device = sampler.store.device
    want = sampler.sample(seeds, seed, seed_time=seed_time, seed_start=seed_start)
    bounds = sample_bounds([want], times) if given_bounds else (None, None)
    counts = {t: ids.numel() for t, ids in seeds.items()}
    fixed = StaticShapeSampler(
        sampler, {t: n + room for t, n in counts.items()}, max_nodes=bounds[0], max_edges=bounds[1]
    )
    # What lies in places for padding must not matter.
    padded = {t: torch.cat([ids, ids.new_full((room,), 2**31 - 1)]) for t, ids in seeds.items()}
    with_room = {
        name: {t: torch.cat([x, x.new_zeros(room)]).to(device) for t, x in values.items()}
        for name, values in (("seed_time", seed_time), ("seed_start", seed_start))
        if values is not None
    }
    got = fixed.sample(
        {t: ids.to(device) for t, ids in padded.items()},
        torch.tensor(seed, device=device),
        num_seeds={t: torch.tensor(n, device=device) for t, n in counts.items()},
        **with_room,
    )
    peergraph.synchronize(device)
    assert_padded(got)
    assert_same_sample(without_places(got.compact(), counts, room), want)
    return got


def without_places(sample: Sample, counts: dict[str, int], room: int) -> Sample:
    """A disjoint sample's batch by index of the seed instead of by place among the seeds."""
    if sample.batch is not None:
        for t, places in sample.batch.items():
            seed_of = torch.cat(
                [
                    torch.arange(n + room, device=places.device) + sum(list(counts.values())[:i])
                    for i, n in enumerate(counts.values())
                ]
            )
            sample.batch[t] = seed_of[places]
    return sample


@named_cases("layout", LAYOUT_PARAMS)
def test_homogeneous(device: torch.device, layout: Layout) -> None:
    for index_dtype in INDEX_DTYPES:
        with named_case(index_dtype):
            rng = np.random.default_rng(1)
            csc = random_csc(rng, 300, 300, 9)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            sampler = NeighborSampler(
                store, [5, 3, 7], duplicate_counts=True, index_dtype=index_dtype
            )
            seeds = torch.from_numpy(rng.integers(0, 300, 23))
            for given_bounds in (True, False):
                got = check(sampler, {NODE: seeds}, given_bounds=given_bounds)
            assert got.shape.rows_per_hop[NODE] == [27, 130, 300, 300]
            assert got.shape.edges_per_hop[EDGE] == [130, 390, 2100]


@named_cases("fanouts", FANOUTS)
def test_fanouts(device: torch.device, fanouts: list[int]) -> None:
    for frontier, disjoint in FRONTIERS:
        with named_case(frontier, disjoint):
            _, sampler = small_sampler(fanouts, frontier, disjoint, device)
            check(sampler, {NODE: SEEDS}, seed=2**63 - 1)
            check(sampler, {NODE: SEEDS}, room=0, times=1.5)


@each_kind
def test_choices(device: torch.device, kind: tuple[str, ...]) -> None:
    rng = np.random.default_rng(3)
    store = PlainStore.homogeneous(
        random_csc(rng, 200, 200, 12), layout=LAYOUTS["renumbered"], device=device
    )
    options, _ = prepare(store, rng, kind)
    sampler = NeighborSampler(store, [6, 40], **options)
    seeds = torch.from_numpy(rng.integers(0, 200, 17))
    timed = "node_time" in options or "edge_time" in options
    times = {NODE: torch.from_numpy(rng.integers(-5, 20, 17))} if timed else None
    check(sampler, {NODE: seeds}, seed_time=times)
    if times is not None:
        starts = {t: x - torch.from_numpy(rng.integers(0, 9, 17)) for t, x in times.items()}
        check(sampler, {NODE: seeds}, seed_time=times, seed_start=starts)


def test_heterogeneous(device: torch.device) -> None:
    for frontier, disjoint in product(["new", "all"], [False, True]):
        with named_case(frontier, disjoint):
            rng = np.random.default_rng(4)
            store = typed_store(rng, device)
            fanouts = {r: [4, 0, 3] if r[1] == "by" else [5, 2, -1] for r in RELATIONS}
            sampler = NeighborSampler(
                store, fanouts, frontier=frontier, disjoint=disjoint, duplicate_counts=True
            )
            seeds = {"paper": torch.arange(5, 25), "author": torch.tensor([3, 3, 8])}
            check(sampler, seeds)


def test_no_seeds_and_no_edges(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([0, 0, 0]), device=device)
    for frontier in ("new", "all"):
        sampler = NeighborSampler(store, [2, 2], frontier=frontier)
        none = torch.empty(0, dtype=torch.int64)
        got = check(sampler, {NODE: none}, room=0, given_bounds=False)
        assert got.nodes[NODE].tolist() == [-1]
        assert check(sampler, {NODE: none}, room=4, given_bounds=False).nodes[NODE].numel() == 5
        got = check(sampler, {NODE: torch.arange(3)}, given_bounds=False)
        assert got.row[EDGE].numel() == 0


def test_valid_padding(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    store = PlainStore.homogeneous(
        random_csc(rng, 300, 300, 9), layout=LAYOUTS["renumbered"], device=device
    )
    seeds = torch.from_numpy(rng.integers(1, 300, 20)).to(device)
    for disjoint, count in product([False, True], [20, 7, 0]):
        with named_case("disjoint", disjoint, "seeds", count):
            sampler = NeighborSampler(store, [5, 3], disjoint=disjoint)
            plain, valid = (
                StaticShapeSampler(sampler, 20, valid_padding=valid).sample(
                    seeds, 7, num_seeds=torch.tensor(count, device=device)
                )
                for valid in (False, True)
            )
            peergraph.synchronize(device)
            padding = plain.nodes[NODE] < 0
            assert torch.equal(plain.is_padding(NODE), padding)
            first = seeds[0] if count > 0 else 0
            assert torch.equal(valid.nodes[NODE], torch.where(padding, first, plain.nodes[NODE]))
            assert plain.edge_ids is not None
            assert valid.edge_ids is not None
            assert torch.equal(valid.edge_ids[EDGE], plain.edge_ids[EDGE].clamp(min=0))
            assert torch.equal(valid.edge_index[EDGE], plain.edge_index[EDGE])
            assert_same_sample(valid.compact(), plain.compact())


def test_samples_after_one_without_room(device: torch.device) -> None:
    rng = np.random.default_rng(5)
    store = PlainStore.homogeneous(random_csc(rng, 400, 400, 10), device=device)
    sampler = NeighborSampler(store, [6, 6])
    fixed = StaticShapeSampler(sampler, 20, max_nodes=[40, 200])
    for seed in range(4):
        seeds = torch.from_numpy(rng.integers(0, 400, 20)).to(device)
        with pytest.raises(OverflowError, match=r"max_nodes: hop 0 .* room for 40"):
            sample_and_wait(fixed, seeds, seed)
        got = sample_and_wait(fixed, seeds, seed, num_seeds=torch.tensor(5, device=device))
        assert_same_sample(got.compact(), sampler.sample(seeds[:5], seed))


def test_samples_after_all_words_of_the_map_are_used(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("samples on the CPU have no map of their own")
    rng = np.random.default_rng(6)
    store = PlainStore.homogeneous(random_csc(rng, 400, 400, 10), device=device)
    sampler = NeighborSampler(store, [6, 6])
    fixed = StaticShapeSampler(sampler, 20, max_nodes=[120, 300])
    # The rows, and the slots of the second hop.
    entries = (21 + 120 + 300) + 120 * 6
    base = fixed._maps[0][-1]
    assert int(base) == -1
    for left in (None, 2 * entries, entries, entries - 1, 1, 0):
        if left is not None:
            base.fill_(left)
        for number in range(3):
            seeds = torch.from_numpy(rng.integers(0, 400, 20)).to(device)
            before = int(base) % 2**32
            got = sample_and_wait(fixed, seeds, number)
            assert_same_sample(got.compact(), sampler.sample(seeds, number))
            greatest = before if before >= entries else 2**32 - 1
            assert int(base) % 2**32 == greatest - entries


def sample_and_wait(
    fixed: StaticShapeSampler, seeds: torch.Tensor, seed: int, **options: torch.Tensor
) -> StaticShapeSample:
    sample = fixed.sample(seeds, seed, **options)
    peergraph.synchronize(seeds.device)
    return sample


@named_cases(
    ("bounds", "match"),
    [
        ({"max_nodes": [2]}, r"max_nodes: hop 0 found 3 new nodes of a type, there is room for 2"),
        ({"max_nodes": [0]}, r"hop 0 found 3 new nodes"),
        ({"max_edges": [3]}, r"max_edges: hop 0 sampled 6 edges of a relation, .* room for 3"),
        ({"max_edges": [0]}, r"max_edges: hop 0 sampled 6 edges"),
    ],
)
def test_too_little_room(device: torch.device, bounds: dict[str, list[int]], match: str) -> None:
    for disjoint, fanout in product([False, True], [5, 90, -1]):
        with named_case("disjoint", disjoint, "fanout", fanout):
            csc = csc_with_degrees([0, 1, 5], num_nodes=6)
            store = PlainStore.homogeneous(csc, device=device)
            sampler = NeighborSampler(store, [fanout], disjoint=disjoint)
            # Disjoint, both seeds have nodes of their own.
            expected = match.replace("found 3", "found 5") if disjoint else match
            fixed = StaticShapeSampler(sampler, 2, **{"max_edges": [8], **bounds})
            with pytest.raises(OverflowError, match=expected):
                sample_and_wait(fixed, torch.tensor([1, 2], device=device), 0)
            peergraph.synchronize(device)  # it is reported once


def test_too_little_room_that_is_not_reported(device: torch.device) -> None:
    """A count tells it: it equals the capacity."""
    csc = csc_with_degrees([0, 1, 5], num_nodes=6)
    sampler = NeighborSampler(PlainStore.homogeneous(csc, device=device), [5])
    seeds = torch.tensor([1, 2], device=device)
    bounds: list[dict[str, list[int]]] = [{"max_nodes": [2]}, {"max_edges": [3]}]
    for limits, nodes, edges in zip(bounds, ([2, 2], [2, 3]), ([6], [3]), strict=True):
        fixed = StaticShapeSampler(sampler, 2, reports_overflow=False, **limits)
        sample = fixed.sample(seeds, 0)
        peergraph.synchronize(device)
        if "max_nodes" in limits:
            assert sample.num_nodes[NODE].tolist() == nodes
        assert sample.num_edges[EDGE].tolist() == edges
        assert sample.nodes[NODE].numel() == sum(fixed.shape.rows_per_hop[NODE])


def test_bad_seeds(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([1, 2, 3]), device=device)
    fixed = StaticShapeSampler(NeighborSampler(store, [2]), 3)
    with pytest.raises(IndexError, match=r"seeds\[1\] = 3 is out of range for 3 nodes"):
        sample_and_wait(fixed, torch.tensor([0, 3, -1], device=device), 0)
    for count in (4, -1):
        with pytest.raises(IndexError, match=rf"num_seeds: expected 0 \.\. 3, got {count}"):
            sample_and_wait(
                fixed,
                torch.tensor([0, 1, 2], device=device),
                0,
                num_seeds=torch.tensor(count, device=device),
            )


@named_cases(
    ("call", "error", "match"),
    [
        (lambda s: StaticShapeSampler(s, -1), ValueError, "num_seeds"),
        (lambda s: StaticShapeSampler(s, {"x": 1}), ValueError, "num_seeds: 'x' is not one of"),
        (
            lambda s: StaticShapeSampler(s, 1, max_nodes=[1]),
            ValueError,
            "max_nodes: expected 2 bounds",
        ),
        (lambda s: StaticShapeSampler(s, 1, max_nodes=[1, -1]), ValueError, "max_nodes"),
        (lambda s: StaticShapeSampler(s, 1, max_edges=[1, 2.5]), TypeError, "max_edges"),
        (lambda s: StaticShapeSampler(s, 1, max_edges={"x": [1, 1]}), ValueError, "max_edges: 'x'"),
        (lambda s: StaticShapeSampler(s, 2**31), ValueError, "num_seeds"),
        (lambda s: StaticShapeSampler(s, 3).sample([0], 1), TypeError, "seeds of type"),
        (
            lambda s: StaticShapeSampler(s, 3).sample(torch.arange(2), 1),
            ValueError,
            r"expected shape \(3,\)",
        ),
        (lambda s: StaticShapeSampler(s, 3).sample(torch.zeros(3), 1), TypeError, "seeds of type"),
        (lambda s: StaticShapeSampler(s, 1).sample({"x": torch.arange(1)}, 1), ValueError, "'x'"),
        (lambda s: StaticShapeSampler(s, 1).sample(torch.arange(1), -1), ValueError, "seed"),
        (
            lambda s: StaticShapeSampler(s, 1).sample(torch.arange(1), torch.zeros(1)),
            TypeError,
            "seed",
        ),
        (
            lambda s: StaticShapeSampler(s, 1).sample(torch.arange(1), torch.arange(2)),
            ValueError,
            "seed: expected one number",
        ),
        (
            lambda s: StaticShapeSampler(s, 1).sample(
                torch.arange(1), 1, num_seeds=torch.arange(3)
            ),
            ValueError,
            "num_seeds: expected one number",
        ),
        (
            lambda s: StaticShapeSampler(s, 1).sample(
                torch.arange(1), 1, seed_time=torch.arange(1)
            ),
            ValueError,
            "seed_time",
        ),
    ],
)
def test_errors(
    call: Callable[[NeighborSampler], object], error: type[Exception], match: str
) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([1, 2, 3]))
    with pytest.raises(error, match=match):
        call(NeighborSampler(store, [2, 2]))


def test_more_errors() -> None:
    store = PlainStore.homogeneous(csc_with_degrees([1, 2, 3]))
    with pytest.raises(ValueError, match="max_edges: needed, for hop 1 takes all"):
        StaticShapeSampler(NeighborSampler(store, [2, -1]), 2)
    with pytest.raises(NotImplementedError, match="induced"):
        StaticShapeSampler(NeighborSampler(store, [2], subgraph="induced"), 2)
    with pytest.raises(ValueError, match="samples: expected at least one"):
        sample_bounds([])
    with pytest.raises(ValueError, match="slack"):
        sample_bounds([], 0.5)
    typed = PlainStore(TYPES, {r: csc_with_degrees([], TYPES[r[2]]) for r in RELATIONS})
    with pytest.raises(ValueError, match="num_seeds: expected a dict"):
        StaticShapeSampler(NeighborSampler(typed, [2]), 2)


def test_bounds_of_samples() -> None:
    store = PlainStore.homogeneous(csc_with_degrees([0, 1, 5], num_nodes=6))
    sampler = NeighborSampler(store, [5, 5])
    samples = [sampler.sample(torch.tensor([i]), 0) for i in range(3)]
    assert sample_bounds(samples, 1) == ({NODE: [4, 0]}, {EDGE: [5, 1]})
    assert sample_bounds(iter(samples), 1.5) == ({NODE: [6, 0]}, {EDGE: [7, 1]})

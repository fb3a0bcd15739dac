"""Excluded edges of samples of a static shape: those of `exclude_edges` on the ordinary sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.sampling import NeighborSampler, StaticShapeSampler, exclude_edges, sample_bounds
from peergraph.store import EdgeType
from tests.named_case import named_case
from tests.sampling.fanouts import FRONTIERS
from tests.sampling.plain_store import EDGE, INDEX_DTYPES, NODE, PlainStore, random_csc
from tests.sampling.reference_samples import RELATIONS, typed_store
from tests.sampling.static_shape_samples import assert_padded, assert_same_sample

PAPERS = {"paper": torch.arange(5, 25), "author": torch.tensor([3, 3, 8])}


def sampler_of(device: torch.device, **options: object) -> NeighborSampler:
    store = typed_store(np.random.default_rng(4), device)
    fanouts = {r: [4, 0, 3] if r[1] == "by" else [5, 2, -1] for r in RELATIONS}
    return NeighborSampler(store, fanouts, duplicate_counts=True, **options)


def check(
    sampler: NeighborSampler,
    seeds: dict[str, Tensor],
    share: float,
    room: int = 3,
    times: float = 1.2,
) -> None:
    """Excludes a share of the edges of each relation, and ids that no sampled edge has."""
    device = sampler.store.device
    drawn = sampler.sample(seeds, 7)
    rng = np.random.default_rng(1)
    assert drawn.edge_ids is not None
    excluded: dict[EdgeType, Tensor] = {}
    for edge_type, ids in drawn.edge_ids.items():
        chosen = ids.cpu()[torch.from_numpy(rng.random(ids.numel()) < share)]
        excluded[edge_type] = torch.cat([chosen, chosen[:2], torch.tensor([10**12])]).to(device)
    want = exclude_edges(drawn, excluded)
    max_nodes, max_edges = sample_bounds([drawn], times)
    counts = {t: ids.numel() for t, ids in seeds.items()}
    static = StaticShapeSampler(
        sampler, {t: n + room for t, n in counts.items()}, max_nodes=max_nodes, max_edges=max_edges
    )
    got = static.sample(
        {t: torch.cat([ids, ids.new_zeros(room)]).to(device) for t, ids in seeds.items()},
        7,
        num_seeds={t: torch.tensor(n, device=device) for t, n in counts.items()},
        exclude=excluded,
    )
    peergraph.synchronize(device)
    assert_padded(got)
    for edge_type, counts_of_hops in drawn.num_sampled_edges.items():
        assert got.num_drawn_edges[edge_type].tolist() == counts_of_hops
    places = want.batch
    result = got.compact()
    assert_same_sample(replace(result, batch=None), replace(want, batch=None))
    assert (result.batch is None) == (places is None)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_edges_are_excluded(device: torch.device, share: float) -> None:
    for frontier, disjoint in FRONTIERS:
        for index_dtype in INDEX_DTYPES:
            with named_case(frontier, disjoint, index_dtype):
                sampler = sampler_of(
                    device, frontier=frontier, disjoint=disjoint, index_dtype=index_dtype
                )
                check(sampler, PAPERS, share)
                check(sampler, PAPERS, share, room=0, times=1.0)


def test_one_relation(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(2), 120, 120, 40, own_edge_ids=False)
    store = PlainStore.homogeneous(csc, device=device)
    check(NeighborSampler(store, [3, 60, 2], frontier="all"), {NODE: torch.arange(30)}, 0.4)


@pytest.mark.parametrize("frontier", ["new", "all"])
def test_edges_between_seeds(device: torch.device, frontier: str) -> None:
    """Also parallel ones, and loops; pairs without an edge change nothing."""
    rng = np.random.default_rng(3)
    csc = random_csc(rng, 60, 60, 40)
    store = PlainStore.homogeneous(csc, device=device)
    sampler = NeighborSampler(store, [10, 8], frontier=frontier, duplicate_counts=True)
    seeds = torch.from_numpy(rng.permutation(60)[:25])
    positions = torch.from_numpy(rng.integers(0, 25, (2, 300)))
    drawn = sampler.sample(seeds, 3)
    want = exclude_edges(drawn, pairs=seeds[positions])
    assert want.row[EDGE].numel() < drawn.row[EDGE].numel() - 20
    max_nodes, max_edges = sample_bounds([drawn], 1.2)
    static = StaticShapeSampler(sampler, 25, max_nodes=max_nodes, max_edges=max_edges)
    got = static.sample(seeds.to(device), 3, exclude={EDGE: positions.to(device)})
    peergraph.synchronize(device)
    assert_padded(got)
    assert_same_sample(got.compact(), want)


def test_samples_that_exceed_their_capacities(device: torch.device) -> None:
    """The counts of drawn edges tell it, also where few of them remain."""
    csc = random_csc(np.random.default_rng(2), 120, 120, 40, own_edge_ids=False)
    store = PlainStore.homogeneous(csc, device=device)
    static = StaticShapeSampler(
        NeighborSampler(store, [5, 5]),
        9,
        max_nodes=[100, 100],
        max_edges=[45, 40],
        reports_overflow=False,
        valid_padding=True,
    )
    everything = {EDGE: torch.arange(csc.indices.size, device=device)}
    got = static.sample(torch.arange(9, device=device), 1, exclude=everything)
    assert got.num_drawn_edges[EDGE][1] == 40
    peergraph.synchronize(device)


def test_wrong_arguments() -> None:
    cpu = torch.device("cpu")
    static = StaticShapeSampler(
        sampler_of(cpu),
        {"paper": 5},
        max_edges={r: [50, 50, 50] for r in RELATIONS},
    )
    seeds = {"paper": torch.arange(5)}
    with pytest.raises(ValueError, match="exclude of type 'x': there are no such edges"):
        static.sample(seeds, 1, exclude={"x": torch.arange(3)})
    with pytest.raises(
        TypeError, match=r"exclude of type .*: expected a tensor of \[torch.int64\]"
    ):
        static.sample(seeds, 1, exclude={RELATIONS[0]: torch.arange(3).int()})
    with pytest.raises(ValueError, match=r"exclude of type .*: expected ids, or pairs \[2, any"):
        static.sample(seeds, 1, exclude={RELATIONS[0]: torch.zeros(3, 3, dtype=torch.int64)})
    disjoint = StaticShapeSampler(
        sampler_of(cpu, disjoint=True), {"paper": 5}, max_edges={r: [50, 50, 50] for r in RELATIONS}
    )
    with pytest.raises(ValueError, match="pairs are not supported in disjoint samples"):
        disjoint.sample(seeds, 1, exclude={RELATIONS[1]: torch.zeros(2, 3, dtype=torch.int64)})
    without_ids = StaticShapeSampler(
        sampler_of(cpu, edge_ids=False),
        {"paper": 5},
        max_edges={r: [50, 50, 50] for r in RELATIONS},
    )
    with pytest.raises(ValueError, match="the sample has no ids of edges"):
        without_ids.sample(seeds, 1, exclude={RELATIONS[0]: torch.arange(3)})

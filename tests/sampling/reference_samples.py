"""A graph of several types, and samples of it beside those of the reference."""

from __future__ import annotations

import numpy as np
import torch

from peergraph.reference import sampling as reference
from peergraph.reference.weighted_temporal import Choice
from peergraph.sampling import NeighborSampler, Sample
from tests.sampling.plain_store import LAYOUTS, PlainStore, random_csc

TYPES = {"author": 40, "paper": 90, "topic": 7}
RELATIONS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "by", "author"),
    ("topic", "of", "paper"),
    ("paper", "in", "topic"),
]


def typed_store(
    rng: np.random.Generator, device: torch.device, layout: str = "three tiers"
) -> PlainStore:
    """A store of all types: one relation has no edges, every other one ids of its own."""
    relations = {
        t: random_csc(rng, TYPES[t[0]], TYPES[t[2]], 6 * (i != 3), own_edge_ids=i % 2 == 0)
        for i, t in enumerate(RELATIONS)
    }
    return PlainStore(TYPES, relations, layout=LAYOUTS[layout], device=device)


def assert_equals_reference(
    store: PlainStore,
    sampler: NeighborSampler,
    seeds: dict[str, torch.Tensor],
    seed: int,
    *,
    choices: dict[tuple[str, str, str], Choice] | None = None,
    seed_time: dict[str, torch.Tensor] | None = None,
    seed_start: dict[str, torch.Tensor] | None = None,
) -> Sample:
    got = sampler.sample(seeds, seed, seed_time=seed_time, seed_start=seed_start)
    want = reference.sample_khop(
        {t: store.num_nodes(t) for t in store.node_types},
        store.relations,
        sampler.fanouts,
        {t: ids.tolist() for t, ids in seeds.items()},
        seed,
        frontier=sampler.frontier,
        disjoint=sampler.disjoint,
        choices=choices,
        seed_times=torch.cat(list(seed_time.values())).tolist() if seed_time else None,
        seed_starts=torch.cat(list(seed_start.values())).tolist() if seed_start else None,
        induced=sampler.subgraph == "induced",
    )
    assert got.num_sampled_nodes == want.num_sampled_nodes
    assert got.num_sampled_edges == want.num_sampled_edges
    for t in store.node_types:
        assert got.nodes[t].dtype == torch.int64
        assert got.nodes[t].tolist() == want.nodes[t]
        if sampler.disjoint:
            assert got.batch[t].tolist() == want.batch[t]
        if sampler.duplicate_counts:
            assert got.duplicate_counts[t].dtype == torch.int32
            assert got.duplicate_counts[t].tolist() == want.duplicate_counts[t]
    for t in store.edge_types:
        assert got.row[t].dtype == got.col[t].dtype == sampler.index_dtype
        assert got.row[t].tolist() == want.row[t]
        assert got.col[t].tolist() == want.col[t]
        if sampler.edge_ids:
            assert got.edge_ids[t].tolist() == want.edge_ids[t]
        for hop in range(got.num_hops):
            block = got.block(hop, t)
            assert block.indptr.tolist() == want.indptr[t][hop]
            assert block.first_target == want.first_target[t][hop]
            begin = sum(want.num_sampled_edges[t][:hop])
            assert block.row.tolist() == want.row[t][begin : begin + block.row.numel()]
    return got

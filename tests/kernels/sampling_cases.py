"""Samples of a hundred nodes in all tiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory.device.launching import launch_on
from peergraph.sampling import (
    NegativeSampler,
    NeighborSampler,
    PinSageSampler,
    PprSampler,
    RandomWalker,
    Sample,
    StaticShapeSample,
    StaticShapeSampler,
    sample_bounds,
)
from peergraph.sampling.saint.node_weights import distinct, draw_nodes
from tests.kernels.cases import case
from tests.sampling.many_relations import NUM_NODES, random_fanouts, random_relations
from tests.sampling.many_relations import SEEDS as MANY_SEEDS
from tests.sampling.plain_store import LAYOUTS, NODE, PlainStore, csc_with_degrees, random_csc
from tests.sampling.test_temporal_lists import temporal_store
from tests.sampling.weighted_temporal_kinds import KINDS, prepare, times_of

SEEDS = torch.tensor([3, 3, 97, 0, 50])
ADDED = ("add_seeds_kernel", "find_firsts_kernel", "append_firsts_kernel")
WRITTEN = ("write_edges_kernel", "write_nodes_kernel")


def small_store(device: torch.device, **options: Any) -> PlainStore:
    csc = random_csc(np.random.default_rng(1), 100, 100, 9)
    return PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device, **options)


def store_of_hubs(device: torch.device) -> PlainStore:
    """Lists around the lengths at which a warp and a block take over."""
    degrees = [0, 1, 31, 33, 255, 256, 257, 2049]
    csc = csc_with_degrees(degrees)
    return PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)


def tensors_of(sample: Sample | StaticShapeSample) -> Iterator[Tensor]:
    for name in ("nodes", "row", "col", "edge_ids", "batch", "duplicate_counts"):
        values: Mapping[Any, Any] | None = getattr(sample, name)
        for value in (values or {}).values():
            yield from value if isinstance(value, list) else [value]


def sampled(
    store: PlainStore, fanouts: list[int], seeds: Tensor = SEEDS, **options: Any
) -> Iterator[Tensor]:
    counts = options.get("subgraph") != "induced"
    sampler = NeighborSampler(store, fanouts, duplicate_counts=counts, **options)
    for ids in (seeds, seeds[:0]):
        yield from tensors_of(sampler.sample(ids, 7))


@case("sample_by_lane", *ADDED, *WRITTEN)
def few_neighbors(device: torch.device) -> Iterator[Tensor]:
    """A group of 4, 8, 16 or 32 lanes for each node."""
    for index_dtype in (torch.int32, torch.int64):
        store = small_store(device, index_dtype=index_dtype)
        for fanouts in ([3, 2], [7], [13], [29]):
            yield from sampled(store, fanouts, index_dtype=index_dtype)


@case("sample_by_block", *ADDED, *WRITTEN)
def many_neighbors(device: torch.device) -> Iterator[Tensor]:
    """A block for each node, with its draws in shared memory and in the GPU's."""
    store = store_of_hubs(device)
    for fanout in (33, 250, 2047, 2049):
        yield from sampled(store, [fanout], torch.arange(8))


@case("copy_all", "count_kernel", *ADDED, *WRITTEN)
def all_neighbors(device: torch.device) -> Iterator[Tensor]:
    yield from sampled(store_of_hubs(device), [-1], torch.arange(8))
    yield from sampled(small_store(device), [2, -1], frontier="all")


@case("sample_by_lane", "copy_all", "reindex_kernel", *ADDED, *WRITTEN)
def disjoint(device: torch.device) -> Iterator[Tensor]:
    """A hash table that grows from hop to hop."""
    yield from sampled(small_store(device), [-1, 3, -1], disjoint=True)


@case("for_each_target", "sample_by_lane", *ADDED, *WRITTEN)
def induced(device: torch.device) -> Iterator[Tensor]:
    for is_disjoint in (False, True):
        yield from sampled(small_store(device), [3, 2], subgraph="induced", disjoint=is_disjoint)


@case("draw_with_replacement_kernel", "for_each_target", *ADDED, *WRITTEN)
def choices(device: torch.device) -> Iterator[Tensor]:
    """With replacement, by weights, by times, by random numbers of nodes."""
    for kind in KINDS.values():
        for fanouts in ([5, 3], [40], [-1]):
            rng = np.random.default_rng(21)
            store = small_store(device)
            options, _ = prepare(store, rng, kind)
            sampler = NeighborSampler(store, fanouts, **options)
            times = times_of(rng, sampler, {NODE: SEEDS})
            yield from tensors_of(sampler.sample({NODE: SEEDS}, 7, seed_time=times))


@case("count_falls_kernel", "bisect_kernel", *ADDED, *WRITTEN)
def lists_by_time(device: torch.device) -> Iterator[Tensor]:
    for of in ("node", "edge"):
        for replace in (False, True):
            rng = np.random.default_rng(24)
            store, _ = temporal_store(rng, of, "all lists", np.int64, True, device)
            options = {f"{of}_time": "t", "replace": replace}
            sampler = NeighborSampler(store, [4, 3], **options)
            latest = torch.tensor([3, 8, 20, 0, 12])
            yield from tensors_of(sampler.sample(SEEDS, 7, seed_time=latest))


@case("for_each_target", *ADDED, *WRITTEN)
def choices_at_hubs(device: torch.device) -> Iterator[Tensor]:
    for kind in (("weights",), ("node_time",)):
        store = store_of_hubs(device)
        options, _ = prepare(store, np.random.default_rng(22), kind)
        latest = {"seed_time": torch.full((8,), 18)} if "node_time" in options else {}
        for fanout in (30, 256, 1500, 2100):
            sampler = NeighborSampler(store, [fanout], duplicate_counts=True, **options)
            yield from tensors_of(sampler.sample(torch.arange(8), 7, **latest))


@case(
    *("count_kernel", "count_edges_kernel", "write_offsets_kernel", "copy_all", "sample_by_lane"),
    *("sample_by_block", "for_each_target", *ADDED, *WRITTEN),
)
def many_relations(device: torch.device) -> Iterator[Tensor]:
    """All relations of a hop at once, in the kernels of all fanouts."""
    rng = np.random.default_rng(23)
    relations = random_relations(rng, 20)
    store = PlainStore(NUM_NODES, relations, layout=LAYOUTS["three tiers"], device=device)
    fanouts = random_fanouts(rng, store, 2)
    weighted, _ = prepare(store, rng, ("weights",))
    for options in ({}, {"disjoint": True}, {"subgraph": "induced"}, weighted):
        sampler = NeighborSampler(store, fanouts, **options)
        yield from tensors_of(sampler.sample(MANY_SEEDS, 7))


@case(
    *(
        "add_padded_seeds_kernel",
        "write_positions_kernel",
        "clamp_hop_counts_kernel",
        "pad_edges_kernel",
    ),
    *("clear_used_up_map_kernel", "lower_base_kernel"),
    *("find_firsts_kernel", "append_firsts_kernel", *WRITTEN),
)
def fixed_shape(device: torch.device) -> Iterator[Tensor]:
    for options in ({"frontier": "all"}, {}, {"disjoint": True}):
        sampler = NeighborSampler(small_store(device), [3, 40], **options)
        bounds = sample_bounds([sampler.sample({NODE: SEEDS}, 7)], 1.5)
        padded = torch.cat([SEEDS, torch.zeros(3, dtype=torch.int64)]).to(device)
        seed, count = torch.tensor(7, device=device), torch.tensor(5, device=device)
        for valid in (False, True):
            fixed = StaticShapeSampler(
                sampler,
                {NODE: 8},
                max_nodes=bounds[0],
                max_edges=bounds[1],
                valid_padding=valid,
            )
            yield from tensors_of(fixed.sample({NODE: padded}, seed, num_seeds={NODE: count}))


@case("walk_by_thread", "walk_by_warp")
def walks(device: torch.device) -> Iterator[Tensor]:
    walker = RandomWalker(small_store(device), edge_ids=True)
    for options in ({"restart_prob": 0.3}, {"p": 0.25, "q": 4.0, "dead_end": "pad"}):
        for start in (torch.arange(100), torch.arange(0)):
            walk = walker.walk(start, 5, 7, **options)
            yield walk.nodes
            yield walk.edge_ids


@case("start_walks_kernel", "walk_by_thread", "top_visits_kernel", *ADDED, *WRITTEN)
def pinsage(device: torch.device) -> Iterator[Tensor]:
    """Counts of visits in shared memory and in the GPU's."""
    for walks_of_each, length in ((4, 3), (1100, 2)):
        sampler = PinSageSampler(
            small_store(device),
            num_walks=walks_of_each,
            walk_length=length,
            num_neighbors=5,
            num_layers=2,
        )
        got = sampler.sample(SEEDS, 7)
        yield got.nodes
        for layer in got.layers:
            yield from (layer.row, layer.col, layer.visits)


@case("draw_nodes_kernel", "mark_nodes_kernel", "square_keys_kernel")
def draws(device: torch.device) -> Iterator[Tensor]:
    """Nodes drawn by weights and uniformly, the distinct nodes of them, and sorting keys that draw
    without replacement.
    """
    ends = torch.arange(1000, device=device).cumsum(0)
    for count in (5000, 0):
        for weights in (None, ends):
            nodes = draw_nodes(count, 1000, 7, 3, device, weights)
            yield nodes
            yield distinct(nodes, 1000)
        keys = torch.empty(count, dtype=torch.float64, device=device)
        _C.square_keys(nodes, nodes - 100, 7, 3, keys, launch_on(device))
        yield keys


@case("push_in_shared", "push_in_scratch")
def pagerank(device: torch.device) -> Iterator[Tensor]:
    """Searches that fit into a block's shared memory and ones that do not."""
    for nodes, eps in ((100, 1e-3), (9000, 1e-5)):
        csc = random_csc(np.random.default_rng(2), nodes, nodes, 9)
        store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
        yield from PprSampler(store, num_neighbors=20, eps=eps).neighbors(SEEDS)


@case("negatives_by_thread", "negatives_by_warp")
def negatives(device: torch.device) -> Iterator[Tensor]:
    weights = torch.arange(100)
    for avoid_edges in (False, True):
        sampler = NegativeSampler(
            small_store(device), dst_weight=weights, avoid_edges=avoid_edges, tries=3
        )
        got = sampler.sample(torch.arange(50), 7)
        yield from (got.source, got.destination)

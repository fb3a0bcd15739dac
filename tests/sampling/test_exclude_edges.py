"""exclude_edges: against filtering each edge in turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler, Sample, exclude_edges
from tests.named_case import named_cases
from tests.pairwise import pairwise
from tests.sampling.plain_store import EDGE, INDEX_DTYPES, LAYOUTS, NODE, PlainStore, random_csc
from tests.sampling.walk_graphs import BY, OF, RELATIONS, TAGS, TYPES

Edge = tuple[int, int, int]  # source, destination, edge id


def edges_of(sample: Sample, edge_type: tuple[str, str, str], hop: int) -> list[Edge]:
    block = sample.block(hop, edge_type)
    source, _, destination = edge_type
    targets = torch.arange(block.num_targets, device=block.row.device) + block.first_target
    targets = targets.repeat_interleave(block.indptr.diff())
    begin = sum(sample.num_sampled_edges[edge_type][:hop])
    assert sample.col[edge_type][begin : begin + targets.numel()].tolist() == targets.tolist()
    return list(
        zip(
            sample.nodes[source][block.row].tolist(),
            sample.nodes[destination][targets].tolist(),
            block.edge_ids.tolist(),
            strict=True,
        )
    )


def assert_without(
    got: Sample, full: Sample, gone: Callable[[tuple[str, str, str], Edge], bool]
) -> None:
    assert got.num_sampled_nodes == full.num_sampled_nodes
    duplicates = {t: torch.zeros_like(c) for t, c in full.duplicate_counts.items()}
    removed = 0
    for t in full.row:
        for hop in range(full.num_hops):
            want = [e for e in edges_of(full, t, hop) if not gone(t, e)]
            removed += full.num_sampled_edges[t][hop] - len(want)
            assert edges_of(got, t, hop) == want
            assert got.num_sampled_edges[t][hop] == len(want)
        assert got.row[t].numel() == got.col[t].numel() == sum(got.num_sampled_edges[t])
        duplicates[t[0]] += torch.bincount(
            got.row[t].long(), minlength=duplicates[t[0]].numel()
        ).int()
    assert removed > 0
    for t, counts in duplicates.items():
        assert got.nodes[t].tolist() == full.nodes[t].tolist()
        assert got.duplicate_counts[t].dtype == torch.int32
        assert got.duplicate_counts[t].tolist() == counts.tolist()


@named_cases(
    ("frontier", "disjoint", "index_dtype"),
    pairwise(["new", "all"], [False, True], INDEX_DTYPES),
)
def test_homogeneous(
    device: torch.device, frontier: str, disjoint: bool, index_dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(1)
    csc = random_csc(rng, 50, 50, 8)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    sampler = NeighborSampler(
        store,
        [6, 0, 4, -1],
        frontier=frontier,
        disjoint=disjoint,
        duplicate_counts=True,
        index_dtype=index_dtype,
    )
    full = sampler.sample(torch.tensor([3, 3, 40, 7, 12]), 2)
    ids = torch.from_numpy(rng.integers(0, csc.indices.size, 60)).to(index_dtype)
    excluded = set(ids.tolist())
    assert_without(exclude_edges(full, ids), full, lambda t, e: e[2] in excluded)

    reverse = torch.from_numpy(rng.permutation(csc.indices.size))
    both = excluded | set(reverse[ids.long()].tolist())
    got = exclude_edges(full, {EDGE: ids.to(device)}, reverse=reverse)
    assert_without(got, full, lambda t, e: e[2] in both)

    some = [e for hop in (0, 2) for e in edges_of(full, EDGE, hop)][::4]
    pairs = {e[:2] for e in some}
    passed = torch.tensor([*pairs, (49, 49), (10**9, 3)]).T
    got = exclude_edges(full, pairs=passed)
    assert_without(got, full, lambda t, e: e[:2] in pairs or e[:2] == (49, 49))
    got = exclude_edges(full, ids, pairs=passed)
    assert_without(got, full, lambda t, e: e[:2] in pairs or e[2] in excluded)


def test_heterogeneous(device: torch.device) -> None:
    store = PlainStore(TYPES, RELATIONS, layout=LAYOUTS["three tiers"], device=device)
    sampler = NeighborSampler(store, [5, 4], duplicate_counts=True)
    full = sampler.sample({"item": torch.tensor([1, 2, 2, 30]), "user": torch.tensor([8, 9])}, 3)
    ids = torch.arange(0, 150, 3)
    of_map = torch.arange(150).flip(0)
    got = exclude_edges(full, {BY: ids}, reverse={BY: (OF, of_map)})
    excluded = {BY: set(ids.tolist()), OF: set(of_map[ids].tolist()), TAGS: set()}
    assert_without(got, full, lambda t, e: e[2] in excluded[t])
    got = exclude_edges(full, {BY: ids, TAGS: ids}, reverse={BY: (OF, None)})
    assert_without(got, full, lambda t, e: e[2] in excluded[BY])
    pair = edges_of(full, OF, 1)[0][:2]
    got = exclude_edges(full, pairs={OF: torch.tensor([pair], dtype=torch.int32).T})
    assert_without(got, full, lambda t, e: t == OF and e[:2] == pair)


def test_nothing_to_exclude(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(2), 20, 20, 3)
    store = PlainStore.homogeneous(csc, device=device)
    none = torch.empty(0, dtype=torch.int64)
    sampler = NeighborSampler(store, [2, 2], edge_ids=False)
    full = sampler.sample(torch.arange(5), 1)
    got = exclude_edges(full, pairs=none.view(2, 0))
    assert got.row[EDGE].tolist() == full.row[EDGE].tolist()
    assert got.edge_ids is None
    assert got.duplicate_counts is None
    empty = exclude_edges(sampler.sample(none, 1), pairs=torch.tensor([[1], [2]]))
    assert empty.num_sampled_edges == {EDGE: [0, 0]}
    assert empty.block(1).indptr.tolist() == [0]


def test_bad_arguments(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(2), 20, 20, 3)
    store = PlainStore.homogeneous(csc, device=device)
    seeds, ids = torch.arange(5), torch.tensor([0])
    sample = NeighborSampler(store, [2]).sample(seeds, 1)
    typed = NeighborSampler(PlainStore(TYPES, RELATIONS, device=device), [1])
    of_types = typed.sample({"item": seeds}, 1)
    with pytest.raises(ValueError, match="edge_ids, pairs: expected one of them"):
        exclude_edges(sample)
    with pytest.raises(ValueError, match="reverse: needs edge_ids"):
        exclude_edges(sample, pairs=torch.zeros(2, 1, dtype=torch.int64), reverse=ids)
    with pytest.raises(ValueError, match="edge_ids: the sample has none"):
        exclude_edges(NeighborSampler(store, [2], edge_ids=False).sample(seeds, 1), ids)
    with pytest.raises(ValueError, match="edge_ids: expected a dict by edge type"):
        exclude_edges(of_types, ids)
    with pytest.raises(ValueError, match="edge_ids: .* is not one of"):
        exclude_edges(sample, {(NODE, "x", NODE): ids})
    with pytest.raises(TypeError, match="edge_ids: expected an int32 or int64 tensor, got"):
        exclude_edges(sample, torch.ones(2))
    with pytest.raises(TypeError, match="edge_ids: expected an int32 or int64 tensor, got"):
        exclude_edges(sample, {EDGE: [1]})
    with pytest.raises(ValueError, match="edge_ids: expected one dimension, got shape"):
        exclude_edges(sample, ids[None])
    with pytest.raises(ValueError, match=r"pairs: expected shape \[2, P\], got shape \(3, 1\)"):
        exclude_edges(sample, pairs=torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="reverse: expected a dict by edge type"):
        exclude_edges(of_types, {BY: ids}, reverse=ids)
    with pytest.raises(ValueError, match="reverse: .* is not one of"):
        exclude_edges(sample, ids, reverse={EDGE: (BY, None)})
    with pytest.raises(TypeError, match="reverse: expected an int32 or int64 tensor of one"):
        exclude_edges(sample, ids, reverse=torch.ones(3))
    with pytest.raises(IndexError, match=r"edge_ids\[0\] = 3 is out of range for a reverse map"):
        exclude_edges(sample, torch.tensor([3]), reverse=torch.arange(3))


def test_ids_with_the_same_last_bits_stay(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    csc = random_csc(rng, 200, 200, 200)
    store = PlainStore.homogeneous(csc, device=device)
    full = NeighborSampler(store, [-1]).sample(torch.arange(200), 0)
    ids = full.edge_ids[EDGE]
    assert ids.max() > 3 * 4096
    gone = ids[ids > 8192][::7]
    left = exclude_edges(full, gone).edge_ids[EDGE]
    assert left.tolist() == ids[~torch.isin(ids, gone)].tolist()

"""PprSampler against its specification (peergraph.reference.ppr) and against exact PageRanks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from peergraph.reference import ppr as reference
from peergraph.reference.sampling import Csc
from peergraph.sampling import PprSampler
from tests.named_case import named_cases
from tests.sampling.plain_store import (
    INDEX_DTYPES,
    LAYOUTS,
    Layout,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.walk_graphs import RELATIONS, TYPES


def assert_equals_reference(store: PlainStore, csc: Csc, seeds: list[int], **options) -> None:
    nodes, weights = PprSampler(store, **options).neighbors(torch.tensor(seeds))
    keep = options.get("num_neighbors", 64)
    assert nodes.shape == weights.shape == (len(seeds), keep)
    assert nodes.dtype == torch.int64
    assert weights.dtype == torch.float32
    alpha, eps = options.get("alpha", 0.15), options.get("eps", 1e-4)
    for i, seed in enumerate(seeds):
        ranked, estimates = reference.forward_push(csc, seed, keep, alpha, eps)
        padding = keep - len(ranked)
        assert nodes[i].tolist() == ranked + [-1] * padding
        want = torch.tensor(estimates + [0.0] * padding, dtype=torch.float64).float()
        assert weights[i].cpu().equal(want)


def exact_pagerank(csc: Csc, seed: int, alpha: float) -> np.ndarray:
    """The PageRank by power iteration; a walk ends at a node without neighbours."""
    count = csc.indptr.size - 1
    degrees = np.maximum(np.diff(csc.indptr), 1)
    values = np.repeat(1.0 / degrees, np.diff(csc.indptr))
    step = scipy.sparse.csr_matrix((values, csc.indices, csc.indptr), shape=(count, count)).T
    here = np.zeros(count)
    here[seed] = 1.0
    rank = np.zeros(count)
    while here.sum() > 1e-15:
        rank += alpha * here
        here = (1 - alpha) * (step @ here)
    return rank


def undirected_csc(rng: np.random.Generator, count: int, edges: int) -> Csc:
    ends = (count * rng.random((2, edges)) ** 2).astype(np.int64)
    matrix = scipy.sparse.coo_matrix((np.ones(edges), ends), shape=(count, count))
    matrix = ((matrix + matrix.T) > 0).tocsr()
    return Csc(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64))


@named_cases("layout", LAYOUTS.values())
@named_cases("index_dtype", INDEX_DTYPES)
def test_equals_reference(device: torch.device, layout: Layout, index_dtype: torch.dtype) -> None:
    csc = random_csc(np.random.default_rng(1), 70, 70, 5)
    store = PlainStore.homogeneous(csc, layout=layout, index_dtype=index_dtype, device=device)
    assert_equals_reference(store, csc, [*range(0, 70, 7), 3, 3])
    assert_equals_reference(store, csc, [5, 60], num_neighbors=3, alpha=0.5, eps=1e-2)


@pytest.mark.parametrize("eps", [1.0, 1e-3, 1e-6, 2.0**-30])
@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.999])
def test_precisions(device: torch.device, alpha: float, eps: float) -> None:
    csc = random_csc(np.random.default_rng(2), 40, 40, 3)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    assert_equals_reference(store, csc, [0, 11, 39], num_neighbors=50, alpha=alpha, eps=eps)


def test_searches_of_any_size(device: torch.device) -> None:
    # From lists that a lane reads to ones that a block reads, and from searches that fit into a
    # block's shared memory to ones that do not.
    csc = random_csc(np.random.default_rng(3), 9000, 9000, 8)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    assert_equals_reference(store, csc, [1, 4500, 8999], num_neighbors=700, eps=1e-5)
    assert_equals_reference(store, csc, list(range(40)), num_neighbors=5, eps=1e-3)
    degrees = [0, 1, 31, 33, 255, 600, 2000, 10_001, 9_999] + [3] * 3000
    hubs = csc_with_degrees(degrees)
    store = PlainStore.homogeneous(hubs, layout=LAYOUTS["renumbered"], device=device)
    assert_equals_reference(store, hubs, list(range(12)), num_neighbors=20, eps=1e-4)


def test_estimates_are_within_eps_of_exact_pageranks(device: torch.device) -> None:
    csc = undirected_csc(np.random.default_rng(4), 400, 2500)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    eps, degrees = 1e-4, np.diff(csc.indptr)
    for seed in (0, 17, 399):
        nodes, weights = PprSampler(store, num_neighbors=400, eps=eps).neighbors(
            torch.tensor([seed])
        )
        estimates = np.zeros(400)
        chosen = nodes[0] >= 0
        estimates[nodes[0][chosen].cpu()] = weights[0][chosen].double().cpu()
        below = exact_pagerank(csc, seed, 0.15) - estimates
        assert (below >= -1e-7).all()  # weights are rounded to float32
        assert (below <= eps * np.maximum(degrees, 1) + 1e-7).all()


def test_a_directed_graph_with_dead_ends_equals_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    csc = random_csc(np.random.default_rng(5), 60, 60, 4)
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(60))
    for node in range(60):
        for other in csc.indices[csc.indptr[node] : csc.indptr[node + 1]]:
            graph.add_edge(node, int(other))
    store = PlainStore.homogeneous(csc)
    nodes, weights = PprSampler(store, num_neighbors=60, eps=1e-9).neighbors(torch.tensor([7]))
    want = networkx.pagerank(graph, alpha=0.85, personalization={7: 1.0}, tol=1e-14)
    got = dict(zip(nodes[0].tolist(), (weights[0] / weights[0].sum()).tolist(), strict=True))
    assert sum(want.values()) == pytest.approx(1)
    for node in range(60):
        assert got.get(node, 0.0) == pytest.approx(want[node], abs=1e-6)


def test_block(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(6), 80, 80, 6)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    seeds = torch.tensor([70, 2, 2, 41], device=device)
    sampler = PprSampler(store, num_neighbors=5)
    sample, (nodes, weights) = sampler.sample(seeds), sampler.neighbors(seeds)
    assert sample.num_seeds == 4
    assert sample.nodes[:4].equal(seeds)
    assert sample.col.tolist() == sorted(sample.col.tolist())
    valid = nodes >= 0
    assert sample.nodes[sample.row].equal(nodes[valid])
    assert sample.weights.equal(weights[valid])
    others = sample.nodes[4:].tolist()
    assert len(set(others)) == len(others)
    assert not set(others) & {70, 2, 41}
    first = {int(n): i for i, n in reversed(list(enumerate(sample.nodes.tolist())))}
    assert sample.row.tolist() == [first[n] for n in nodes[valid].tolist()]


def test_without_edges_and_seeds(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([0, 0, 0]), device=device)
    nodes, weights = PprSampler(store, num_neighbors=2).neighbors(torch.tensor([2]))
    assert nodes.tolist() == [[2, -1]]
    assert weights[0].cpu().equal(torch.tensor([0.15, 0.0]))
    nodes, weights = PprSampler(store).neighbors(torch.empty(0, dtype=torch.int32))
    assert nodes.shape == weights.shape == (0, 64)
    assert PprSampler(store).sample(torch.empty(0, dtype=torch.int64)).nodes.numel() == 0


def test_errors() -> None:
    store = PlainStore.homogeneous(csc_with_degrees([1, 2, 0]))
    for name, value in (("alpha", 0.0), ("alpha", 1.0), ("eps", 1e-12), ("eps", float("nan"))):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            PprSampler(store, **{name: value})
    with pytest.raises(TypeError, match="eps: expected a number"):
        PprSampler(store, eps="small")
    with pytest.raises(ValueError, match="num_neighbors: expected"):
        PprSampler(store, num_neighbors=0)
    with pytest.raises(IndexError, match=r"seeds\[1\] = 3 is out of range for 3 nodes"):
        PprSampler(store).neighbors(torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="seeds: expected"):
        PprSampler(store).neighbors(torch.tensor([0.5]))
    typed = PlainStore(TYPES, RELATIONS)
    with pytest.raises(ValueError, match="edge_type: one of"):
        PprSampler(typed)
    with pytest.raises(ValueError, match="joins two node types"):
        PprSampler(typed, next(t for t in RELATIONS if t[0] != t[2]))
